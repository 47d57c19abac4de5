"""Checks the syntax of a script with `bash -n`, since no parser of ours is as exact as Bash itself.

The text is not reviewed, and Bash's parser is a large C program that some texts crash (`$(` three thousand times). So
Bash reads it in a cell of the jail. If no cell can be made, it is a process of this host, with as few rights as
possible.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import shutil
import subprocess
from typing import TYPE_CHECKING

from ..backends.base import uncancellable
from ..lib.errors import BackendError, BackendUnavailable
from ..lib.patterns import lazy_pattern
from ..models import Decision, Finding, Limits, MiB, Request, Status, Stream
from ..redaction import Redactor, clean

if TYPE_CHECKING:
    from ..backends.jail import JailBackend

SECONDS = 5
_MEMORY = 256 * MiB
_MAX_SAID = 65536
_NOBODY = 65534
_SAID = re.compile(r"[^\n]*?: line (?P<line>[0-9]+): (?P<what>[^\n]*)")
_ENV = {"LC_ALL": "C"}  # no BASH_ENV and no functions; and messages in English

# Without any of these a script is a list of simple commands, which our own parser reads exactly as Bash does.
_COMPOUND = lazy_pattern(
    r"[][<>(){}`\\!]|;;"
    r"|\b(?:if|then|else|elif|fi|for|while|until|do|done|case|esac|in|select|function|coproc|time)\b"
)


def syntax_error(script: str) -> Finding | None:
    """Return the syntax error that Bash finds in a script which our own parser accepts; None if it finds none, or
    there is no Bash. Waits for a cell, except for scripts of simple commands, which Bash need not read.
    """
    if not _COMPOUND.search(script):
        return None

    async def ask() -> Finding | None:
        bash = Bash()
        try:
            return await bash.objection(script)
        finally:
            await bash.aclose()

    return asyncio.run(ask())


class Bash:
    """Checks scripts with Bash, in cells of `jail` or of its own jail."""

    def __init__(self, jail: JailBackend | None = None) -> None:
        self._jail = jail
        self._without_cells = False

    async def objection(self, script: str) -> Finding | None:
        """Return the syntax error that Bash finds in a script; None if it finds none, or there is no Bash."""
        # `-n` doesn't execute `shopt`, so scripts that need this option would always be refused.
        options = ("-O", "extglob") if "extglob" in script else ()
        arguments, text = ("--noprofile", "--norc", *options, "-n"), script.encode("utf-8", "replace")
        if not self._without_cells:
            try:
                return await self._in_a_cell(arguments, text)
            except BackendError as error:  # the host has no jail, or it fails now
                self._without_cells = isinstance(error, BackendUnavailable)
        asked = asyncio.create_task(asyncio.to_thread(_on_the_host, arguments, text))
        await uncancellable(asked)  # if we are cancelled, wait for the thread first
        return asked.result()

    async def _in_a_cell(self, arguments: tuple[str, ...], text: bytes) -> Finding | None:
        if self._jail is None:
            from ..backends.jail import JailBackend

            self._jail = JailBackend(minimum=0)
        said = bytearray()

        def listen(stream: Stream, data: bytes) -> bool:
            if stream == "stderr":
                said.extend(data)
            return len(said) < _MAX_SAID

        self._jail.capabilities()
        limits = Limits(time=SECONDS, cpu=SECONDS, memory=_MEMORY)
        request = Request(argv=("bash", *arguments), language="command", stdin=text, env=_ENV, limits=limits)
        outcome = await self._jail.run(request, listen)
        if outcome.error is not None and outcome.exit_code in (126, 127):
            raise BackendUnavailable("there is no Bash in cells", why=outcome.error)
        if outcome.status is Status.TIMEOUT:
            return _too_slow()
        return _verdict(bytes(said), readable=outcome.status is Status.OK)

    async def let_go(self) -> None:
        """Release the cells, if they are not in use."""
        if self._jail is not None:
            await self._jail.let_go()

    async def aclose(self) -> None:
        if self._jail is not None:
            await self._jail.aclose()


# Sets the limits, then executes Bash. They could be set from outside as well, but not by a root user without
# CAP_SYS_RESOURCE, as in most containers. The option for the number of processes differs between shells.
_LIMITED = """\
ulimit -c {core} && ulimit -f {fsize} && ulimit -t {cpu} && ulimit -v {memory} &&
{{ ulimit -u {nproc} 2>/dev/null || ulimit -p {nproc}; }} || exit 125
exec env -i LC_ALL=C "$@"
"""
_UNLIMITED = 125


def _on_the_host(arguments: tuple[str, ...], text: bytes) -> Finding | None:
    """Check it in a process of this host with few rights: it can't start processes or write files, and has little time
    and memory and no environment. It can read what all users can. If we are root it runs as nobody, since limits on
    processes don't apply to root.
    """
    if (bash := shutil.which("bash", path=_absolute(os.environ.get("PATH", os.defpath)))) is None:
        return None
    # Without our user and groups. Only root can drop them.
    dropped = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    try:
        with subprocess.Popen(
            ["/bin/sh", "-c", _LIMITED.format(**_limits()), "sh", bash, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=_ENV | {"PATH": os.defpath},
            cwd="/",
            start_new_session=True,
            **dropped,  # type: ignore[call-overload]
        ) as process:
            try:
                _, said = process.communicate(text, SECONDS)
            except subprocess.TimeoutExpired:
                return _too_slow()
            finally:
                process.kill()
    except OSError as error:
        return _objection(f"Bash can't be asked here: {error}")
    if process.returncode == _UNLIMITED:
        return _objection("Bash can't be asked here: its limits can't be set")
    return _verdict(said, readable=process.returncode == 0)


def _absolute(path: str) -> str:
    """Return the search path without relative directories: another user may control the current one."""
    return os.pathsep.join(part for part in path.split(os.pathsep) if os.path.isabs(part))


def _limits() -> dict[str, int]:
    """Return the limits in the units of `ulimit`. One that is already lower stays: it could not be raised."""
    wanted = {"core": 0, "fsize": 0, "cpu": SECONDS, "memory": _MEMORY, "nproc": 0}
    kinds = {"memory": resource.RLIMIT_AS}
    for name, most in wanted.items():
        hard = resource.getrlimit(kinds.get(name, getattr(resource, f"RLIMIT_{name.upper()}", -1)))[1]
        wanted[name] = most if hard == resource.RLIM_INFINITY else min(most, hard)
    return wanted | {"memory": wanted["memory"] // 1024}


def _verdict(said: bytes, *, readable: bool) -> Finding | None:
    # It exits with 0 after some errors, such as `[[ ( [[ (`: its messages count, too.
    errors = [
        line for line in _SAID.finditer(said.decode("utf-8", "replace")) if not line["what"].startswith("warning")
    ]
    if errors:
        what, _ = clean(errors[0]["what"][:200], Redactor())
        return _objection(f"Bash says: {what}", int(errors[0]["line"]))
    return None if readable else _objection("Bash can't read it")


def _too_slow() -> Finding:
    return _objection("Bash needs too long to read it")


def _objection(reason: str, line: int = 0) -> Finding:
    return Finding(
        rule="script.bash-syntax", decision=Decision.FORBID, reason=reason, line=line, suggestion="correct the syntax"
    )
