"""The stub that waits inside a container for Python code.

It runs on Python 3.8 or later from the text of this file alone (`python3 -I -c`), with the text of
`backends/interpreter.py` in place of its import. So it may use only the standard library.

It is pid 1 of the container. It reports that it is ready, reads one order from its input (and not a byte more: the rest
is the program's input), writes the files, and forks. The child becomes the unreviewed code. The parent passes signals
on, reaps processes, sends the files back if requested, and exits with the child's status.

Parent and child have the same rights, so the child can forge everything that is sent from here. That only affects its
own status and files: time, memory and the container's end are decided by the engine and the host.
"""

from __future__ import annotations

# As few imports as possible: a container that was not made ahead waits for them.
import io
import marshal
import os
import signal
import sys

from redoma.backends.interpreter import Through, allow_calls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

READY, TAKEN = b"redoma: ready\n", b"redoma: taken\n"
MAIN, WORKSPACE = "/run/redoma/main.py", "/tmp/workspace"  # noqa: S108 - names inside the container, where it is alone
TOO_LARGE = "redoma: too large: "  # target of a symlink that stands for a file too large to send; followed by its size
END = 16  # the signal (SIGSTKFLT) by which the host ends the program and asks for the files; programs don't use it
_MAX_KEPT = 2 << 20  # bytes of source that are also written to a file, for processes that re-execute it
# Frames between `allow_calls` and the first call of the code. Before Python 3.12 calls into C count as well.
_OUR_FRAMES = 4 if sys.version_info < (3, 12) else 0
_SIGNALS = range(1, 32)


def main() -> None:
    # Blocked signals stay pending, so one that arrives early or while another is passed on is not lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    os.makedirs(WORKSPACE, 0o700, exist_ok=True)
    write(1, READY)
    header = read(4)
    if len(header) < 4:
        os._exit(0)  # the host closed the connection
    order = marshal.loads(read(int.from_bytes(header, "big")))  # noqa: S302 - from the host, before anything foreign ran
    write(1, TAKEN)
    broken = place(order["files"])
    child = 0
    if broken is None:
        child = start()
        if child == 0:
            run(order)
            return
    watch(child, order, broken)


def read(size: int) -> bytes:
    pieces: list[bytes] = []
    while size > 0:
        piece = os.read(0, min(size, 1 << 20))
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def write(number: int, data: bytes) -> None:
    while data:
        data = data[os.write(number, data) :]


def place(files: list[tuple[str, int]]) -> str | None:
    """Write the files straight from the input, so that no file is in memory as a whole. Return the first error, or
    None.
    """
    broken = None
    for name, size in files:
        try:
            path = os.path.join(WORKSPACE, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                while size > 0:
                    piece = read(min(size, 1 << 16))
                    size -= len(piece) or size
                    file.write(piece)
        except OSError as error:
            broken = broken or f"place the file {name!r}: {error.strerror}"
            read(size)
    return broken


# --- the parent ---


def start() -> int:
    """Fork. In the child, signals have the interpreter's default handlers."""
    child = os.fork()
    if child == 0:
        for number in set(_SIGNALS) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    return child


def kill_others() -> None:
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return


def watch(child: int, order: dict[str, Any], broken: str | None) -> NoReturn:
    status = 125 << 8
    while child:
        number = signal.sigwait(_SIGNALS)
        if number == END:
            kill_others()
        elif number != signal.SIGCHLD:
            os.kill(child, number)
        else:
            for pid, ending in ended():
                if pid == child:
                    child, status = 0, ending
    kill_others()  # from here on only this process writes output
    code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    try:
        last = "!" + broken if broken else str(peak()) if os.WIFSIGNALED(status) else "="
        write(1, f"{order['nonce']}{last}\n".encode("utf-8", "replace"))
        if order["outputs"]:
            send_files(order["most"])
    finally:
        os._exit(code)


def peak() -> int:
    """Return the most memory that a process of the program has had, in KiB."""
    import resource

    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def ended() -> Iterator[tuple[int, int]]:
    """Yield the pid and status of every ended process: one SIGCHLD can stand for many."""
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found
    except ChildProcessError:
        return


def send_files(most: int) -> None:
    """Send the whole workspace as a tar. Files larger than `most` are sent without content: a sparse file can be larger
    than any disk. The host picks what it wants, and trusts none of it.
    """
    import tarfile

    with open(1, "wb", closefd=False) as out:
        with tarfile.open(fileobj=out, mode="w|", format=tarfile.GNU_FORMAT) as archive:
            for place, directories, names in os.walk(WORKSPACE):
                for name in sorted(directories + names):
                    path = os.path.join(place, name)
                    try:
                        about = archive.gettarinfo(path, os.path.relpath(path, WORKSPACE))
                        if about.isreg() and about.size > most:
                            about.type, about.linkname, about.size = tarfile.SYMTYPE, f"{TOO_LARGE}{about.size}", 0
                        if not about.isreg():
                            archive.addfile(about)
                            continue
                        with open(path, "rb") as file:
                            archive.addfile(about, file)
                    except (OSError, AttributeError):
                        # It can't be read, or it is a socket, which tar has no entry type for (`about` is None). The
                        # host reports it as missing if it was requested by name.
                        continue


# --- the child ---


def run(order: dict[str, Any]) -> None:
    os.chdir(WORKSPACE)
    environment = {"PATH": os.environ.get("PATH", os.defpath), **order["env"]}
    os.environ.clear()
    os.environ.update(environment)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # output from before a kill is kept
    if order["env"].get("PYTHONUNBUFFERED"):  # like the interpreter itself: also for incomplete lines
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__ = unbuffered(sys.stdout), unbuffered(sys.stderr)  # type: ignore[misc]
    sys.argv[:] = [MAIN, *order["arguments"]]
    sys.path.insert(0, WORKSPACE)
    source = order["source"]
    keep(source)
    main = type(sys)("__main__")
    main.__dict__.update(__file__=MAIN, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    allow_calls(order["recursion"], _OUR_FRAMES)
    try:
        # compile() of text ignores a `coding:` cookie: what runs is what the policy read.
        exec(compile(source, MAIN, "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - this is what we are for
    except SystemExit:
        raise
    except BaseException as error:
        fail(error)


def unbuffered(stream: Any) -> Any:
    encoding, errors = stream.encoding, stream.errors
    file = Through(stream.fileno(), "wb", closefd=False)
    return io.TextIOWrapper(file, encoding, errors, write_through=True)


def keep(source: str) -> None:
    """Write the source to a file: for tracebacks, and for processes that re-execute it."""
    if len(source) < _MAX_KEPT:
        try:
            with open(MAIN, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(source)
        except (OSError, UnicodeError):
            return  # then tracebacks have no source lines


def fail(error: BaseException) -> NoReturn:
    """Exit as the interpreter would, with a traceback that begins in the code and not here."""
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    error.__traceback__ = frames
    try:
        sys.excepthook(type(error), error, frames)
    except BaseException:
        sys.__excepthook__(type(error), error, frames)
    if isinstance(error, KeyboardInterrupt):
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(1)


if __name__ == "__main__":
    main()
