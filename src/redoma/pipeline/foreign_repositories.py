"""Git on the host, in a repository that someone else wrote: it runs nothing that the repository configures.

`git status` runs the command in `core.fsmonitor`, and filters; `git diff` runs external diffs and text converters;
other commands run hooks, editors and helpers. All of these are set in `.git/config`, which the repository's author has
written.

So these settings are overridden by variables, which take precedence over that file, but not over `-c` on the command
line. Settings with a name in them (`filter.NAME.clean`) can only be overridden once they are known: `git config
--list`, which runs nothing, lists them, for the repository and the submodules that Git may look into. If that fails,
Git is not run.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, cast

import msgspec

from ..lib.errors import BackendError
from ..lib.patterns import lazy_pattern
from ..models import Request
from ..policy import Reading
from ..policy.facts import Command
from ..policy.version_control import Unreadable, choosing, may_enter_submodules, only_looks, version_control

VARIABLES = {
    "GIT_PAGER": "cat",
    "GIT_EDITOR": ":",
    "GIT_SEQUENCE_EDITOR": ":",
    "GIT_ASKPASS": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_SSH_COMMAND": "ssh",
    "GIT_PROXY_COMMAND": "",  # for core.gitProxy Git takes the first value, which is the repository's
    "GIT_NO_LAZY_FETCH": "1",  # missing objects of a partial clone would be fetched from wherever it says
    "HGPLAIN": "1",
    "HGRCSKIPREPO": "1",  # .hg/hgrc
}
SETTINGS = {
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.pager": "cat",
    "core.alternateRefsCommand": "true",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "log.showSignature": "false",
    "gpg.program": "gpg",
    "gpg.openpgp.program": "gpg",
    "gpg.x509.program": "gpgsm",
    "gpg.ssh.program": "ssh-keygen",
    "gpg.ssh.defaultKeyCommand": "",
    "interactive.diffFilter": "cat",
    "protocol.ext.allow": "never",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "push.recurseSubmodules": "no",
    "status.submoduleSummary": "false",
    "diff.submodule": "short",
    "diff.ignoreSubmodules": "dirty",  # a submodule has its own settings
}
_DIFF = 'f() { diff -u "$2" "$5"; true; }; f'  # its arguments: path, old file, its hash and mode, new file …
_NAMED = [
    (lazy_pattern(pattern, re.IGNORECASE), value)
    for pattern, value in (
        (r"filter\..*\.(?:clean|smudge|process)\Z", ""),
        (r"filter\..*\.required\Z", "false"),
        (r"diff\.(?:external|.*\.command)\Z", _DIFF),
        (r"diff\..*\.textconv\Z", "cat"),
        (r"merge\..*\.driver\Z", "git merge-file %A %O %B"),
        (
            r"(?:alias\..*|pager\..*|hook\..*\.command|trailer\..*\.(?:command|cmd)|(?:difftool|mergetool)\..*\.(?:cmd|path))\Z",
            "",
        ),
        (r"(?:browser|man|guitool)\..*\.(?:cmd|path)\Z", "false"),
        (r"(?:imap\.tunnel|instaweb\.(?:httpd|browser)|svn\.authors-?prog)\Z", "false"),
        (r"tar\..*\.command\Z", "false"),
        (r"tar\.(?:tar\.gz|tgz)\.command\Z", "gzip -cn"),
        (r"lfs\.extension\..*\.(?:clean|smudge)\Z", "cat"),
        (r"lfs\.customtransfer\..*\.path\Z", "false"),
        (r"credential\.(?:.*\.)?helper\Z", ""),
        (r"submodule\..*\.update\Z", "checkout"),
        (r"submodule\..*\.ignore\Z", "dirty"),
        (r"sendemail\..*(?:cmd|smtpserver|program)\Z", "false"),
    )
]
_FIRST = lazy_pattern(r"(?:remote\..*\.(?:uploadpack|receivepack|vcs)|gc\.recentObjectsHook)\Z", re.IGNORECASE)
"""Settings that can't be overridden: Git takes the first value that it finds, or all, and so the repository's."""
_OWN_SCOPES = ("local", "worktree")
_OF_ONE_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY")
_GITLINK = "160000 "
_SECONDS = 10.0
_MAX_REPOSITORIES, _MAX_BYTES, _MAX_INDEX_BYTES, _MAX_NAMED = 256, 1 << 20, 1 << 28, 1000
_TAKE_OUT = "take it out of .git/config"


async def protected(reading: Reading, *, listed: bool) -> Request:
    """Return the request that was read, with variables that prevent Git from running what a repository configures.

    They are added if it runs Git: always for a `listed` command, else only if all of it only reads. Variables of the
    request itself take precedence. Raises `BackendError` if they would not be enough: the repository is unknown or
    unreadable, or it sets something that can't be overridden.
    """
    request = reading.request
    try:
        found = version_control(reading)
    except Unreadable:
        if not listed:  # the policy has judged that it is unreadable
            return request
        raise _refused("what this command runs can't be read", "list a simpler command") from None
    commands = found.commands
    looks = all(map(only_looks, commands))
    if not commands or not (listed or looks):
        return request
    if found.hidden:
        raise _refused(found.hidden, "name the directory itself (cd DIR, git -C DIR), or run it in the jail")
    search = _Search(request, thorough=not looks or any(map(may_enter_submodules, commands)), changing=not looks)
    runs = [command for command in commands if command.name == "git"]
    places = dict.fromkeys(_place(command, command.directory or ".", request) for command in runs)
    # A `cd` before it may fail, or be in the background.
    others = dict.fromkeys(_place(command, ".", request) for command in runs)
    # In a thread: asyncio's child watcher complains about a child that is found to have ended when it is signalled.
    settings = await asyncio.to_thread(search.run, [*places], [*others])
    return msgspec.structs.replace(request, env=_with(request.env, SETTINGS | settings))


def _with(env: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return variables for these settings, followed by the existing ones: later ones take precedence."""
    count = env.get("GIT_CONFIG_COUNT", "")
    own = int(count) if count.isdecimal() and len(count) < 5 else 0
    pairs = [*settings.items()]
    pairs += [(env.get(f"GIT_CONFIG_KEY_{at}", ""), env.get(f"GIT_CONFIG_VALUE_{at}", "")) for at in range(own)]
    numbered = {f"GIT_CONFIG_KEY_{at}": key for at, (key, _) in enumerate(pairs)}
    numbered |= {f"GIT_CONFIG_VALUE_{at}": value for at, (_, value) in enumerate(pairs)}
    return {**VARIABLES, **env, **numbered, "GIT_CONFIG_COUNT": str(len(pairs))}


def _place(command: Command, directory: str, request: Request) -> tuple[str, ...]:
    """Return Git options that find the same repository. Without a `cwd` it starts in an empty temporary directory."""
    home = request.environment.get("HOME", "")
    import tempfile

    words = ["-C", request.cwd or tempfile.gettempdir(), "-C", directory, *choosing(command)]
    if not home and any(word.startswith("~") for word in words):
        raise _refused("it runs git below ~, and the request sets no HOME", "name the directory itself")
    return tuple(home + word[1:] if word == "~" or word.startswith("~/") else word for word in words)


class _Search:
    """Searches repositories for settings that would run something."""

    def __init__(self, request: Request, *, thorough: bool, changing: bool) -> None:
        self._env = _with(request.environment, SETTINGS)
        import shutil

        self._git = shutil.which("git", path=self._env.get("PATH", "/usr/bin:/bin"))
        self._thorough = thorough  # Git may look into repositories that are not in the index
        self._changing = changing  # files included by a configuration may change while it runs
        self._until = time.monotonic() + _SECONDS

    def run(self, places: Sequence[tuple[str, ...]], others: Sequence[tuple[str, ...]]) -> dict[str, str]:
        """Return such settings of these repositories and those inside them → the value to override them with.

        Raises `BackendError` if one of `places` can't be read; one of `others` is then skipped.
        """
        found: dict[str, str] = {}
        inner = {name: value for name, value in self._env.items() if name not in _OF_ONE_REPOSITORY}
        seen = {*places, *others}
        left = [(place, self._env) for place in seen]
        while left and self._git is not None:
            place, env = left.pop()
            settings = self._tell(place, env, "config", "--list", "--show-scope", "--name-only", "--null")
            if settings is None:
                if place not in places:  # Git could not read it either
                    continue
                raise _refused("git can't read the repository there", "see what git config --list says there")
            found |= self._named(settings.split("\0"))
            inside = set(self._inside(place, env)) - seen
            seen |= inside
            left += [(each, inner) for each in inside]
            if len(seen) > _MAX_REPOSITORIES or len(found) > _MAX_NAMED:
                raise self._too_much()
        return found

    def _named(self, words: Sequence[str]) -> dict[str, str]:
        own = {key for scope, key in zip(words[::2], words[1::2], strict=False) if scope in _OWN_SCOPES}
        if stuck := next(filter(_FIRST.match, own), None):
            raise _refused(f"this repository sets {stuck!a}, which would run a program and can't be overridden")
        if self._changing and any(key.startswith(("include.", "includeif.")) for key in own):
            raise _refused("its .git/config includes other files, which may be others once git has changed something")
        return {key: value for key in own for pattern, value in _NAMED if pattern.match(key)}

    def _inside(self, place: Sequence[str], env: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
        """Yield the repositories that Git may look into from this one."""
        if self._thorough:
            directory = self._tell(place, env, "rev-parse", "--path-format=absolute", "--git-common-dir")
            if directory:
                yield from self._below(os.path.join(directory.removesuffix("\n"), "modules"), "config", "--git-dir")
        top = (self._tell(place, env, "rev-parse", "--show-toplevel") or "").removesuffix("\n")
        if not top:  # it has no files
            return
        if self._thorough:
            yield from self._below(top, ".git", "-C")
        for path in self._gitlinks(place, env):
            if os.path.lexists(os.path.join(top, path, ".git")):
                yield ("-C", os.path.join(top, path))

    def _gitlinks(self, place: Sequence[str], env: Mapping[str, str]) -> Iterator[str]:
        words = ("ls-files", "--full-name", "--stage", "-z", "--", ":/")
        output = self._tell(place, env, *words, most=_MAX_INDEX_BYTES) or ""
        if _GITLINK in output:
            yield from (line.partition("\t")[2] for line in output.split("\0") if line.startswith(_GITLINK))

    def _below(self, top: str, name: str, option: str) -> Iterator[tuple[str, ...]]:
        """Yield the directories below this one that contain an entry of this name."""
        for directory, directories, files in os.walk(top):
            if time.monotonic() > self._until:
                raise self._too_much()
            if (name in directories or name in files) and directory != top:
                yield (option, directory)
            for link in filter(os.path.islink, (os.path.join(directory, each) for each in directories)):
                if os.path.lexists(os.path.join(link, name)):
                    yield (option, link)
            if ".git" in directories:
                directories.remove(".git")

    def _tell(self, place: Sequence[str], env: Mapping[str, str], *words: str, most: int = _MAX_BYTES) -> str | None:
        """Return what Git prints; None if it fails. Raises `BackendError` if that is too much, or takes too long."""
        import subprocess

        with subprocess.Popen(
            [cast("str", self._git), *place, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            cwd="/",
        ) as process:
            timer = threading.Timer(max(0.0, self._until - time.monotonic()), process.kill)
            timer.start()
            try:
                output = cast("IO[bytes]", process.stdout).read(most + 1)
                if len(output) > most:
                    process.kill()
                process.wait()
            finally:
                timer.cancel()
        if len(output) > most or time.monotonic() > self._until:
            raise self._too_much()
        return output.decode("utf-8", "surrogateescape") if process.returncode == 0 else None

    @staticmethod
    def _too_much() -> BackendError:
        return _refused("this repository configures more than can be looked through for what it would run")


def _refused(why: str, instead: str = _TAKE_OUT) -> BackendError:
    hint = f"{instead}; or set trust_repository: true in the executor, if you trust who wrote the repository"
    return BackendError("git was not run", why=why, next=hint)
