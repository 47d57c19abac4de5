"""The host as the attacks find it: a secret, listeners, a process, and a directory that any user may write to."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import secrets
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from jail_attack import MARKER, SLOW, only_with_ipv6

from redoma.backends.jail.configuration import UNPRIVILEGED_ID
from redoma.lib.files import remove_tree

_NAMESPACES = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
_HIT = "hit"
_VICTIM = """
import os, signal, sys
def say(got):
    # The sender's pid is no proof: kill(-1) sends 0 to everybody after it has met a process of a namespace below.
    os.write(1, f"hit signal={got.si_signo} code={got.si_code} pid={got.si_pid} uid={got.si_uid}\\n".encode())
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(*[int(sys.argv[1])] * 3)
    os.setresuid(*[int(sys.argv[1])] * 3)
awaited, end = {signal.SIGUSR1, signal.SIGURG}, signal.SIGTERM
signal.pthread_sigmask(signal.SIG_BLOCK, {*awaited, end})
os.write(1, b"ready\\n")
for _ in range(300):
    got = signal.sigtimedwait({*awaited, end}, 1)
    if got and got.si_signo != end: say(got)
    if got and got.si_signo == end:  # what had arrived before it counts, too
        while got := signal.sigtimedwait(awaited, 0): say(got)
        break
"""


class Victim:
    """A process of the host that notes the signals it gets. It ends by itself after five minutes."""

    def __init__(self, token: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _VICTIM, str(UNPRIVILEGED_ID), f"victim-{token}"],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        self._ready = self._output.readline()
        self.pid = self._process.pid

    @property
    def _output(self) -> Any:
        return self._process.stdout

    def end(self) -> list[str]:
        """End it. Returns the signals that reached it, with their senders as the kernel names them."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        self._process.terminate()
        lines: list[str] = self._output.read().decode().splitlines()
        self._process.wait()
        self._output.close()
        return [line for line in lines if line.startswith(_HIT)]


class Stage:
    def __init__(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="attack-stage-"))
        self.place.chmod(0o755)
        self._secret = self.place / "secret.txt"
        self._secret.write_text(MARKER)
        self._open = self.place / "open"
        self._open.mkdir()
        self._open.chmod(0o777)
        self._host_secret = os.environ["HOST_SECRET"]
        self._done = threading.Event()
        self._listeners = _Listeners(self.place)
        self._threads = [threading.Thread(target=work, args=(self._done,)) for work in self._listeners.work]
        for thread in self._threads:
            thread.start()

    def targets(self, token: str, victim: Victim | None) -> dict[str, Any]:
        """Return what an attack is given. It must find the secrets themselves."""
        return {
            **self._listeners.addresses,
            "secret": str(self._secret),
            "place": str(self.place),
            "temp": tempfile.gettempdir(),
            "plant": str(self.plant(token)),
            "file": str(self._file(token)),
            "token": token,
            "victim": victim.pid if victim else 0,
            "nice": os.nice(0),
            "hostname": socket.gethostname(),
            "prefix": sys.base_prefix,
            "packages": str(Path(__file__).parent),
            "guest_uid": UNPRIVILEGED_ID,
            "digest": hashlib.sha256(self._host_secret.encode()).hexdigest(),
            "passwd": hashlib.sha256(Path("/etc/passwd").read_bytes()).hexdigest(),
            "root_device": _device_of_root(),
            "shadow": _identity("/etc/shadow"),
            "root_home": _identity("/root"),
            "handle": _handle(str(self._secret)),
            **{f"ns_{name}": os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES},
        }

    def _file(self, token: str) -> Path:
        """Return a file of the host that no other attack uses."""
        path = self.place / f"file-{token}"
        path.write_text("of the host")
        return path

    def plant(self, token: str) -> Path:
        return self._open / f"planted-{token}"

    def close(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()
        self._listeners.close()
        remove_tree(self.place)


def _identity(path: str) -> str:
    with suppress(OSError):
        about = os.stat(path)
        return f"{about.st_dev}:{about.st_ino}"
    return "none"


def _device_of_root() -> str:
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return next((mount[2] for mount in reversed(mounts) if mount[4] == "/"), "none")


def _handle(path: str) -> str:
    """Return the argument for `open_by_handle_at`: with it, any descriptor of the same disk and a capability, paths
    don't matter.
    """
    handle = ctypes.create_string_buffer(struct.pack("II", 128, 0), 136)
    mount = ctypes.c_int()
    number = 264 if platform.machine() == "aarch64" else 303
    if ctypes.CDLL(None).syscall(number, -100, path.encode(), handle, ctypes.byref(mount), 0):
        return ""
    size = struct.unpack_from("I", handle.raw)[0]
    return handle.raw[: 8 + size].hex()


class _Listeners:
    """Listeners of the host. A client that reaches one gets the marker."""

    def __init__(self, place: Path) -> None:
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self._tcp6 = self._tcp if only_with_ipv6() else socket.create_server(("::1", 0), family=socket.AF_INET6)
        self._path = _unix(str(place / "listener.sock"))
        (place / "listener.sock").chmod(0o666)
        name = f"jail-attacks-{secrets.token_hex(8)}"
        self._abstract = _unix("\0" + name)
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", 0))
        self._dns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._dns.bind(("127.0.0.1", 0))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._knock = free.getsockname()[1]
        self.addresses = {
            "tcp": self._tcp.getsockname()[1],
            "tcp6": self._tcp6.getsockname()[1],
            "unix": str(place / "listener.sock"),
            "abstract": name,
            "udp": self._udp.getsockname()[1],
            "dns": self._dns.getsockname()[1],
            "knock": self._knock,
        }
        self.work = (self._serve, self._knocking)

    def _serve(self, done: threading.Event) -> None:
        with selectors.DefaultSelector() as selector:
            for listener in {self._tcp, self._tcp6, self._path, self._abstract, self._udp, self._dns}:
                selector.register(listener, selectors.EVENT_READ)
            while not done.is_set():
                for key, _ in selector.select(0.1):
                    with suppress(OSError):
                        self._greet(key.fileobj)  # type: ignore[arg-type]

    def _greet(self, listener: socket.socket) -> None:
        if listener.type == socket.SOCK_STREAM:
            with listener.accept()[0] as connection:
                connection.sendall(MARKER.encode())
            return
        query, sender = listener.recvfrom(2048)
        # A name server's answer: the query's own id and question, and one text record.
        text = bytes([len(MARKER)]) + MARKER.encode()
        answer = query[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + query[12:] + b"\xc0\x0c\0\x10\0\1\0\0\0\0"
        answer += struct.pack(">H", len(text)) + text
        listener.sendto(answer if listener is self._dns else MARKER.encode(), sender)

    def _knocking(self, done: threading.Event) -> None:
        """Connect as a client of the host, for a guest that listens where the host would reach it."""
        while not done.wait(0.05 * SLOW):
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._knock), timeout=0.2) as knock:
                knock.sendall(b"from the host")

    def close(self) -> None:
        for listener in (self._tcp, self._tcp6, self._path, self._abstract, self._udp, self._dns):
            listener.close()


def _unix(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(16)
    return listener
