"""Git on the host, in a repository that somebody else wrote: it runs nothing that the repository configures.

`git status` runs what `core.fsmonitor` says, and the filters of files; `git diff` external diffs and text converters;
others hooks, editors, helpers. All of these are set in `.git/config`, which whoever wrote the repository has written.
So Git is told otherwise by variables, which win over that file, and lose to `-c` on the command line. Settings with a
name in them (`filter.NAME.clean`) can only be replaced once they are known: `git config --list`, which runs nothing,
tells them.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from typing import cast

import msgspec

from .errors import BackendError
from .models import Request
from .policy.facts import Command
from .policy.version_control import Unreadable, leading, only_looks, version_control

VARIABLES = {
    "GIT_PAGER": "cat",
    "GIT_EDITOR": ":",
    "GIT_SEQUENCE_EDITOR": ":",
    "GIT_ASKPASS": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_SSH_COMMAND": "ssh",
    "GIT_NO_LAZY_FETCH": "1",  # what is missing in a partial clone would come from wherever it says
    "HGPLAIN": "1",
    "HGRCSKIPREPO": "1",  # .hg/hgrc
}
SETTINGS = {
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.pager": "cat",
    "core.gitProxy": "",
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
    "diff.ignoreSubmodules": "dirty",  # a submodule has settings of its own
}
_DIFF = 'f() { diff -u "$2" "$5"; true; }; f'  # what it is given: path, old file, its hash and mode, new file …
_NAMED = [
    (re.compile(pattern, re.IGNORECASE), value)
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
        (r"(?:browser|man)\..*\.(?:cmd|path)\Z", "false"),
        (r"credential\.(?:.*\.)?helper\Z", ""),
        (r"submodule\..*\.update\Z", "checkout"),
        (r"submodule\..*\.ignore\Z", "dirty"),
        (r"sendemail\..*(?:cmd|smtpserver|program)\Z", "false"),
    )
]
_FIRST = re.compile(r"remote\..*\.(?:uploadpack|receivepack|vcs)\Z", re.IGNORECASE)
"""Of these Git takes the first that it finds, and that is the repository's."""
_OWN_SCOPES = ("local", "worktree")
_SECONDS = 5.0
_MAX_PROBES, _MAX_BYTES, _MAX_NAMED = 8, 1 << 20, 1000


async def protected(request: Request, *, listed: bool) -> Request:
    """A request for the host, with variables that keep Git to itself where it runs Git: if it is `listed`, whatever it
    does; else if all of it only looks. Those that the request has itself win.

    Raises `BackendError` if a repository sets more than can be looked through.
    """
    try:
        commands = version_control(request)
    except Unreadable:
        commands = []
    if not commands or not (listed or all(map(only_looks, commands))):
        return request
    settings = dict(SETTINGS)
    places = dict.fromkeys(_place(command, request) for command in commands if command.name == "git")
    for place in list(places)[:_MAX_PROBES]:
        settings.update(await _named(place, _with(request.env, SETTINGS)))
    return msgspec.structs.replace(request, env=_with(request.env, settings))


def _with(env: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """The variables that say so, and after them those that were there, which win."""
    count = env.get("GIT_CONFIG_COUNT", "")
    own = int(count) if count.isdecimal() and len(count) < 5 else 0
    pairs = [*settings.items()]
    pairs += [(env.get(f"GIT_CONFIG_KEY_{at}", ""), env.get(f"GIT_CONFIG_VALUE_{at}", "")) for at in range(own)]
    numbered = {f"GIT_CONFIG_KEY_{at}": key for at, (key, _) in enumerate(pairs)}
    numbered |= {f"GIT_CONFIG_VALUE_{at}": value for at, (_, value) in enumerate(pairs)}
    return {**VARIABLES, **env, **numbered, "GIT_CONFIG_COUNT": str(len(pairs))}


def _place(command: Command, request: Request) -> tuple[str, ...]:
    """What finds the repository again: options of Git's, from the directory where the request begins."""
    start = ["-C", request.cwd or "/"]
    if command.directory not in (None, "."):
        start += ["-C", command.directory or "."]
    return (*start, *leading(command.args))


async def _named(place: tuple[str, ...], env: dict[str, str]) -> dict[str, str]:
    """The settings of a repository that run something, each with what is to be there instead."""
    git = shutil.which("git", path=env.get("PATH", "/usr/bin:/bin"))
    if git is None:
        return {}
    process = await asyncio.create_subprocess_exec(
        *(git, *place, "config", "--list", "--show-scope", "--name-only", "--null"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=env,
        cwd="/",
    )
    stdout = cast("asyncio.StreamReader", process.stdout)
    try:
        async with asyncio.timeout(_SECONDS):
            told = await _read(stdout)
    except TimeoutError:
        told = None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    words = [] if told is None else told.decode("utf-8", "surrogateescape").split("\0")
    own = {key for scope, key in zip(words[::2], words[1::2], strict=False) if scope in _OWN_SCOPES}
    found = {key: value for key in own for pattern, value in _NAMED if pattern.match(key)}
    if told is None or len(found) > _MAX_NAMED:
        raise _refused("this repository configures more than can be looked through for what it would run")
    if stuck := next(filter(_FIRST.match, own), None):
        raise _refused(f"this repository sets {stuck!a}, which would run a program and can't be overridden")
    return found


def _refused(why: str) -> BackendError:
    hint = "take it out of .git/config; or set trust_repository: true in the executor, if you trust who wrote it"
    return BackendError("git was not run", why=why, next=hint)


async def _read(stream: asyncio.StreamReader) -> bytes | None:
    """All of it; None if that is too much."""
    told = b""
    while chunk := await stream.read(1 << 16):
        told += chunk
        if len(told) > _MAX_BYTES:
            return None
    return told
