"""Read requests and responses: h11 parses each, the rules decide, and it is written anew."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import h11

from ..lib.hosts import canonical
from ..models.network import WEB_PORTS, HostRule, NetworkRequest, plain_path, written
from .credentials import MAX_BODY, Credentials
from .streams import Stream, pump, why_broken
from .upstream import Denied, Failed

MAX_HEAD = 64 << 10
"""Bytes of the first line and the headers of a message."""
HEAD_TIME = 60.0
"""Seconds that a client, or a kept connection, may be silent before its next request."""
IDLE_TIME = 120.0
"""Seconds that a host may be silent in the middle."""
ENDED = "the run ended first"
"""The reason on record for a request that was under way when its run ended."""
_MAX_DRAINED = 1 << 20
_MAX_PATH = 500

_OF_ONE_CONNECTION = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate"),
        *(b"te", b"trailer", b"upgrade", b"http2-settings", b"expect", b"host"),
    }
)
"""Headers about the connection to the proxy, which are not passed on."""
_OVERRIDING = frozenset(
    {
        *(b"x-http-method-override", b"x-http-method", b"x-method-override"),
        *(b"x-original-url", b"x-rewrite-url", b"x-forwarded-host", b"x-host"),
    }
)
"""Headers that make some servers use another method, path or host than the request line says."""
_AUTHORITY = re.compile(r"(?P<host>\[[^\]@]*\]|[^:@\[\]/]+)(?::(?P<port>[0-9]{1,5}))?\Z")


class Place(NamedTuple):
    """Where a request goes."""

    host: str
    port: int
    encrypted: bool


class Connected(NamedTuple):
    """A connection to a host, with the state of HTTP on it."""

    place: Place
    stream: Stream
    http: h11.Connection


def split_authority(text: str, port: int) -> tuple[str, int]:
    """Return host and port of `host[:port]`; `port` is the default. Raises `Denied`."""
    found = _AUTHORITY.match(text)
    if found is None:
        raise Denied(f"{text[:100]!r} is not a host", status=400)
    try:
        host = canonical(found["host"])
    except ValueError as error:
        raise Denied(f"{text[:100]!r} is not a host: {error}", status=400) from None
    number = int(found["port"]) if found["port"] else port
    if not 0 < number < 65536:
        raise Denied(f"{text[:100]!r} has no port", status=400)
    return host, number


class Exchange:
    """Handles the requests of one connection from the guest, one after the other.

    In a tunnel, `fixed` is where all of them go; otherwise each names its own host. `rules_for` returns the rules for a
    host, or raises `Denied`; `connect` opens a connection; `note` is called with the record of each request; `count` is
    called with the number of bytes passed on, and raises `Denied` when they are too many.
    """

    def __init__(
        self,
        client: Stream,
        *,
        credentials: Credentials,
        rules_for: Callable[[str, int], tuple[HostRule, ...]],
        connect: Callable[[Place, tuple[HostRule, ...]], Awaitable[Stream]],
        note: Callable[[NetworkRequest], None],
        count: Callable[[int], None],
        fixed: Place | None = None,
        upstream: Stream | None = None,
    ) -> None:
        self._client, self._http = client, h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._credentials, self._rules_for, self._connect = credentials, rules_for, connect
        self._note, self._count, self._fixed = note, count, fixed
        self._up = Connected(fixed, upstream, _client_state()) if fixed and upstream else None
        self._place: Place | None = fixed
        self._method = self._path = ""
        self._status = self._sent = self._received = 0
        self._left: int | None = None
        """Bytes of the answer's body that are still to come; None if unknown."""
        self._rule = ""

    async def first(self) -> h11.Request | None:
        """Return the next request, or None at the end. Raises `Denied` if it is not HTTP."""
        try:
            async with asyncio.timeout(HEAD_TIME):
                event = await self._event()
        except TimeoutError:
            return None
        return event if isinstance(event, h11.Request) else None

    def trailing(self) -> bytes:
        """Return the bytes that were sent behind a CONNECT."""
        return self._http.trailing_data[0]

    async def answer_connect(self) -> None:
        """Answer a CONNECT with 200."""
        if not isinstance(self._http.next_event(), h11.EndOfMessage):
            raise ConnectionResetError("a CONNECT has no body")
        await self._client.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

    async def run(self, request: h11.Request | None = None) -> None:
        """Pass requests on until either side closes. `request` is the first, if it was read already."""
        try:
            while True:
                if request is None:
                    try:
                        request = await self.first()
                    except Denied as denied:
                        self._begin("", "")
                        return await self.refuse(denied)
                if request is None or not await self._one(request):
                    return None
                request = None
        finally:
            if self._up is not None:
                self._up.stream.close()

    # --- one request ---

    def _begin(self, method: str, path: str) -> None:
        self._method, self._path = method, path[:_MAX_PATH]
        self._status = self._sent = self._received = 0
        self._left = None
        self._rule, self._place = "", self._fixed

    async def _one(self, request: h11.Request) -> bool:
        """Pass one request on, and its answer back. Returns whether another may follow."""
        self._begin(request.method.decode("ascii"), "")
        try:
            place, target = self._where(request)
            self._place, self._path = place, target.partition(b"?")[0].decode("ascii", "replace")[:_MAX_PATH]
            rules = self._rules_for(place.host, place.port)
            rule = self._decide(rules, place, target)
            self._rule = str(rule)
            head = self._rewritten(request, place, target, rule)
            return await self._pass(request, head, place, rules)
        except Denied as denied:
            await self.refuse(denied)
        except Failed as failed:
            await self._fail(failed.why, failed.status)
        except asyncio.CancelledError:
            # A run that has its answer may end before we are done with it.
            if self._left == 0:
                self._record("allowed")
            else:
                self._record("failed", ENDED)
            raise
        except h11.ProtocolError:  # without its words: they may quote a secret, put in by us or sent back by the host
            await self._fail("it can't be written as HTTP/1.1", 502)
        except (ConnectionError, TimeoutError) as error:
            await self._fail(why_broken(error), 502)
        return False

    def _where(self, request: h11.Request) -> tuple[Place, bytes]:
        """Return where a request goes, and its path and query. Raises `Denied` if its parts disagree on that."""
        method, target = request.method.decode("ascii"), request.target
        hosts = [value for name, value in request.headers if name == b"host"]
        if request.http_version not in (b"1.0", b"1.1"):
            raise Denied(
                "only HTTP/1 can be read; HTTP/2 works in a tunnel, to a host that is allowed whole", status=505
            )
        if len(target) + sum(len(name) + len(value) for name, value in request.headers) > MAX_HEAD:
            raise Denied(f"its first line and headers have more than {MAX_HEAD} bytes", status=431)
        if method == "CONNECT":
            raise Denied("a tunnel inside of another is not opened")
        if target.startswith(b"/") or (target == b"*" and method == "OPTIONS"):
            if self._fixed is None:
                raise Denied("this is a proxy: a request to it names a whole URL", status=400)
            place = self._fixed
        else:
            found = re.fullmatch(rb"(?i)(http)://([^/?#]*)([/?].*)?", target)
            if found is None:
                raise Denied("only http:// can be asked for here; for https:// open a tunnel (CONNECT)", status=400)
            host, port = split_authority(found[2].decode("ascii", "replace"), 80)
            place = Place(host, port, False)
            target = found[3] or b"/"
            target = b"/" + target if target.startswith(b"?") else target
            if self._fixed is not None and (host, port) != self._fixed[:2]:
                raise Denied(f"the tunnel leads to {self._fixed.host}, and the request is for {host}")
            place = self._fixed or place
        if len(hosts) != 1 and (hosts or request.http_version != b"1.0"):
            raise Denied("a request has exactly one Host", status=400)
        for value in hosts:
            named = split_authority(value.decode("ascii", "replace"), place.port)
            if named != place[:2]:
                raise Denied(f"the request goes to {written(*place[:2])}, and its Host is {written(*named)}")
        return place, target

    def _decide(self, rules: tuple[HostRule, ...], place: Place, target: bytes) -> HostRule:
        """Return the rule that permits the request. Raises `Denied` with the narrowest rule that would."""
        whole = next((rule for rule in rules if not rule.looks_inside), None)
        if whole is not None:
            return whole
        try:
            path = plain_path(target.decode("ascii"))
        except ValueError as error:
            raise Denied(f"its path can't be compared with a rule: {error}") from None
        for rule in rules:
            if rule.permits(self._method, path):
                return rule
        narrowest = ""
        port = 0 if place.port in WEB_PORTS else place.port
        with suppress(ValueError):  # a path that no rule can be written for
            narrowest = str(HostRule(host=place.host, port=port, methods=(self._method,), paths=(path,)))
        raise Denied(f"no rule permits {self._method} {path[:200]} at {place.host}", narrowest)

    def _rewritten(self, request: h11.Request, place: Place, target: bytes, rule: HostRule) -> h11.Request:
        """Return the request as it is sent on. Raises `Denied` if a server could read it in two ways."""
        names = [name for name, _ in request.headers]
        if b"transfer-encoding" in names and b"content-length" in names:
            raise Denied("it says its length in two ways", status=400)
        upgrade = b",".join(value.lower() for name, value in request.headers if name == b"upgrade")
        seen = rule.looks_inside or self._credentials.belong_to(place.host)
        websocket = upgrade == b"websocket" and self._fixed is not None and not seen
        if upgrade and not websocket and b"h2c" not in upgrade:
            raise Denied(
                "what follows an upgrade can't be read; WebSocket works in a tunnel (CONNECT), with a rule that has no "
                "methods or paths, to a host without secrets",
                status=501,
            )
        # Programs behind CGI and WSGI can't tell `_` in the name of a header from `-`.
        overriding = [name for name in names if name.replace(b"_", b"-") in _OVERRIDING]
        if rule.looks_inside and overriding:
            raise Denied(f"the header {overriding[0].decode()} may make it another request")
        listed = {
            word.strip().lower()
            for name, value in request.headers
            if name == b"connection"
            for word in value.split(b",")
        }
        headers = [
            (name, value)
            for name, value in request.headers
            if name not in _OF_ONE_CONNECTION
            and (name not in listed or name in (b"content-length", b"transfer-encoding"))
        ]
        if self._credentials.belong_to(place.host):  # what comes back has to be read as a whole, as it is
            headers = [each for each in headers if each[0] not in (b"range", b"if-range", b"accept-encoding")]
            headers.append((b"Accept-Encoding", b"identity"))
        if self._credentials:
            target = self._credentials.in_target(place.host, target, encrypted=place.encrypted)
            headers = self._credentials.in_headers(place.host, headers, encrypted=place.encrypted)
        if websocket:
            headers += [(b"Connection", b"Upgrade"), (b"Upgrade", upgrade)]
        default = 443 if place.encrypted else 80
        host = written(place.host, 0 if place.port == default else place.port).encode()
        return h11.Request(method=request.method, target=target, headers=[(b"Host", host), *headers])

    async def _pass(self, request: h11.Request, head: h11.Request, place: Place, rules: tuple[HostRule, ...]) -> bool:
        body = None
        if self._credentials.fills_bodies_of(place.host):
            body = await self._whole_body(place)
            framing = (b"content-length", b"transfer-encoding")
            headers = [each for each in head.headers.raw_items() if each[0].lower() not in framing]
            if body or request.method not in (b"GET", b"HEAD", b"OPTIONS"):
                headers.append((b"Content-Length", str(len(body)).encode()))
            head = h11.Request(method=head.method, target=head.target, headers=headers)
        up = await self._connected(place, rules)
        await self._send(up, head)
        upload = asyncio.ensure_future(self._upload(up, place, body))
        upload.add_done_callback(partial(_break_off, up.stream))
        try:
            switched = await self._download(up, place)
        except BaseException:
            if upload.done() and not upload.cancelled() and (first := upload.exception()) is not None:
                raise first from None  # that is why the host's side was broken off
            raise
        finally:
            if not upload.done():
                upload.cancel()
            await asyncio.gather(upload, return_exceptions=True)
        if switched:
            await self._pump(up)
        self._record("allowed")
        return self._again(up)

    async def _connected(self, place: Place, rules: tuple[HostRule, ...]) -> Connected:
        if self._up is not None and self._up.place == place:
            return self._up
        if self._up is not None:
            self._up.stream.close()
            self._up = None
        self._up = Connected(place, await self._connect(place, rules), _client_state())
        return self._up

    async def _upload(self, up: Connected, place: Place, body: bytes | None) -> None:
        """Send the body of the request. Trailers are dropped."""
        if body is not None:
            if body:
                await self._send(up, h11.Data(data=body))
            return await self._send(up, h11.EndOfMessage())
        watch = self._credentials.watch() if self._credentials else None
        while True:
            event = await self._event()
            if isinstance(event, h11.Data):
                if watch is not None and watch.sees(bytes(event.data)):
                    raise self._credentials.stray(place.host)
                await self._send(up, h11.Data(data=event.data))
            elif isinstance(event, h11.EndOfMessage):
                return await self._send(up, h11.EndOfMessage())
            else:
                raise ConnectionResetError("the request was not finished")

    async def _whole_body(self, place: Place) -> bytes:
        body = bytearray()
        while isinstance(event := await self._event(), h11.Data):
            body += event.data
            if len(body) > MAX_BODY:
                raise Denied(f"a secret may stand in it, and it is more than {MAX_BODY} bytes", status=413)
        return self._credentials.in_body(place.host, bytes(body), encrypted=place.encrypted)

    async def _send(self, up: Connected, event: h11.Event) -> None:
        data = up.http.send(event) or b""
        self._sent += len(data)
        self._count(len(data))
        async with asyncio.timeout(IDLE_TIME):
            await up.stream.write(data)

    async def _download(self, up: Connected, place: Place) -> bool:
        """Pass the answer back, without secrets. Returns whether both sides speak WebSocket from now on."""
        redactor = self._credentials.redactor()
        while True:
            event = await self._event_of(up)
            if isinstance(event, h11.InformationalResponse):
                if event.status_code != 101:
                    continue
                self._status = 101
                await self._reply(h11.InformationalResponse(status_code=101, headers=event.headers.raw_items()))
                return True
            if isinstance(event, h11.Response):
                self._status, self._left = event.status_code, self._size_of_body(event)
                await self._reply(self._response(event, place))
            elif isinstance(event, h11.Data):
                self._left = None if self._left is None else self._left - len(event.data)
                if data := redactor.feed(bytes(event.data)):
                    await self._reply(h11.Data(data=data))
            elif isinstance(event, h11.EndOfMessage):
                self._left = 0
                if rest := redactor.finish():
                    await self._reply(h11.Data(data=rest))
                await self._reply(h11.EndOfMessage())
                return False
            else:
                raise ConnectionResetError("the host ended the connection before its answer")

    def _size_of_body(self, head: h11.Response) -> int | None:
        """Return how long the body of an answer is, if its head says so."""
        if self._method == "HEAD" or head.status_code in (204, 304):
            return 0
        return next((int(value) for name, value in head.headers if name == b"content-length"), None)

    async def _pump(self, up: Connected) -> None:
        """Pass bytes on, after an upgrade."""

        def passed(sent: int, received: int) -> None:
            self._sent, self._received = self._sent + sent, self._received + received
            self._count(sent + received)

        self._client.unread(self._http.trailing_data[0])
        up.stream.unread(up.http.trailing_data[0])
        await pump(self._client, up.stream, passed)

    def _response(self, event: h11.Response, place: Place) -> h11.Response:
        coded = [value for name, value in event.headers if name == b"content-encoding" and value.lower() != b"identity"]
        if coded and self._credentials.belong_to(place.host):
            raise Failed(f"{place.host} compressed its answer, so no secret can be taken out of it")
        dropped = {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"trailer"}
        redacted = self._credentials.redacted
        headers = [
            (self._credentials.redacted_name(name), redacted(value))
            for name, value in event.headers.raw_items()
            if name.lower() not in dropped
        ]
        return h11.Response(status_code=event.status_code, headers=headers, reason=redacted(bytes(event.reason)))

    async def _reply(self, event: h11.Event) -> None:
        async with asyncio.timeout(IDLE_TIME):
            await self._client.write(self._http.send(event) or b"")

    def _again(self, up: Connected) -> bool:
        """Return whether the client may send another request. Closes a connection to the host that can't take it."""
        if up.http.our_state is h11.DONE and up.http.their_state is h11.DONE:
            up.http.start_next_cycle()
        else:
            up.stream.close()
            self._up = None
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    # --- bytes ---

    async def _event(self) -> object:
        """Return the next event from the guest. Raises `Denied` if it is not HTTP/1."""
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise Denied(f"it can't be passed on as HTTP/1.1: {error}", status=400) from None
            if event is not h11.NEED_DATA:
                await asyncio.sleep(0)  # much may be there already, in tiny pieces: others have their turn in between
                return event
            if self._http.they_are_waiting_for_100_continue:
                await self._client.write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            self._http.receive_data(await self._client.read())

    async def _event_of(self, up: Connected) -> object:
        while True:
            try:
                event = up.http.next_event()
            except h11.RemoteProtocolError:  # whose words would quote what the host has sent
                raise Failed("the host's answer is not HTTP/1.1") from None
            if event is not h11.NEED_DATA:
                await asyncio.sleep(0)  # as above
                return event
            async with asyncio.timeout(IDLE_TIME):
                data = await up.stream.read()
            self._received += len(data)
            self._count(len(data))
            up.http.receive_data(data)

    # --- refusing ---

    async def refuse(self, denied: Denied) -> None:
        """Answer that the request is not allowed, and record it."""
        self._status = denied.status
        if not denied.noted:
            self._record("denied", denied.why, denied.rule)
        await self._say(denied.status, message(denied))

    async def fail(self, failed: Failed) -> None:
        """Answer a CONNECT whose host can't be reached. It is on record already."""
        await self._say(failed.status, failed.why)

    async def _fail(self, why: str, status: int) -> None:
        self._record("failed", why)
        await self._say(status, why)

    async def _say(self, status: int, text: str) -> None:
        """Send a response of our own, unless another has begun. Reads what the client still sends: otherwise the kernel
        would reset the connection before the client has read it."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return self._client.abort()  # in the middle of an answer: only breaking off tells that it is not whole
        body = f"redoma: {text}\n".encode()
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        head = h11.Response(
            status_code=status, headers=[*headers, ("Connection", "close")], reason=_reason(text), http_version=b"1.1"
        )
        try:
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                await self._client.write(self._http.send(event) or b"")
            await self._client.end()
            async with asyncio.timeout(2):
                left = _MAX_DRAINED
                while left > 0 and (data := await self._client.read()):
                    left -= len(data)
        except (OSError, TimeoutError, h11.LocalProtocolError):
            pass
        return None

    def _record(self, decision: str, why: str = "", rule: str = "") -> None:
        place = self._place
        self._note(
            NetworkRequest(
                host=place.host if place else "",
                port=place.port if place else 0,
                method=self._method,
                path=self._path,
                status=self._status,
                sent=self._sent,
                received=self._received,
                decision=decision,  # type: ignore[arg-type]
                rule=rule if decision == "denied" else self._rule,
                why=why,
            )
        )


def _break_off(stream: Stream, upload: asyncio.Future[None]) -> None:
    """Abort the connection to the host if the request could not be sent completely."""
    if not upload.cancelled() and upload.exception() is not None:
        stream.abort()


def message(denied: Denied) -> str:
    """Return the message for the guest."""
    hint = f"; to permit it: --allow-host '{denied.rule}'" if " " in denied.rule else ""
    hint = hint or (f"; to permit it: --allow-host {denied.rule}" if denied.rule else "")
    return f"not allowed: {denied.why}{hint}"


def _reason(text: str) -> bytes:
    """Return a message as reason phrase of a response, which many clients show."""
    return re.sub(rb"[^ -~]+", b" ", f"redoma: {text}".encode())[:300]


def _client_state() -> h11.Connection:
    return h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
