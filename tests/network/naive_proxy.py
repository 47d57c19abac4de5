"""An allowlist proxy with the usual mistakes, for controls: what gets through this one is a real attack."""

from __future__ import annotations

import contextlib
import functools
import re
import socket
import threading
from collections.abc import Callable, Collection, Mapping

from network_stage import AUTHORITY, PROXY_AUTHORITY, trusting


class NaiveProxy:
    """Compares the host of a CONNECT, or of the first URL, with a list, and passes on whatever follows.

    `allowed` are names of hosts; None allows all. All of them are on this machine's loopback. With `secrets`
    (placeholder → value) TLS ends here, and placeholders are replaced wherever they stand. Nothing is redacted.
    """

    def __init__(self, allowed: Collection[str] | None, secrets: Mapping[str, str] | None = None) -> None:
        self._allowed, self._secrets = allowed, secrets or {}
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._server.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        for one in [self._server, *self._open]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in [self._server, *self._open]:
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                self._open.append(client)
                self._start(functools.partial(self._serve, client), client)

    def _start(self, work: Callable[[], None], client: socket.socket) -> None:
        def quietly() -> None:
            try:
                work()
            except (OSError, ValueError):
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)

        thread = threading.Thread(target=quietly)
        self._threads.append(thread)
        thread.start()

    def _serve(self, client: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            data += client.recv(65536) or b"\r\n\r\n"
        method, target, _ = data.split(b" ", 2)
        found = re.fullmatch(rb"(?:http://)?([^/:]+):(\d+)(/.*)?", target)
        if found is None:
            raise ValueError("no host")
        host, port, path = found[1].decode(), int(found[2]), found[3] or b"/"
        if self._allowed is not None and host not in self._allowed:
            client.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            raise ValueError("a host that is not allowed")
        there = socket.create_connection(("127.0.0.1", port))
        self._open.append(there)
        if method == b"CONNECT":
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            data = data.partition(b"\r\n\r\n")[2]
            if self._secrets:
                client = PROXY_AUTHORITY.context(host).wrap_socket(client, server_side=True)
                there = trusting(AUTHORITY).wrap_socket(there, server_hostname=host)
                self._open += [client, there]
                # one direction after the other: two threads must not use one TLS connection
                there.sendall(self._filled(_request(client)))
                return self._pass(there, client)
        else:
            data = data.replace(target, path, 1)
        there.sendall(data)
        self._start(lambda: self._pass(there, client), client)
        return self._pass(client, there)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    def _filled(self, data: bytes) -> bytes:
        for placeholder, value in self._secrets.items():
            data = data.replace(placeholder.encode(), value.encode())
        return data


def _request(client: socket.socket) -> bytes:
    """Return a whole request."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += client.recv(65536) or b"\r\n\r\n"
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", data)
    size = data.index(b"\r\n\r\n") + 4 + (int(length[1]) if length else 0)
    while len(data) < size and (more := client.recv(65536)):
        data += more
    return data
