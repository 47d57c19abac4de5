"""What the proxy of a run passes on, and what it refuses: each refusal with a control that goes through."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import itertools
import socket
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from network_stage import AUTHORITY, PROXY_AUTHORITY, get, hosts, inside, proxied, trusting

from pace import SLOW
from redoma.lib.hosts import why_not_public
from redoma.models.network import NetworkRequest, host_rules, placeholder
from redoma.network.credentials import Credentials
from redoma.network.exchange import Exchange
from redoma.network.messages import MAX_RECORDS
from redoma.network.streams import Stream
from redoma.network.upstream import Denied, Failed, Upstream


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0


# --- ways in ---


async def test_a_named_host_is_reached_and_the_request_is_on_record() -> None:
    with hosts("api.test") as (host,):
        async with proxied([host.rule]) as served:
            answer = await served.say(get(f"http://{host.url}/a/b?token=x", "X-Mine: 1"))
    assert status(answer) == 200
    (record,) = served.proxy.records
    assert (record.host, record.port, record.method, record.path) == ("api.test", host.port, "GET", "/a/b")
    assert (record.status, record.decision, record.rule) == (200, "allowed", host.rule)
    assert record.sent > 0
    assert record.received > 0
    assert host.seen[0]["headers"]["host"] == host.url
    assert host.seen[0]["headers"]["x-mine"] == "1"
    assert host.seen[0]["path"] == "/a/b?token=x"


async def test_a_host_that_no_rule_names_is_refused_with_the_narrowest_rule_that_would() -> None:
    with hosts("api.test", "other.test") as (host, other):
        async with proxied([host.rule]) as served:
            answer = await served.say(get(f"http://other.test:{other.port}/x"))
            web = await served.say(get("http://api.github.com/x"))
            port = await served.say(get("http://api.test:1/x"))
    assert status(answer) == 403
    assert f"--allow-host other.test:{other.port}".encode() in answer
    assert b"--allow-host api.github.com\n" in web
    assert b"port 1 of api.test is named by no rule" in port
    assert not other.seen
    assert [one.decision for one in served.proxy.records] == ["denied"] * 3


async def test_tls_to_a_host_that_is_allowed_whole_is_a_tunnel() -> None:
    with hosts("api.test", tls=AUTHORITY) as (host,):
        async with proxied([host.rule]) as served:
            answer = await served.tls(host.url, "api.test", inside(host.url, "/x"), trusting(AUTHORITY))
            await served.recorded(1)
    assert status(answer) == 200
    (record,) = served.proxy.records
    assert (record.method, record.path, record.decision) == ("CONNECT", "", "allowed")


async def test_tls_is_read_where_a_rule_has_methods_or_paths() -> None:
    with hosts("api.test", tls=AUTHORITY) as (host,):
        async with proxied([f"GET {host.rule}/v1/**"]) as served:
            guest = trusting(PROXY_AUTHORITY)
            good = await served.tls(host.url, "api.test", inside(host.url, "/v1/x?q=1"), guest)
            path = await served.tls(host.url, "api.test", inside(host.url, "/v2/x"), guest)
            method = await served.tls(host.url, "api.test", inside(host.url, "/v1/x", method="DELETE"), guest)
            dots = await served.tls(host.url, "api.test", inside(host.url, "/v1/../v2/x"), guest)
            fresh = await served.tls(host.url, "api.test", inside(host.url, "/v1/x"), trusting(AUTHORITY))
            await served.recorded(5)
    assert status(good) == 200
    assert (status(path), status(method), status(dots)) == (403, 403, 403)
    assert b"DELETE api.test" in method
    assert b"broken off" in fresh, "only who trusts the proxy's own authority gets in"
    assert [seen["path"] for seen in host.seen] == ["/v1/x?q=1"]
    assert [one.decision for one in served.proxy.records] == ["allowed", "denied", "denied", "denied", "failed"]
    assert served.proxy.records[0].path == "/v1/x"


def socks(host: bytes, port: int, kind: int = 3) -> tuple[bytes, bytes]:
    address = bytes([len(host)]) + host if kind == 3 else host
    return b"\x05\x01\x00", b"\x05\x01\x00" + bytes([kind]) + address + struct.pack("!H", port)


async def speak_socks(port: int, host: bytes, to: int, data: bytes, kind: int = 3) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    greeting, command = socks(host, to, kind)
    writer.write(greeting)
    assert await reader.readexactly(2) == b"\x05\x00"
    writer.write(command)
    answer = await reader.readexactly(10)
    if answer[1] == 0:
        writer.write(data)
    rest = await reader.read()
    writer.close()
    return answer[1], rest


async def test_socks_reaches_named_hosts_only() -> None:
    with hosts("api.test") as (host,):
        async with proxied([host.rule]) as served:
            code, answer = await speak_socks(served.port, b"API.test.", host.port, inside(host.url, "/x"))
            denied, _ = await speak_socks(served.port, b"other.test", host.port, b"")
            raw, _ = await speak_socks(served.port, bytes([127, 0, 0, 1]), host.port, b"", kind=1)
            six, _ = await speak_socks(served.port, socket.inet_pton(socket.AF_INET6, "::1"), host.port, b"", kind=4)
    assert (code, status(answer)) == (0, 200)
    assert (denied, raw, six) == (2, 2, 2)


async def test_other_versions_and_commands_of_socks_are_refused() -> None:
    async with proxied(["api.test"]) as served:
        assert await served.say(b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00") == b""
        assert (await served.say(b"\x05\x01\x02")) == b"\x05\xff"
        bind = await served.say(b"\x05\x01\x00", then=b"\x05\x02\x00\x03\x08api.test\x01\xbb")
    assert bind[:2] + bind[2:4] == b"\x05\x00\x05\x07"


# --- names and addresses ---


@pytest.mark.parametrize(
    "spelt",
    ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "localhost"],
)
async def test_no_spelling_of_an_address_gets_around_the_names(spelt: str) -> None:
    with hosts("api.test") as (host,):
        async with proxied([host.rule]) as served:
            refused = await served.say(get(f"http://{spelt}:{host.port}/x"))
            tunnel = await served.say(get(f"{spelt}:{host.port}", f"Host: {spelt}:{host.port}", method="CONNECT"))
        async with proxied([f"127.0.0.1:{host.port}"]) as served:
            control = await served.say(get(f"http://127.0.0.1:{host.port}/x"))
    assert status(refused) == status(tunnel) == 403
    assert status(control) == 200
    assert len(host.seen) == 1


@pytest.mark.parametrize("where", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "fd00::1"])
async def test_a_name_that_leads_inside_is_refused_unless_the_rule_has_the_address(where: str) -> None:
    with hosts("inner.test") as (host,):
        async with proxied([f"inner.test:{host.port}"], names={"inner.test": [where]}) as served:
            answer = await served.say(get(f"http://{host.url}/x"))
        async with proxied([host.rule]) as served:
            control = await served.say(get(f"http://{host.url}/x"))
    assert status(answer) == 403
    assert f"--allow-host inner.test:{host.port}=".encode() in answer
    assert status(control) == 200


async def test_a_name_is_resolved_once_for_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebinding: the name service gives a public address to who checks it, and that of this machine to who connects.
    The control asks it twice."""
    answers, connect = itertools.cycle([["1.1.1.1", "10.0.0.1"], ["127.0.0.1"]]), asyncio.open_connection

    async def resolve(_name: str) -> list[str]:
        return next(answers)

    async def connect_here(address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if address != "127.0.0.1":
            raise ConnectionRefusedError("no test leaves this machine")
        return await connect(address, port)

    async def ask_twice(port: int) -> None:
        assert not why_not_public(ipaddress.ip_address((await resolve("rebind.test"))[0]))
        await read(Stream(*await asyncio.open_connection((await resolve("rebind.test"))[0], port)))

    async def read(stream: Stream) -> None:
        await stream.write(get("/x", "Host: rebind.test"))
        await stream.read()
        stream.close()

    monkeypatch.setattr("asyncio.open_connection", connect_here)
    with hosts("inner.test") as (host,):
        await ask_twice(host.port)
        assert len(host.seen) == 1, "the control"
        rules, upstream = host_rules([f"rebind.test:{host.port}"]), Upstream(resolve)
        for _ in range(4):
            with pytest.raises(Failed):
                await read(await upstream.connect("rebind.test", host.port, rules))
        with pytest.raises(Denied, match=r"is at 127\.0\.0\.1"):  # another run, which asks when it is the turn of this
            await read(await Upstream(resolve).connect("rebind.test", host.port, rules))
        assert len(host.seen) == 1


async def test_names_that_take_long_do_not_hold_up_those_of_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control has the threads of all runs in one pool, as asyncio has."""
    over, real = threading.Event(), socket.getaddrinfo

    def lookup(host: str, *args: Any, **more: Any) -> Any:
        if host.endswith(".slow.test"):  # of which a guest may name as many as it likes
            over.wait(60)
            raise socket.gaierror(-2, "Name or service not known")
        return real("127.0.0.1", *args, **more)

    async def shared(name: str) -> list[str]:
        found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
        return [str(where[0]) for *_, where in found]

    async def is_found(one: Upstream, other: Upstream) -> bool:
        rules = host_rules(["*.slow.test", "quick.test"])
        slow = [asyncio.ensure_future(one.connect(f"n{number}.slow.test", 443, rules)) for number in range(64)]
        await asyncio.sleep(0.1)
        quick = asyncio.ensure_future(other.connect("quick.test", 443, rules))
        done, _ = await asyncio.wait([quick], timeout=2 * SLOW)
        over.set()
        await asyncio.gather(quick, *slow, return_exceptions=True)
        over.clear()
        return bool(done)

    monkeypatch.setattr("socket.getaddrinfo", lookup)
    assert not await is_found(Upstream(shared), Upstream(shared))
    assert await is_found(Upstream(), Upstream())


async def test_a_name_that_is_not_found_is_a_failure_and_no_refusal() -> None:
    async with proxied(["api.test"]) as served:
        answer = await served.say(get("http://api.test/x"))
    assert status(answer) == 502
    assert served.proxy.records[0].decision == "failed"


# --- what contradicts itself ---


async def test_tls_for_another_host_than_the_tunnel_is_for_is_refused() -> None:
    with hosts("api.test", tls=AUTHORITY) as (host,):
        async with proxied([host.rule]) as served:
            other = await served.tls(host.url, "other.test", inside("other.test", "/x"), trusting(AUTHORITY))
            control = await served.tls(host.url, "api.test", inside(host.url, "/x"), trusting(AUTHORITY))
    assert b"broken off" in other
    assert status(control) == 200
    assert "TLS in it is for other.test" in served.proxy.records[0].why


async def test_tls_that_names_nobody_is_refused() -> None:
    nameless = trusting(AUTHORITY)
    nameless.check_hostname = False
    with hosts("api.test", tls=AUTHORITY) as (host,):
        async with proxied([host.rule]) as served:
            answer = await served.tls(host.url, "", inside(host.url, "/x"), nameless)
    assert b"broken off" in answer
    assert "does not say for whom it is" in served.proxy.records[0].why


async def test_a_host_behind_another_is_refused_where_requests_are_read() -> None:
    """Domain fronting: TLS for the host that is allowed, and inside of it a request for another."""
    with hosts("api.test", tls=AUTHORITY) as (host,):
        async with proxied([f"GET {host.rule}"]) as served:
            guest = trusting(PROXY_AUTHORITY)
            fronted = await served.tls(host.url, "api.test", inside("hidden.test", "/x"), guest)
            absolute = await served.tls(host.url, "api.test", get("http://hidden.test/x"), guest)
        async with proxied([host.rule]) as served:  # the control: a tunnel is not looked into
            control = await served.tls(host.url, "api.test", inside("hidden.test", "/x"), trusting(AUTHORITY))
    assert (status(fronted), status(absolute)) == (403, 403)
    assert status(control) == 200
    assert [seen["headers"]["host"] for seen in host.seen] == ["hidden.test"]


async def test_port_443_takes_nothing_but_tls_and_port_80_nothing_but_http() -> None:
    async with proxied(["api.test=127.0.0.1"]) as served:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            served.proxy._upstream.connect = _connects_to(silent)  # type: ignore[method-assign]
            connect = b"CONNECT api.test:%d HTTP/1.1\r\nHost: api.test\r\n\r\n"
            plain = await served.say(connect % 443, then=b"SSH-2.0-x\r\n")
            other = await served.say(connect % 80, then=b"SSH-2.0-x\r\n\r\n")
    assert plain.count(b"HTTP/1.1") == 1
    assert b" 400 " in other.split(b"\r\n\r\n", 1)[1]
    assert "is not TLS" in served.proxy.records[0].why
    assert "it can't be passed on as HTTP/1.1" in served.proxy.records[1].why


def _connects_to(server: socket.socket):  # type: ignore[no-untyped-def]
    from redoma.network.streams import Stream

    async def connect(*_: object) -> Stream:
        return Stream(*await asyncio.open_connection(*server.getsockname()[:2]))

    return connect


@pytest.mark.parametrize(
    "request_",
    [
        "GET http://{url}/x HTTP/1.1\r\nHost: other.test\r\n\r\n",
        "GET http://{url}/x HTTP/1.1\r\nHost: {url}\r\nHost: {url}\r\n\r\n",
        "GET http://{url}/x HTTP/1.1\r\n\r\n",
        "GET http://user@{url}/x HTTP/1.1\r\nHost: {url}\r\n\r\n",
        "GET http://other.test\\@{url}/x HTTP/1.1\r\nHost: {url}\r\n\r\n",
        "GET https://{url}/x HTTP/1.1\r\nHost: {url}\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: {url}\r\n\r\n",
        "PUT http://{url}/x HTTP/1.1\r\nHost: {url}\r\nContent-Length: 3\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST http://{url}/x HTTP/1.1\r\nHost: {url}\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        "POST http://{url}/x HTTP/1.1\r\nHost: {url}\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "POST http://{url}/x HTTP/1.1\r\nHost: {url}\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "POST http://{url}/x HTTP/1.1\r\nHost: {url}\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
        "POST http://{url}/x HTTP/1.1\r\nHost: {url}\r\nTransfer-Encoding: chunked\r\n\r\n3;\nx\r\nabc\r\n0\r\n\r\n",
        "GET http://{url}/x HTTP/1.1\r\nHost: {url}\r\nX: a\r\n b\n: c\r\n\r\n",
        "GET http://{url}/x HTTP/1.1\nHost: {url}\n\rX: 1\n\n",
        "GET http://{url}/x HTTP/1.1\r\nHost: {url}\r\n other.test\r\n\r\n",
        "GET http://{url}/x HTTP/1.1\r\n Host: {url}\r\nHost: {url}\r\n\r\n",
        "POST http://{url}/x HTTP/1.1\r\nHost: {url}\r\nTransfer-Encoding:\r\n chunked, x\r\n\r\n0\r\n\r\n",
        "GET http://{url}/x HTTP/2.0\r\nHost: {url}\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET http://{url}/x HTTP/1.1\r\nHost: {url}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    ],
)
async def test_a_request_that_could_be_read_in_two_ways_goes_nowhere(request_: str) -> None:
    with hosts("api.test") as (host,):
        async with proxied([host.rule]) as served:
            answer = await served.say(request_.format(url=host.url).encode("latin-1"))
            control = await served.say(get(f"http://{host.url}/fine"))
    assert status(answer) in (400, 403, 501, 505), answer
    assert status(control) == 200
    assert [seen["path"] for seen in host.seen] == ["/fine"]
    assert served.proxy.records[0].decision == "denied"


async def test_a_request_hidden_in_the_body_of_another_stays_its_body() -> None:
    hidden = "GET /hidden HTTP/1.1\r\nHost: api.test\r\n\r\n"
    with hosts("api.test") as (host,):
        async with proxied([host.rule]) as served:
            head = f"POST http://{host.url}/x HTTP/1.1\r\nHost: {host.url}\r\n"
            await served.say(f"{head}Content-Length: {len(hidden)}\r\nConnection: close\r\n\r\n{hidden}".encode())
            chunk = f"{len(hidden):x}\r\n{hidden}\r\n0\r\nX-Trailer: 1\r\n\r\n"
            await served.say(f"{head}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n{chunk}".encode())
    assert [(seen["path"], seen["body"]) for seen in host.seen] == [("/x", hidden), ("/x", hidden)]


async def test_a_tunnel_inside_of_a_tunnel_is_not_opened() -> None:
    """An allowed host may itself be a proxy."""
    with hosts("proxy.test") as (host,):
        async with proxied([f"GET {host.rule}"]) as served:
            start = f"CONNECT {host.url} HTTP/1.1\r\nHost: {host.url}\r\n\r\n".encode()
            nested = await served.say(start, then=b"CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n")
            absolute = await served.say(start, then=get("http://other.test/x"))
            control = await served.say(start, then=inside(host.url, "/x"))
    assert b"403 redoma: not allowed: a tunnel inside" in nested
    assert b"and the request is for other.test" in absolute
    assert control.count(b"HTTP/1.1 200") == 2
    assert [seen["path"] for seen in host.seen] == ["/x"]


@pytest.mark.parametrize(("rule", "goes"), [("ws.test:{}=127.0.0.1", True), ("GET ws.test:{}=127.0.0.1", False)])
async def test_a_websocket_without_tls_is_carried_to_a_host_that_is_allowed_whole(rule: str, goes: bool) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"upgrade: websocket" in head.lower()
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nfirst ")
        while data := await reader.read(100):
            writer.write(data.upper())
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, proxied([rule.format(port)]) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(f"CONNECT ws.test:{port} HTTP/1.1\r\nHost: ws.test:{port}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(inside(f"ws.test:{port}", "/chat", "Upgrade: websocket").replace(b"close", b"Upgrade"))
        answer = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"hello")
        writer.write_eof()
        rest = await reader.read()
        writer.close()
        await served.recorded(1)
    (record,) = served.proxy.records
    assert (status(answer), record.status, record.path) == ((101, 101, "/chat") if goes else (501, 501, "/chat"))
    assert (rest == b"first HELLO") is goes


async def test_http2_without_tls_is_refused_where_requests_are_read() -> None:
    """The control is the same to a host that is allowed whole, on a port of its own: there it reaches the host."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    heard = list[bytes]()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    start = f"CONNECT h2.test:{port} HTTP/1.1\r\nHost: h2.test:{port}\r\n\r\n".encode()
    async with server:
        async with proxied([f"GET h2.test:{port}=127.0.0.1"]) as served:
            answer = await served.say(start, then=preface)
            upgrade = await served.say(get(f"http://h2.test:{port}/", "Upgrade: h2c, websocket"))
            await served.recorded(1)
        refused = [data for data in heard if data.startswith(b"PRI")]
        async with proxied([f"h2.test:{port}=127.0.0.1"]) as served:
            await served.say(start, then=preface)
    assert b"505 redoma: not allowed: only HTTP/1 can be read" in answer or b" 400 " in answer
    assert refused == []
    assert b"101" not in upgrade[:20]
    assert preface in heard


async def test_an_answer_that_never_begins_ends_with_the_bytes_of_the_run() -> None:
    """A host that sends nothing but 103 Early Hints, for ever."""
    sent = 0

    async def hints(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while sent < 64 << 20:
                writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 100)
                sent += 4000
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(hints, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, proxied([f"hints.test:{port}=127.0.0.1"], max_bytes=1 << 18) as served:
        answer = await served.say(get(f"http://hints.test:{port}/x"))
        await served.recorded(1)
    assert status(answer) == 429
    assert served.proxy.records[0].decision == "denied"
    assert sent < 64 << 20, "the control: it would have gone on"


async def test_an_answer_can_not_switch_to_what_was_not_asked_for() -> None:
    """A 101 out of the blue would turn a connection that is read into one that is not."""
    heard = list[bytes]()

    async def switch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        heard.append(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(switch, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, proxied([f"GET up.test:{port}=127.0.0.1/open"]) as served:
        request = get(f"http://up.test:{port}/open").replace(b"Connection: close\r\n", b"")
        answer = await served.say(request, then=b"DELETE /hidden HTTP/1.1\r\n\r\n")
        await served.recorded(1)
    assert status(answer) == 502
    assert not any(b"hidden" in data for data in heard)


async def test_headers_that_turn_a_request_into_another_are_refused_where_methods_count() -> None:
    with hosts("api.test") as (host,):
        async with proxied([f"GET,POST {host.rule}/v1/**"]) as served:
            method = await served.say(get(f"http://{host.url}/v1/x", "X-HTTP-Method-Override: DELETE"))
            path = await served.say(get(f"http://{host.url}/v1/x", "X-Original-URL: /admin"))
            underscores = await served.say(get(f"http://{host.url}/v1/x", "X_HTTP_Method_Override: DELETE"))
            control = await served.say(get(f"http://{host.url}/v1/x"))
    assert (status(method), status(path), status(underscores), status(control)) == (403, 403, 403, 200)


async def test_a_path_behind_a_fragment_is_not_taken_for_the_one_before_it() -> None:
    """Go's file server, for one, takes `#` for a letter: it would answer with /admin here."""
    with hosts("api.test") as (host,):
        async with proxied([f"GET {host.rule}/v1/**"]) as served:
            hidden = await served.say(get(f"http://{host.url}/v1/#/../../admin"))
        async with proxied([host.rule]) as served:
            control = await served.say(get(f"http://{host.url}/v1/#/../../admin"))
    assert (status(hidden), status(control)) == (403, 200)
    assert [seen["path"] for seen in host.seen] == ["/v1/#/../../admin"]


class _Said(Stream):
    """A connection on which everything has come already. Notes at which turn of the event loop something is written."""

    def __init__(self, said: bytes = b"") -> None:
        self._left, self.turn, self.written = said, 0, Counter[int]()

    async def read(self) -> bytes:
        if not self._left:
            await asyncio.Event().wait()
        data, self._left = self._left, b""
        return data

    async def write(self, data: bytes) -> None:
        self.written[self.turn] += 1

    async def end(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


async def test_a_body_in_tiny_pieces_does_not_hold_up_the_other_connections() -> None:
    host, pieces = _Said(), 500
    body = b"1\r\nx\r\n" * pieces + b"0\r\n\r\n"
    client = _Said(b"POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n" + body)

    async def others() -> None:
        while True:
            await asyncio.sleep(0)
            host.turn += 1

    async def connect(*_: object) -> Stream:
        return host

    turns = asyncio.ensure_future(others())
    exchange = Exchange(
        client,
        credentials=Credentials(),
        rules_for=lambda *_: host_rules(["a.test"]),
        connect=connect,
        note=lambda _: None,
        count=lambda _: None,
    )
    upload = asyncio.ensure_future(exchange.run())
    while sum(host.written.values()) < pieces and not upload.done():  # noqa: ASYNC110 - turns are what is counted
        await asyncio.sleep(0)
    for task in (upload, turns):
        task.cancel()
    await asyncio.gather(upload, turns, return_exceptions=True)
    assert sum(host.written.values()) >= pieces
    assert max(host.written.values()) < 10


async def test_a_redirect_to_a_host_that_is_not_named_leads_nowhere() -> None:
    with hosts("api.test", "other.test") as (host, other):
        async with proxied([host.rule]) as served:
            answer = await served.say(get(f"http://{host.url}/to?http%3A//{other.url}/x"))
            followed = await served.say(get(f"http://{other.url}/x"))
        async with proxied([host.rule, other.rule]) as served:
            control = await served.say(get(f"http://{other.url}/x"))
    assert f"Location: http://{other.url}/x".lower().encode() in answer.lower()
    assert status(followed) == 403
    assert status(control) == 200


# --- bounds ---


async def test_headers_that_are_too_long_are_refused() -> None:
    with hosts("api.test") as (host,):
        async with proxied([host.rule]) as served:
            answer = await served.say(get(f"http://{host.url}/x", "X: " + "a" * 70_000))
            control = await served.say(get(f"http://{host.url}/x", "X: " + "a" * 20_000))
    assert status(answer) in (0, 400, 431)
    assert status(control) == 200
    assert len(host.seen) == 1


async def test_an_endless_answer_ends_with_the_bytes_of_the_run() -> None:
    with hosts("api.test") as (host,):
        async with proxied([host.rule], max_bytes=300_000) as served:
            answer = await served.say(get(f"http://{host.url}/endless"))
            after = await served.say(get(f"http://{host.url}/x"))
    assert len(answer) < 400_000
    assert status(after) == 429
    assert [one.decision for one in served.proxy.records] == ["denied", "denied"]


async def test_a_tunnel_ends_with_the_bytes_of_the_run() -> None:
    with hosts("api.test", tls=AUTHORITY) as (host,):
        async with proxied([host.rule], max_bytes=300_000) as served:
            await served.tls(host.url, "api.test", inside(host.url, "/endless"), trusting(AUTHORITY))
    assert "used up its 300000 bytes" in served.proxy.records[0].why
    assert served.proxy.records[0].received < 400_000


async def test_connections_are_bounded() -> None:
    with hosts("api.test") as (host,):
        async with proxied([host.rule], max_connections=2) as served:
            idle = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(2)]
            await asyncio.sleep(0.05)
            third = await served.say(get(f"http://{host.url}/x"))
            for _, writer in idle:
                writer.close()
            for _ in range(600):  # until it has seen that
                await asyncio.sleep(0.05)
                if control := await served.say(get(f"http://{host.url}/x")):
                    break
    assert third == b""
    assert status(control) == 200


async def test_two_hundred_connections_at_once_are_all_answered() -> None:
    with hosts("api.test") as (host,):
        async with proxied([host.rule]) as served:
            answers = await asyncio.gather(*[served.say(get(f"http://{host.url}/{i}")) for i in range(200)])
    assert [status(answer) for answer in answers] == [200] * 200
    assert len({seen["path"] for seen in host.seen}) == 200
    assert len(served.proxy.records) == 200


async def test_requests_beyond_a_number_are_summed_up_and_never_lost() -> None:
    async with proxied(["api.test"]) as served:
        for number in range(1500):
            served.proxy._note(NetworkRequest(host="api.test", port=443, sent=2, received=3, rule="api.test"))
            served.proxy._note(NetworkRequest(host=f"h{number}.test", port=443, decision="denied"))
    records = served.proxy.records
    assert len(records) < 1200
    more = [one for one in records[1000:] if one.host == "api.test"]
    assert [(one.why, one.sent, one.received) for one in more] == [("1000 more requests", 2000, 3000)]
    assert sum(int(one.why.split()[0]) for one in records[1000:]) == 2000


async def test_when_the_run_ends_so_do_its_connections() -> None:
    with hosts("api.test") as (host,):
        async with proxied([host.rule]) as served:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(get(f"http://{host.url}/endless"))
            await reader.read(1000)
        while await asyncio.wait_for(reader.read(65536), 60):
            continue
        writer.close()
        with pytest.raises(OSError, match=r"."):
            await asyncio.open_connection("127.0.0.1", served.port)


async def test_requests_on_one_connection_are_decided_one_by_one() -> None:
    with hosts("api.test", "other.test") as (host, other):
        async with proxied([host.rule, f"GET {other.rule}/ok"]) as served:
            both = [get(f"http://{each}").replace(b"Connection: close\r\n", b"") for each in
                    (f"{host.url}/1", f"{other.url}/ok", f"{host.url}/2", f"{other.url}/no")]  # fmt: skip
            answer = await served.say(b"".join(both))
    assert answer.count(b"HTTP/1.1 200") == 3
    assert answer.count(b"HTTP/1.1 403") == 1
    assert [seen["path"] for seen in host.seen] == ["/1", "/2"]
    assert [seen["path"] for seen in other.seen] == ["/ok"]


async def test_a_body_passes_in_both_framings_and_after_a_hundred_continue() -> None:
    with hosts("api.test") as (host,):
        async with proxied([host.rule]) as served:
            answer = await served.say(get(f"http://{host.url}/x", "Expect: 100-continue", method="POST", body="abc"))
    assert status(answer) in (100, 200)
    assert host.seen[0]["body"] == "abc"


async def test_a_host_that_can_not_prove_who_it_is_is_not_reached() -> None:
    from redoma.network.authority import Authority

    with hosts("api.test", tls=Authority()) as (host,):
        async with proxied([f"GET {host.rule}"]) as served:
            answer = await served.tls(host.url, "api.test", inside(host.url, "/x"), trusting(PROXY_AUTHORITY))
    assert b"broken off" in answer or status(answer) == 502
    assert "could not be verified" in served.proxy.records[0].why
    assert not host.seen


def test_placeholders_differ_by_run_and_by_name() -> None:
    assert len({placeholder("a", "X"), placeholder("a", "Y"), placeholder("b", "X")}) == 3


# --- what is on record ---


@contextlib.asynccontextmanager
async def silent_host() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """A host that answers `/quick` and nothing else; its address, and an event that tells of such a request."""
    asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                if b" /quick " in head:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                else:
                    asked.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"api.test:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()


async def test_a_later_request_on_a_connection_that_the_end_of_the_run_cuts_off_is_failed() -> None:
    async with silent_host() as (host, asked), proxied([f"{host}=127.0.0.1"]) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(get(f"http://{host}/quick").replace(b"Connection: close\r\n", b""))
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.write(get(f"http://{host}/slow"))
        await asked.wait()
        await served.proxy.__aexit__()
        writer.close()
    told = [(one.path, one.decision, one.status, one.why) for one in served.proxy.records]
    assert told == [("/quick", "allowed", 200, ""), ("/slow", "failed", 0, "the run ended first")]


async def test_a_tunnel_with_requests_is_not_counted_as_failed_beyond_the_number_of_records() -> None:
    with hosts("api.test", tls=AUTHORITY) as (host,):
        async with proxied([f"GET {host.rule}/v1/**"]) as served:
            for _ in range(MAX_RECORDS):
                served.proxy._note(NetworkRequest(host="other.test", port=443))
            guest = trusting(PROXY_AUTHORITY)
            answer = await served.tls(host.url, "api.test", inside(host.url, "/v1/x"), guest)
            async with asyncio.timeout(60):
                while served.proxy._tasks:  # noqa: ASYNC110 - nobody tells of it
                    await asyncio.sleep(0.005)
    assert status(answer) == 200
    assert [(one.host, one.decision, one.why) for one in served.proxy.sums] == [
        ("api.test", "allowed", "1 more requests")
    ]


async def test_a_tunnel_without_a_request_is_on_record_although_another_had_one() -> None:
    with hosts("api.test", tls=AUTHORITY) as (host,):
        async with proxied([f"GET {host.rule}/**"]) as served:
            guest = trusting(PROXY_AUTHORITY)
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(f"CONNECT {host.url} HTTP/1.1\r\nHost: {host.url}\r\n\r\n".encode())
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            await writer.start_tls(guest, server_hostname="api.test")
            assert status(await served.tls(host.url, "api.test", inside(host.url, "/x"), guest)) == 200
            writer.close()
            await served.recorded(2)
    told = [(one.method, one.decision) for one in served.proxy.records]
    assert told == [("GET", "allowed"), ("CONNECT", "failed")]


@pytest.mark.parametrize("sent", [True, False], ids=["while it is asked", "before it is asked"])
@pytest.mark.parametrize("tunnel", [True, False])
async def test_a_host_that_is_cut_off_from_the_network_is_on_record_as_not_reached(
    monkeypatch: pytest.MonkeyPatch, sent: bool, tunnel: bool
) -> None:
    """A router answers that there is no way to it. No machine's own loopback does, so the error is made here."""
    connect = Upstream.connect
    opened = list[Stream]()

    def cut(stream: Stream) -> None:
        stream._reader.set_exception(OSError(errno.EHOSTUNREACH, "No route to host"))

    async def then_cut(*arguments: Any) -> Stream:
        stream = await connect(*arguments)
        opened.append(stream)
        if not sent:
            cut(stream)
        return stream

    monkeypatch.setattr(Upstream, "connect", then_cut)
    async with silent_host() as (host, asked), proxied([f"GET {host}=127.0.0.1/**"]) as served:
        opening = f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        saying = served.say(opening, then=inside(host, "/x")) if tunnel else served.say(get(f"http://{host}/x"))
        task = asyncio.create_task(saying)
        if sent:
            await asked.wait()
            cut(opened[0])
        answer = await task
        await served.recorded(1)
    assert b"502" in answer
    (record,) = served.proxy.records
    assert (record.host, record.decision) == ("api.test", "failed")
    assert record.why == "the host can't be reached: No route to host"
