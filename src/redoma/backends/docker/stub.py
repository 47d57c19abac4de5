"""The stub that waits inside a container, and the order that is sent to it."""

from __future__ import annotations

import io
import marshal
import secrets
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ...lib.errors import Unsupported
from ...models import Language, Request
from ..collect import MAX_BYTES
from .guest import END, READY, TAKEN, TOO_LARGE, WORKSPACE

__all__ = ["END", "PASSED", "READY", "RUN_BYTES", "TAKEN", "TOO_LARGE", "WORKSPACE", "command", "order"]

PASSED = b"+"
"""Follows the nonce: the shell has passed a signal on. The Python stub takes signals one by one, and doesn't report
them.
"""
RUN_BYTES = 4 << 20
"""Size of /run/redoma in a container, which holds the script or the main file."""
_MAX_DEPTH = 1_000_000  # CPython's recursion limit must fit in a C int
_SCRIPT = "run/redoma/script"
_IMPORT = "from redoma.backends.interpreter import Through, allow_calls\n"
_BLOCK = 10240  # tar pads to this
_FIND_BLOCK = 512  # find counts in units of this


@cache
def command(language: Language) -> list[str]:
    """Return the command of a container in which a stub waits for an order."""
    here = Path(__file__)
    if language == "python":
        return ["python3", "-I", "-X", "utf8", "-c", _python_stub(here)]
    # Prefer bash: see the comment on `set -m` in stub.sh.
    start = 'if command -v bash >/dev/null; then exec bash --noprofile --norc -c "$0"; else eval "$0"; fi'
    return ["sh", "-c", start, here.with_name("stub.sh").read_text("utf-8")]


def _python_stub(here: Path) -> str:
    """Return the text of `guest.py` with its import of Redoma's module replaced by that module's text."""
    shared = (here.parents[1] / "interpreter.py").read_text("utf-8").replace("from __future__ import annotations\n", "")
    before, line, after = here.with_name("guest.py").read_text("utf-8").partition(_IMPORT)
    if not line:
        raise AssertionError("guest.py no longer imports what is put into it")
    return f"{before}{shared}{after}"


def order(
    request: Request, env: Mapping[str, str] | None = None, files: Mapping[str, bytes] | None = None
) -> tuple[bytes, tuple[bytes, ...], bytes]:
    """Return the order for a waiting stub, the contents of the files to send after it, and the nonce.

    `env` and `files` (by absolute path) are Redoma's own, in addition to those of the request.
    """
    nonce = secrets.token_hex(16)
    environment = {**_ALWAYS, **(env or {}), **request.environment}
    make = _for_python if request.language == "python" else _for_shell
    head, contents = make(request, nonce, environment, {**request.files, **(files or {})})
    return head, contents, nonce.encode()


_ALWAYS = {"HOME": "/tmp", "LANG": "C.UTF-8"}  # noqa: S108 - inside the container


def _for_python(
    request: Request, nonce: str, env: Mapping[str, str], files: Mapping[str, bytes]
) -> tuple[bytes, tuple[bytes, ...]]:
    told = {
        "source": request.code,
        "arguments": list(request.argv),
        "env": dict(env),
        "files": [(name, len(content)) for name, content in files.items()],
        "outputs": bool(request.outputs),
        "most": MAX_BYTES,
        "recursion": min(request.limits.recursion, _MAX_DEPTH),
        "nonce": nonce,
    }
    # marshal, because an interpreter can read it without importing anything; version 4 works from 3.4 on. A name that
    # is not UTF-8 arrives as the same bytes.
    head = marshal.dumps(told, 4)
    return len(head).to_bytes(4, "big") + head, tuple(files.values())


def _for_shell(
    request: Request, nonce: str, env: Mapping[str, str], files: Mapping[str, bytes]
) -> tuple[bytes, tuple[bytes, ...]]:
    script = request.code.encode("utf-8", "surrogateescape") if request.language != "command" else None
    if script is not None and len(script) > RUN_BYTES - _BLOCK:
        raise Unsupported(
            "the script is too long for a container",
            why=f"it has {len(script)} bytes, where {RUN_BYTES - _BLOCK} may be",
            next="pass what it works on as files",
        )
    argv = request.argv
    if request.interpreter:
        argv = request.interpreted(f"/{_SCRIPT}")
    elif script is not None:
        argv = ("bash", "--noprofile", "--norc", f"/{_SCRIPT}", *request.argv)
    archive = _archive(files, script)
    env = dict(env)
    path = _quoted(env.pop("PATH")) if "PATH" in env else '"$PATH"'
    words = ["env", "-i", f"PATH={path}", *(f"{name}={_quoted(value)}" for name, value in env.items())]
    line = (
        f"nonce={nonce} blocks={len(archive) // _BLOCK} outputs={'1' if request.outputs else ''} "
        f"most={MAX_BYTES // _FIND_BLOCK} large={_quoted(TOO_LARGE)} path={path} "
        f"program={_quoted(argv[0])}; set -- {' '.join(words)} {' '.join(map(_quoted, argv))}\n"
    )
    return line.encode("utf-8", "surrogateescape"), (archive,)


def _quoted(word: str) -> str:
    """Quote a word for a shell on one line: the stub's variable `l` holds a newline."""
    return shlex.quote(word).replace("\n", "'\"$l\"'") if "\n" in word else shlex.quote(word)


def _archive(files: Mapping[str, bytes], script: bytes | None) -> bytes:
    if not files and script is None:
        return b""
    import tarfile

    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:

        def add(name: str, content: bytes | None) -> None:
            about = tarfile.TarInfo(name)
            about.mode = 0o600 if content is not None else 0o700
            about.size = len(content or b"")
            about.type = tarfile.REGTYPE if content is not None else tarfile.DIRTYPE
            archive.addfile(about, io.BytesIO(content or b""))

        made: set[str] = set()
        for name, content in files.items():
            if name.startswith("/"):
                add(name[1:], content)
                continue
            *above, _ = name.split("/")
            for depth in range(1, len(above) + 1):
                if (directory := "/".join(above[:depth])) not in made:
                    made.add(directory)
                    add(f"{WORKSPACE[1:]}/{directory}", None)
            add(f"{WORKSPACE[1:]}/{name}", content)
        if script is not None:
            add(_SCRIPT, script)
    return stream.getvalue()
