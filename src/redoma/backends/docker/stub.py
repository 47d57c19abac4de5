"""What waits inside a container, and the order that it waits for."""

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
"""Behind its number: the shell has passed a signal on. Python's stub takes them one by one, and says nothing."""
RUN_BYTES = 4 << 20
"""Of /run/redoma in a container: the script, or the main file."""
_MAX_DEPTH = 1_000_000  # CPython takes no larger recursion limit than an int of C
_SCRIPT = "run/redoma/script"
_IMPORT = "from redoma.backends.interpreter import Through, allow_calls\n"
_BLOCK = 10240  # what tar pads to
_FIND_BLOCK = 512  # what find counts in


@cache
def command(language: Language) -> list[str]:
    """The command of a container in which a stub waits for an order."""
    here = Path(__file__)
    if language == "python":
        return ["python3", "-I", "-X", "utf8", "-c", _python_stub(here)]
    # A bash does better: see the remark on `set -m`.
    start = 'if command -v bash >/dev/null; then exec bash --noprofile --norc -c "$0"; else eval "$0"; fi'
    return ["sh", "-c", start, here.with_name("stub.sh").read_text("utf-8")]


def _python_stub(here: Path) -> str:
    """`guest.py`, with the text of what it imports of ours in the place of that import."""
    shared = (here.parents[1] / "interpreter.py").read_text("utf-8").replace("from __future__ import annotations\n", "")
    before, line, after = here.with_name("guest.py").read_text("utf-8").partition(_IMPORT)
    if not line:
        raise AssertionError("guest.py no longer imports what is put into it")
    return f"{before}{shared}{after}"


def order(request: Request) -> tuple[bytes, tuple[bytes, ...], bytes]:
    """What to write to a waiting stub: the order itself, then the contents of the files; and its secret number."""
    nonce = secrets.token_hex(16)
    head, contents = (_for_python if request.language == "python" else _for_shell)(request, nonce)
    return head, contents, nonce.encode()


_ALWAYS = {"HOME": "/tmp", "LANG": "C.UTF-8"}  # noqa: S108 - inside the container


def _for_python(request: Request, nonce: str) -> tuple[bytes, tuple[bytes, ...]]:
    told = {
        "source": request.code,
        "arguments": list(request.argv),
        "env": {**_ALWAYS, **request.environment},
        "files": [(name, len(content)) for name, content in request.files.items()],
        "outputs": bool(request.outputs),
        "most": MAX_BYTES,
        "recursion": min(request.limits.recursion, _MAX_DEPTH),
        "nonce": nonce,
    }
    # What an interpreter reads without importing anything; version 4 is known to all from 3.4 on. A name that is no
    # UTF-8 arrives as the bytes it was.
    head = marshal.dumps(told, 4)
    return len(head).to_bytes(4, "big") + head, tuple(request.files.values())


def _for_shell(request: Request, nonce: str) -> tuple[bytes, tuple[bytes, ...]]:
    script = request.code.encode("utf-8", "surrogateescape") if request.language == "bash" else None
    if script is not None and len(script) > RUN_BYTES - _BLOCK:
        raise Unsupported(
            "the script is too long for a container",
            why=f"it has {len(script)} bytes, where {RUN_BYTES - _BLOCK} may be",
            next="pass what it works on as files",
        )
    argv = request.argv if script is None else ("bash", "--noprofile", "--norc", f"/{_SCRIPT}", *request.argv)
    archive = _archive(request.files, script)
    env = {**_ALWAYS, **request.environment}
    path = _quoted(env.pop("PATH")) if "PATH" in env else '"$PATH"'
    words = ["env", "-i", f"PATH={path}", *(f"{name}={_quoted(value)}" for name, value in env.items())]
    line = (
        f"nonce={nonce} blocks={len(archive) // _BLOCK} outputs={'1' if request.outputs else ''} "
        f"most={MAX_BYTES // _FIND_BLOCK} large={_quoted(TOO_LARGE)} path={path} "
        f"program={_quoted(argv[0])}; set -- {' '.join(words)} {' '.join(map(_quoted, argv))}\n"
    )
    return line.encode("utf-8", "surrogateescape"), (archive,)


def _quoted(word: str) -> str:
    """Quote a word for a shell on one line: the stub's variable `l` holds a line end."""
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
            *above, _ = name.split("/")
            for depth in range(1, len(above) + 1):
                if (directory := "/".join(above[:depth])) not in made:
                    made.add(directory)
                    add(f"{WORKSPACE[1:]}/{directory}", None)
            add(f"{WORKSPACE[1:]}/{name}", content)
        if script is not None:
            add(_SCRIPT, script)
    return stream.getvalue()
