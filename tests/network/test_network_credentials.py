"""Secrets that never enter a run: where they are put in, and every way to get at them that is closed."""

from __future__ import annotations

import asyncio
import base64
import re
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from network_stage import AUTHORITY, PROXY_AUTHORITY, Served, get, hosts, inside, proxied, trusting

from redoma.models.network import SecretUse, placeholder
from redoma.network.credentials import Credentials, Held, StreamRedactor, Watch, forms
from redoma.network.upstream import Denied

VALUE = 's3cr3t/"token"+value=='
HELD = placeholder("run", "TOKEN")
"""What the guest has in its variable TOKEN."""


def secret(*names: str, query: bool = False, body: bool = False) -> dict[str, tuple[str, SecretUse]]:
    return {"TOKEN": (VALUE, SecretUse(hosts=names, query=query, body=body))}


async def ask(served: Served, url: str, path: str, *headers: str, method: str = "GET", body: str = "") -> bytes:
    """A request inside of TLS, as a guest that trusts the proxy makes it."""
    name = url.partition(":")[0]
    request = inside(url, path, *headers, method=method, body=body)
    return await served.tls(url, name, request, trusting(PROXY_AUTHORITY))


def has_no_trace(answer: bytes) -> bool:
    return not any(form in answer for form in forms(VALUE.encode()))


async def test_a_secret_is_put_into_headers_for_its_host() -> None:
    with hosts("api.test", tls=AUTHORITY) as (host,):
        async with proxied([host.rule], secrets=secret("api.test")) as served:
            await ask(served, host.url, "/x", f"Authorization: Bearer {HELD}", f"X-Key: {HELD}")
            basic = base64.b64encode(f"me:{HELD}".encode()).decode()
            await ask(served, host.url, "/x", f"Authorization: Basic {basic}")
    first, second = host.seen
    assert first["headers"]["authorization"] == f"Bearer {VALUE}"
    assert first["headers"]["x-key"] == VALUE
    assert base64.b64decode(second["headers"]["authorization"].removeprefix("Basic ")) == f"me:{VALUE}".encode()


async def test_a_secret_is_put_into_queries_and_bodies_only_if_it_is_for_those() -> None:
    form = f'{{"token": "{HELD}"}}'
    with hosts("api.test", tls=AUTHORITY) as (host,):
        async with proxied([host.rule], secrets=secret("api.test", query=True, body=True)) as served:
            await ask(served, host.url, f"/x?token={HELD}", method="POST", body=form)
        async with proxied([host.rule], secrets=secret("api.test")) as served:
            query = await ask(served, host.url, f"/x?token={HELD}")
            body = await ask(served, host.url, "/x", method="POST", body=form)
            path = await ask(served, host.url, f"/{HELD}")
    assert host.seen[0]["path"] == f"/x?token={quote(VALUE, safe='')}"
    assert host.seen[0]["body"] == form.replace(HELD, VALUE)
    assert host.seen[0]["headers"]["content-length"] == str(len(form.replace(HELD, VALUE)))
    assert [answer.split(b" ")[1] for answer in (query, path)] == [b"403", b"403"]
    assert b"403" in body[:20] or b"broken off" in body or not body
    assert [one.decision for one in served.proxy.records] == ["denied"] * 3
    assert not any(HELD in seen["body"] for seen in host.seen)
    assert not any(HELD in seen["path"] for seen in host.seen)


async def test_a_placeholder_that_is_sent_elsewhere_is_refused_and_reported() -> None:
    with hosts("api.test", "other.test", tls=AUTHORITY) as (host, other):
        rules = [host.rule, f"GET,POST {other.rule}"]
        async with proxied(rules, secrets=secret("api.test")) as served:
            header = await ask(served, other.url, "/x", f"Authorization: Bearer {HELD}")
            basic = base64.b64encode(f"{HELD}:".encode()).decode()
            encoded = await ask(served, other.url, "/x", f"Authorization: Basic {basic}")
            await ask(served, other.url, "/x", method="POST", body=f"x{HELD}y")
            control = await ask(served, other.url, "/x", "Authorization: Bearer mine")
    assert header.startswith(b"HTTP/1.1 403")
    assert encoded.startswith(b"HTTP/1.1 403")
    assert b"which it does not belong to" in header
    assert control.startswith(b"HTTP/1.1 200")
    assert [seen["headers"]["authorization"] for seen in other.seen if seen["method"] == "GET"] == ["Bearer mine"]
    assert not any(HELD in seen["body"] for seen in other.seen)
    assert [one.decision for one in served.proxy.records] == ["denied", "denied", "denied", "allowed"]
    assert all(VALUE not in one.why for one in served.proxy.records)


async def test_a_secret_never_travels_without_encryption() -> None:
    with hosts("api.test") as (host,):
        async with proxied([host.rule], secrets=secret("api.test")) as served:
            answer = await served.say(get(f"http://{host.url}/x", f"Authorization: {HELD}"))
            control = await served.say(get(f"http://{host.url}/x"))
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"use https" in answer
    assert control.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("path", ["/echo", "/pieces", "/header", "/trailer", "/name", "/to?https%3A//other.test/"])
async def test_a_host_that_sends_a_secret_back_is_not_believed(path: str) -> None:
    with hosts("api.test", tls=AUTHORITY) as (host,):
        async with proxied([host.rule], secrets=secret("api.test")) as served:
            answer = await ask(served, host.url, path, f"Authorization: Bearer {HELD}")
        async with proxied([host.rule]) as served:  # the control: what is no secret comes back
            plain = await served.tls(
                host.url, "api.test", inside(host.url, path, "Authorization: Bearer mine"), trusting(AUTHORITY)
            )
    assert host.seen[0]["headers"]["authorization"] == f"Bearer {VALUE}", "the host did get it"
    assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 302"))
    assert has_no_trace(re.sub(rb"\r\n1\r\n(.)", rb"\1", answer))
    assert plain.startswith((b"HTTP/1.1 200", b"HTTP/1.1 302"))
    if path in ("/echo", "/header"):
        assert b"mine" in plain


@pytest.mark.parametrize("path", ["/broken-status", "/broken-header", "/broken-chunk"])
async def test_an_answer_that_is_no_http_is_quoted_nowhere(path: str) -> None:
    with hosts("api.test", tls=AUTHORITY) as (host,):
        async with proxied([host.rule], secrets=secret("api.test")) as served:
            answer = await ask(served, host.url, path, f"Authorization: Bearer {HELD}")
            await served.recorded(1)
    assert host.seen[0]["headers"]["authorization"] == f"Bearer {VALUE}"
    assert has_no_trace(answer)
    assert "s3cr3t" not in repr(served.proxy.records)
    assert served.proxy.records[0].decision == "failed"


async def test_a_secret_that_is_no_header_is_quoted_nowhere() -> None:
    value = "line one\x01\x00 s3cr3t"
    held = {"TOKEN": (value, SecretUse(hosts=("api.test",)))}
    with hosts("api.test", tls=AUTHORITY) as (host,):
        async with proxied([host.rule], secrets=held) as served:
            answer = await ask(served, host.url, "/x", f"Authorization: {HELD}")
    assert answer.startswith(b"HTTP/1.1 502")
    assert b"s3cr3t" not in answer
    assert "s3cr3t" not in repr(served.proxy.records)


async def test_an_answer_that_can_not_be_searched_is_not_passed_on() -> None:
    with hosts("api.test", tls=AUTHORITY) as (host,):
        async with proxied([host.rule], secrets=secret("api.test", body=True)) as served:
            answer = await ask(served, host.url, "/gzip", "Accept-Encoding: gzip", method="POST", body=HELD)
    assert answer.startswith(b"HTTP/1.1 502")
    assert host.seen[0]["headers"]["accept-encoding"] == "identity"


async def test_parts_of_an_answer_can_not_be_asked_for_where_a_secret_may_be_in_it() -> None:
    with hosts("api.test", tls=AUTHORITY) as (host,):
        async with proxied([host.rule], secrets=secret("api.test")) as served:
            await ask(served, host.url, "/x", "Range: bytes=0-5")
        async with proxied([f"GET {host.rule}"]) as served:
            await ask(served, host.url, "/x", "Range: bytes=0-5")
    assert ["range" in seen["headers"] for seen in host.seen] == [False, True]


async def test_the_record_has_neither_the_value_nor_the_query() -> None:
    with hosts("api.test", tls=AUTHORITY) as (host,):
        async with proxied([host.rule], secrets=secret("api.test", query=True)) as served:
            await ask(served, host.url, f"/x?token={HELD}")
    (record,) = served.proxy.records
    assert record.path == "/x"
    assert VALUE not in repr(record)
    assert HELD not in repr(record)


@given(st.binary(min_size=4, max_size=30), st.lists(st.binary(max_size=20), max_size=8), st.data())
def test_whatever_pieces_it_comes_in_a_secret_is_taken_out(
    value: bytes, around: list[bytes], data: st.DataObject
) -> None:
    text = value.join(around)
    redactor, out, place = StreamRedactor([value]), b"", 0
    while place < len(text):
        size = data.draw(st.integers(1, len(text)))
        out += redactor.feed(text[place : place + size])
        place += size
    out += redactor.finish()
    assert len(out) == len(text)
    assert value not in out or set(value) == {ord("*")}


def test_what_is_held_back_tells_nothing_of_the_secret() -> None:
    """A guest that chooses what a slow host answers sees at once which of its guesses is held back."""
    guesses = [VALUE[:size] for size in range(1, len(VALUE))] + ["wrong", "x"]
    for before in ("", "\n", "data: 1\n\ndata: ", "y" * 5000):
        passed = {len(StreamRedactor(forms(VALUE.encode())).feed(f"{before}{guess[0]}".encode())) for guess in guesses}
        assert len(passed) == 1
        for size in range(1, len(VALUE)):
            wrong = "~" * size
            texts = (VALUE[:size], wrong)
            fed = [StreamRedactor(forms(VALUE.encode())).feed((before + text).encode()) for text in texts]
            assert len(fed[0]) == len(fed[1])


async def test_a_guess_at_a_secret_arrives_no_later_than_any_other_answer() -> None:
    """The same, with a proxy and a host that answers slowly."""
    ended, answering = asyncio.Event(), list[asyncio.Future[None]]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        guess = unquote((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()).rpartition("?")[2]
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for text in (guess, "\n"):
            writer.write(f"{len(text):x}\r\n{text}\r\n".encode())
            await writer.drain()
            await asyncio.sleep(0.05)
        await ended.wait()
        writer.close()
        await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.append(asyncio.ensure_future(answer(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pieces = []
    async with proxied([f"slow.test:{port}=127.0.0.1"], secrets=secret("api.test")) as served:
        for guess in (VALUE[:3], "abc"):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            url = f"http://slow.test:{port}/?{quote(guess)}"
            writer.write(f"GET {url} HTTP/1.1\r\nHost: slow.test:{port}\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            pieces.append(await reader.readline())
            writer.close()
            await writer.wait_closed()
        ended.set()
        await asyncio.gather(*answering, return_exceptions=True)
    server.close()
    assert pieces == [b"4\r\n", b"4\r\n"]  # one piece, with the end of the line


def test_a_line_that_has_ended_is_passed_on_at_once() -> None:
    redactor = StreamRedactor(forms(VALUE.encode()))
    assert redactor.feed(b"data: 1\n\n") == b"data: 1\n\n"
    assert redactor.feed(b"data: 2") == b""
    assert redactor.feed(f" {VALUE}\n\n".encode()) == b"data: 2 " + b"*" * len(VALUE) + b"\n\n"


def test_a_secret_that_begins_another_does_not_uncover_the_rest_of_it() -> None:
    redactor = StreamRedactor([b"abcd", b"abcdefgh"])
    assert redactor.feed(b"abcd") + redactor.feed(b"efgh") + redactor.finish() == b"*" * 8


async def test_users_that_a_guest_invents_do_not_fill_the_memory_of_the_proxy() -> None:
    held = Held("PIN", b"4711", HELD.encode(), SecretUse(hosts=("api.test",)))
    short, long = (
        Credentials([held]),
        Credentials([Held("TOKEN", VALUE.encode(), HELD.encode(), SecretUse(hosts=("api.test",)))]),
    )
    for number in range(1000):
        for credentials in (short, long):
            token = base64.b64encode(f"{number}:{HELD}".encode())
            ((_, sent),) = credentials.in_headers("api.test", [(b"authorization", b"Basic " + token)], encrypted=True)
            assert credentials.redacted(sent.removeprefix(b"Basic ")) != sent.removeprefix(b"Basic ")
    token = base64.b64encode(f"{'x' * 1000}:{HELD}".encode())
    with pytest.raises(Denied, match="too long"):
        short.in_headers("api.test", [(b"authorization", b"Basic " + token)], encrypted=True)
    assert len(short.redactor()._words) < 200
    assert len(long.redactor()._words) == len(forms(VALUE.encode()))


@pytest.mark.parametrize("form", ['s3cr3t\\/\\"token\\"+value==', "s3cr3t%2f%22token%22%2bvalue%3d%3d"])
def test_a_secret_is_found_as_php_and_dotnet_write_it(form: str) -> None:
    assert form.encode() in forms(VALUE.encode())


@given(st.binary(min_size=8, max_size=20), st.binary(max_size=10), st.binary(max_size=10))
def test_base64_of_a_secret_is_found_wherever_it_begins(value: bytes, before: bytes, after: bytes) -> None:
    text = base64.b64encode(before + value + after)
    assert any(form in text for form in forms(value))


@given(st.binary(min_size=4, max_size=20), st.binary(max_size=20), st.binary(max_size=20), st.integers(0, 30))
def test_a_placeholder_is_seen_across_pieces(word: bytes, before: bytes, after: bytes, cut: int) -> None:
    text = before + word + after
    watch = Watch([word])
    assert any([watch.sees(text[:cut]), watch.sees(text[cut:])])
