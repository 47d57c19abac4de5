"""Attacks by the files that are returned: the side that collects them isn't confined."""

from __future__ import annotations

from jail_attack import MARKER, NAIVE, SLOW, Attack, Seen


def _leaked(seen: Seen) -> bool:
    return any(MARKER.encode() in content for content in seen.files.values())


def _hung(seen: Seen) -> bool:
    return "hung" in seen.left_out or seen.status == "timeout" or seen.wall > 15 * SLOW


def _brings(name: str, code: str, **more: object) -> Attack:
    defaults = {"outputs": ("**",), "control": NAIVE, "succeeded": _leaked}
    return Attack(name=name, code=code, **{**defaults, **more})  # type: ignore[arg-type]


_PASSWD = "if not os.path.exists(T.secret): open('why.txt', 'w').write('the target is not even there')\n"

ATTACKS = [
    _brings("returns a link to a file of the host", _PASSWD + "os.symlink(T.secret, 'result.txt')"),
    _brings(
        "returns a link to a file of the host by its name",
        "os.symlink(T.secret, 'result.txt')",
        outputs=("result.txt",),
    ),
    _brings("returns a directory of the host", "os.symlink(T.place, 'results')", outputs=("results/**", "results/*")),
    _brings(
        "returns a file in a linked directory by its name",
        "os.symlink(T.place, 'results')",
        outputs=("results/secret.txt",),
    ),
    _brings("returns the root of whoever collects", "os.symlink('/proc/self/root' + T.secret, 'result.txt')"),
    _brings(
        "returns a link that climbs",
        "os.makedirs('a/b')\nos.symlink('../' * 40 + T.secret.lstrip('/'), 'a/b/result.txt')",
    ),
    _brings(
        "returns the directory itself as a link",
        "here = os.getcwd()\nos.rename(here, here + '-moved')\nos.symlink(T.place, here)\nos.rmdir(here + '-moved')",
    ),
    _brings(
        "swaps a file for a link while it is collected",
        """
import time
for number in range(50): open(f'file{number}', 'w').write('x')
if os.fork() == 0:
    os.setsid()
    null = os.open('/dev/null', os.O_RDWR)
    for fd in range(3): os.dup2(null, fd)
    os.symlink(T.secret, '.link')
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        for number in range(50):
            try:
                os.link('.link', '.next', follow_symlinks=False)
                os.rename('.next', f'file{number}')
            except OSError: pass
    os._exit(0)
end = time.monotonic() + 10
while not os.path.islink('file0') and time.monotonic() < end: time.sleep(0.01)
""",
    ),
    _brings("returns a pipe that nobody writes to", "os.mkfifo('result.txt')", succeeded=_hung),
    _brings(
        "returns a pipe that nobody writes to by its name",
        "os.mkfifo('result.txt')",
        outputs=("result.txt",),
        succeeded=_hung,
    ),
    _brings(
        "returns an endless device",
        "os.symlink('/dev/zero', 'result.bin')",
        succeeded=lambda seen: any(len(content) > 1 << 20 for content in seen.files.values()),
    ),
    _brings(
        "returns a socket",
        "import socket\nsocket.socket(socket.AF_UNIX).bind('result.sock')\nos.symlink(T.secret, 'x')",
    ),
    _brings(
        "returns a file far larger than anybody wants",
        "with open('huge', 'wb') as file: file.truncate(70 << 20)",
        limits={"file_size": 1 << 27},
        succeeded=lambda seen: max(int(seen.left_out.get("bytes", 0)), sum(map(len, seen.files.values()))) > 1 << 26,
    ),
    _brings(
        "returns more files than anybody counts",
        "for number in range(1500): open(f'f{number}', 'w').close()",
        limits={"files": 10_000},
        succeeded=lambda seen: len(seen.files) > 1000,
    ),
    _brings(
        "returns files with names that break lists and terminals",
        r"""
for name in (b'new\nline', b'\xff\xfe', b'\x1b[31mred', b'-rf', b'a\\b', b'$(touch x)', 'ö'.encode(), b' ', b'\r'):
    open(name, 'w').write('x')
os.symlink(T.secret, 'x')
""",
    ),
    _brings(
        "returns a tree deeper than any stack",
        "os.symlink(T.secret, 'x')\nfor _ in range(1100):\n    os.mkdir('d')\n    os.chdir('d')",
        limits={"files": 10_000},
        succeeded=lambda seen: _leaked(seen) or seen.status == "failed",
    ),
    _brings(
        "returns what whoever collects can't open",
        "open('x', 'w').write('x')\nos.chmod('x', 0)\nos.mkdir('d')\nopen('d/y', 'w').close()\nos.chmod('d', 0)\n"
        "os.symlink(T.secret, 'z')",
        succeeded=lambda seen: _leaked(seen) or seen.status == "failed",
    ),
    _brings(
        "returns a path that leads out again",
        "os.makedirs('a/..b/...')\nopen('a/..b/.../x', 'w').close()\nos.symlink('..', 'up')\nos.symlink(T.secret, 'z')",
        succeeded=lambda seen: (
            _leaked(seen) or any(path.startswith("/") or ".." in path.split("/") for path in seen.files)
        ),
    ),
]
