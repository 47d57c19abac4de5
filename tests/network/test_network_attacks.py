"""Ways out of a cell that names one host, tried from inside.

Each is first made by an ordinary process, where it must succeed: what never works proves nothing.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from network_stage import Host

from redoma import Executor, Status

SPELLINGS = ("127.0.0.1", "2130706433", "0177.0.0.1", "0x7f000001", "0x7f.1", "127.1", "017700000001")
"""One address, as the C library reads it."""
V6_SPELLINGS = ("::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1", "::ffff:7f00:1")


class Target:
    """A service of this machine, by TCP and UDP, that answers whatever it is sent: a name server would."""

    def __init__(self) -> None:
        self._sockets = [socket.socket(socket.AF_INET6, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)]
        tcp, udp = self._sockets
        for one in self._sockets:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            one.settimeout(0.1)
        tcp.bind(("::", 0))
        self.port: int = tcp.getsockname()[1]
        udp.bind(("::", self.port))
        tcp.listen(64)
        self.heard, self._over = 0, threading.Event()
        self._threads = [threading.Thread(target=self._tcp), threading.Thread(target=self._udp)]
        for thread in self._threads:
            thread.start()

    def _tcp(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._sockets[0].accept()
            except TimeoutError:
                continue
            with connection:
                self.heard += 1
                connection.settimeout(5)
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nanswered")

    def _udp(self) -> None:
        while not self._over.is_set():
            try:
                _, address = self._sockets[1].recvfrom(1000)
            except TimeoutError:
                continue
            self.heard += 1
            self._sockets[1].sendto(b"answered", address)

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()


@pytest.fixture
def target() -> Iterator[Target]:
    found = Target()
    yield found
    found.close()


def own_address() -> str:
    """An address of this machine that is not of its loopback, if it has one. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


DIRECT = """
import json, socket, sys
port, addresses = int(sys.argv[1]), sys.argv[2:]
found = {}
def tried(name, attempt):
    try:
        found[name] = b"answered" in attempt()
    except OSError:
        found[name] = False
def tcp(address):
    with socket.create_connection((address, port), 5) as there:
        there.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        return there.recv(1000)
def udp(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as there:
        there.settimeout(5)
        there.connect((address, port))  # then the kernel tells that nobody listens there
        query = b"\\x12\\x34\\x01\\x00\\x00\\x01" + b"\\x00" * 6 + b"\\x03api\\x04test\\x00\\x00\\x01\\x00\\x01"
        there.send(query)
        return there.recv(1000)
for address in addresses:
    tried("tcp " + address, lambda: tcp(address))
    tried("dns " + address, lambda: udp(address))
print(json.dumps(found))
"""


def test_no_address_of_this_machine_is_reached_from_a_cell(jail: Executor, target: Target) -> None:
    """By TCP, and by UDP as a question to a name server; in every spelling that the C library takes."""
    addresses = [*SPELLINGS, *V6_SPELLINGS, own_address()]
    done = subprocess.run(
        [sys.executable, "-c", DIRECT, str(target.port), *addresses],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    control = json.loads(done.stdout)
    assert [way for way, went in control.items() if not went] == [], "each works without the cell"
    heard = target.heard
    result = jail.run(DIRECT, args=[str(target.port), *addresses], network=["api.test"], policy="none")
    assert result.status is Status.OK, result.stderr
    assert json.loads(result.stdout) == dict.fromkeys(control, False)
    assert target.heard == heard


BY_PROXY = """
import json, socket, struct, sys
port, hosts = int(sys.argv[1]), sys.argv[2:]
request = b"GET / HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n"
def talk(*pieces):
    got = b""
    with socket.create_connection(("127.0.0.1", 3128), 10) as there:
        there.settimeout(10)
        for piece in pieces:
            there.sendall(piece)
            got += there.recv(1000)
        while more := there.recv(1000):
            got += more
    return got
found = {}
def tried(name, *pieces):
    try:
        found[name] = b"answered" in talk(*pieces)
    except OSError:
        found[name] = False
for host in hosts:
    there = ("[%s]:%d" if ":" in host else "%s:%d") % (host, port)
    tried("get " + host, f"GET http://{there}/ HTTP/1.1\\r\\nHost: {there}\\r\\nConnection: close\\r\\n\\r\\n".encode())
    tried("connect " + host, f"CONNECT {there} HTTP/1.1\\r\\nHost: {there}\\r\\n\\r\\n".encode(), request)
    name = host.encode()
    tried("socks " + host, b"\\5\\1\\0", b"\\5\\1\\0\\3" + bytes([len(name)]) + name + struct.pack(">H", port), request)
print(json.dumps(found))
"""


def test_no_spelling_of_an_address_gets_through_the_proxy_from_a_cell(jail: Executor, target: Target) -> None:
    """As a request, as a tunnel, and by SOCKS. The control is the same code with a rule for the address."""
    hosts = [*SPELLINGS, "::1", "0:0:0:0:0:0:0:1"]
    named = [f"127.0.0.1:{target.port}", f"[::1]:{target.port}"]
    control = jail.run(BY_PROXY, args=[str(target.port), *hosts], network=named, policy="none")
    assert control.status is Status.OK, control.stderr
    went = json.loads(control.stdout)
    assert all(went[f"get {host}"] for host in hosts), went
    assert all(any(went[f"{way} {host}"] for host in hosts) for way in ("get", "socks")), went
    heard = target.heard
    result = jail.run(BY_PROXY, args=[str(target.port), *hosts], network=["api.test"], policy="none")
    assert result.status is Status.OK, result.stderr
    assert json.loads(result.stdout) == dict.fromkeys(went, False)
    assert target.heard == heard
    assert {one.decision for one in result.network} == {"denied"}
    assert {one.host for one in result.network} == {"127.0.0.1", "::1"}, "told as what they are, however spelt"


def test_an_address_of_ipv4_inside_of_one_of_ipv6_gets_nobody_through_the_proxy(jail: Executor, target: Target) -> None:
    """By the C library it is the same place: see the control above."""
    mapped = ["::ffff:127.0.0.1", "::ffff:7f00:1"]
    result = jail.run(BY_PROXY, args=[str(target.port), *mapped], network=["api.test"], policy="none")
    assert set(json.loads(result.stdout).values()) == {False}
    assert target.heard == 0


def test_the_host_that_is_named_is_reached_meanwhile(jail: Executor, api: Host) -> None:
    """The control of all of this: a cell that names a host does have a way to that."""
    code = f"import urllib.request; urllib.request.urlopen('https://{api.url}/x').status"
    assert jail.run(code, network=[f"GET {api.rule}"], policy="none").value == 200
