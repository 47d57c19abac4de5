"""Where Redoma's configuration files are, and reading one: the only module that opens them, and that reads the
variables of the environment that configure Redoma."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec

from ..lib.errors import ConfigError
from .model import LogFormat, LogLevel, printable, refuse

NAME = "redoma.yaml"
MAX_BYTES = 1_000_000
LOG_VARIABLE = "REDOMA_LOG"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A file as it was read, once, so that the same bytes are checked, hashed and used."""

    path: Path
    """The real path, symlinks resolved."""
    data: bytes
    owner: int
    mode: int

    @property
    def digest(self) -> str:
        import hashlib

        return hashlib.sha256(self.data).hexdigest()


def home(env: Mapping[str, str] | None = None) -> Path | None:
    """Return the user's home directory; None if there is no reliable one."""
    env = os.environ if env is None else env
    # With a relative HOME, the current directory (the project) would decide where the user's own files are.
    named = env.get("HOME", "")
    if named:
        return Path(named) if os.path.isabs(named) else None
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:  # containers often run as a user id without an account
        return None


def service_key() -> str:
    """Return the key for a service, from `REDOMA_KEY`; empty if it is not set."""
    return os.environ.get("REDOMA_KEY", "")


def _base(env: Mapping[str, str], variable: str, under_home: str) -> Path | None:
    # The XDG specification says to ignore relative values. Here that also prevents a project from redirecting them.
    named = env.get(variable, "")
    if os.path.isabs(named):
        return Path(named) / "redoma"
    place = home(env)
    return place / under_home / "redoma" if place else None


def log_variable(env: Mapping[str, str]) -> dict[str, Any]:
    """Parse `REDOMA_LOG`: `LEVEL`, `LEVEL:FORMAT` or `LEVEL:FORMAT:FILE`. Returns those given. Raises `ConfigError`."""
    words = dict(zip(("level", "format", "file"), env.get(LOG_VARIABLE, "").split(":", 2), strict=False))
    said: dict[str, Any] = {name: word for name, word in words.items() if word}
    if file := said.pop("file", None):
        said["file"] = Path(file)
    for name, valid in (("level", get_args(LogLevel)), ("format", get_args(LogFormat))):
        if said.get(name, valid[0]) not in valid:
            raise ConfigError(
                f"{LOG_VARIABLE} is {printable(env[LOG_VARIABLE])!r}",
                why=f"its {name} is none of {', '.join(valid)}",
                next="set it to LEVEL, LEVEL:FORMAT or LEVEL:FORMAT:FILE, such as info:json:/var/log/redoma.log",
            )
    return said


def state_directory(env: Mapping[str, str] | None = None) -> Path:
    """Return the directory of Redoma's state, such as the audit log. Raises `ConfigError` if there is none."""
    env = os.environ if env is None else env
    chosen = env.get("REDOMA_STATE_DIR", "")
    if chosen:
        if not os.path.isabs(chosen):
            raise ConfigError(
                f"REDOMA_STATE_DIR is {chosen!r}",
                why="a relative state directory would depend on the directory Redoma is started in",
                next="set it to an absolute path",
            )
        return Path(os.path.normpath(chosen))
    place = _base(env, "XDG_STATE_HOME", ".local/state")
    if place is None:
        raise ConfigError(
            "there is no place to keep state",
            why="HOME is not an absolute path and this user has no account entry",
            next="set REDOMA_STATE_DIR to a directory of your own",
        )
    return place


def user_file(env: Mapping[str, str], name: str = NAME) -> Path | None:
    """Return the user's own file; None if there is none."""
    base = _base(env, "XDG_CONFIG_HOME", ".config")
    return base / name if base and os.path.lexists(base / name) else None


def project_file(cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Path | None:
    """Return the nearest `redoma.yaml` from a directory upwards that is not the user's own file; None if there is
    none.
    """
    return next(project_files(cwd, env), None)


def project_files(cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Iterator[Path]:
    """Yield every `redoma.yaml` from a directory upwards that is not the user's own file, the nearest first.

    The search ends at the home directory, and at the boundary of the file system: the project's owner didn't put there
    what is above.
    """
    env = os.environ if env is None else env
    try:
        start = Path(os.path.realpath(cwd or Path.cwd()))
        device = start.stat().st_dev
    except OSError:  # the current directory was deleted or can't be entered: there is no project
        return
    own, house = user_file(env), home(env)
    top = Path(os.path.realpath(house)) if house else None
    for directory in (start, *start.parents):
        try:
            if directory.stat().st_dev != device:
                return
        except OSError:
            return
        found = directory / NAME
        # lexists, so that a dangling link is found and reported, not skipped.
        if os.path.lexists(found) and not (own and os.path.realpath(own) == os.path.realpath(found)):
            yield found
        if directory == top:
            return


def read(path: Path) -> Source:
    """Read a regular file of bounded size. Raises `InvalidFile` for anything else."""
    try:
        real = os.path.realpath(path)
        # O_NONBLOCK: opening a FIFO without a writer would otherwise block forever.
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                refuse(path, "it is not a regular file", "put a plain text file there, or remove it")
            data = b""
            # Don't rely on the size in the status: the file may grow while it is read, and in /proc it is 0.
            while len(data) <= MAX_BYTES and (chunk := os.read(descriptor, MAX_BYTES + 1 - len(data))):
                data += chunk
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        refuse(path, f"it can't be read ({reason})", "check that it exists and that you may read it")
    if len(data) > MAX_BYTES:
        refuse(path, f"it is larger than {MAX_BYTES} bytes", "keep configuration small")
    return Source(path=Path(real), data=data, owner=status.st_uid, mode=status.st_mode)


def require_own(source: Source) -> None:
    """Raise `InvalidFile` for a user file that others can write: it may loosen anything, so they could too."""
    if source.owner not in (os.geteuid(), 0) or source.mode & stat.S_IWOTH:
        refuse(
            source.path,
            "other users can change it",
            f"make it yours alone: chown {os.geteuid()} and chmod go-w {printable(source.path)}",
        )


def not_ours(found: Path, env: Mapping[str, str] | None = None) -> str:
    """Return why another user may have written a file: they own it, or can replace it. Empty if only this user and the
    administrator can. Under sudo, the user who called it counts as this user, too.
    """
    env = os.environ if env is None else env
    ours = {os.geteuid(), 0}
    if os.geteuid() == 0 and env.get("SUDO_UID", "").isdecimal():
        ours.add(int(env["SUDO_UID"]))
    real = Path(os.path.realpath(found))
    for path, it in ((found, "the link to it"), (real, "it")) if found.is_symlink() else ((real, "it"),):
        try:
            about, directory = path.lstat(), path.parent.stat()
        except OSError:
            continue  # if stat fails, reading fails too
        if about.st_uid not in ours:
            return f"{it} belongs to {_user(about.st_uid)}"
        if stat.S_ISREG(about.st_mode) and about.st_mode & stat.S_IWOTH:
            return "anybody can change it"
        if directory.st_uid not in ours:
            return f"its directory belongs to {_user(directory.st_uid)}"
        if any(_is_open(place) for place in path.parents):
            return "anybody can put another in its place: a directory that it lies in can be changed by all"
    return ""


def _is_open(directory: Path) -> bool:
    """Return whether any user can rename others' files there. In /tmp the sticky bit prevents that."""
    try:
        mode = directory.stat().st_mode
    except OSError:
        return True
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def _user(number: int) -> str:
    try:
        return f"the user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"the user {number}"
