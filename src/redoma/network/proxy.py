"""The proxy of one run: accepts on a socket that was made inside its cell, decides, connects and records."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
from collections.abc import Callable, Iterable

import msgspec

from ..lib.hosts import as_address, canonical
from ..models.network import WEB_PORTS, HostRule, NetworkRequest, written
from .authority import Authority
from .credentials import Credentials
from .exchange import ENDED, HEAD_TIME, IDLE_TIME, MAX_HEAD, Exchange, Place, split_authority
from .inside import CERTIFICATES
from .messages import MAX_RECORDS, MAX_SUMS
from .streams import NotTls, Stream, TlsStream, pump, server_name, why_broken
from .upstream import Denied, Failed, Resolve, Upstream

_Note = Callable[[NetworkRequest], None]
_MAX_WHY = 500  # letters; a parser may quote whatever it was sent

_SOCKS4, _SOCKS5 = 4, 5
_SOCKS_REPLIES = {"ok": 0, "failed": 1, "denied": 2, "unreachable": 4, "command": 7, "address": 8}
_TLS_HANDSHAKE = 0x16
_MAY_BEGIN_HTTP = re.compile(rb"[\r\n]*([A-Za-z]{1,20}([ \t][^\n]*)?)?")
_BEGINS_HTTP = re.compile(
    rb"(?!PRI \* HTTP/2\.0\r\n)[\r\n]*((?i:connect|get|head|post)[ \t]|[A-Za-z]+[ \t][^\n]*[ \t]HTTP/[0-9])"
)
"""The first line of a request. HTTP/2 is not meant: it begins with `PRI`."""


class Proxy:
    """Serves one run. Use it as an asynchronous context manager: at its end every connection is closed.

    `listener` is a listening socket, which it closes. `rules` say what may be reached; `credentials` are put in.
    `max_bytes` in both directions together and `max_connections` at one time bound the run. `authority` ends TLS where
    requests have to be read; `place` is the directory inside that has the files of `inside.py`. `resolve` finds the
    addresses of a name, and `trust` verifies hosts: by default as this machine does. `recorded` is called with each of
    the first `MAX_RECORDS` requests when it ends.
    """

    def __init__(
        self,
        listener: socket.socket,
        rules: Iterable[HostRule],
        *,
        credentials: Credentials | None = None,
        authority: Callable[[], Authority],
        max_bytes: int,
        max_connections: int,
        place: str = "/run",
        resolve: Resolve | None = None,
        trust: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        recorded: Callable[[NetworkRequest], None] = lambda _: None,
    ) -> None:
        self._listener, self._rules = listener, tuple(rules)
        self._credentials = credentials or Credentials()
        self._upstream = Upstream(resolve)
        self._authority, self._trust, self._place = authority, trust, place
        self._context: ssl.SSLContext | None = None
        self._left, self._max_bytes, self._max_connections = max_bytes, max_bytes, max_connections
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._records: list[NetworkRequest] = []
        self._recorded = recorded
        self._sums: dict[tuple[str, int, str, str], tuple[int, int, int]] = {}

    @property
    def records(self) -> tuple[NetworkRequest, ...]:
        """Every request so far, in the order in which they ended; beyond `MAX_RECORDS` of them, sums."""
        return (*self._records, *self.sums)

    @property
    def sums(self) -> tuple[NetworkRequest, ...]:
        """The requests beyond `MAX_RECORDS`, added up."""
        return tuple(
            NetworkRequest(
                host=host,
                port=port,
                decision=decision,  # type: ignore[arg-type]
                rule=rule,
                sent=sent,
                received=received,
                why=f"{count} more requests",
            )
            for (host, port, decision, rule), (count, sent, received) in self._sums.items()
        )

    @property
    def certificate(self) -> bytes:
        """The certificate of the authority that the guest should trust, as PEM; empty if no TLS is read."""
        reads = bool(self._credentials) or any(rule.looks_inside for rule in self._rules)
        return self._authority().certificate if reads else b""

    @property
    def _certificates(self) -> str:
        """Path in the cell of the certificates that the guest should trust."""
        return f"{self._place}/{CERTIFICATES}"

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, sock=self._listener, backlog=self._max_connections)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None  # noqa: S101 - it was entered
        self._server.close()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- one connection ---

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = Stream(reader, writer)
        if len(self._tasks) >= self._max_connections:
            self._note(NetworkRequest(host="", decision="denied", why=f"more than {self._max_connections} connections"))
            return stream.abort()
        task = asyncio.get_running_loop().create_task(self._serve(stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    async def _serve(self, client: Stream) -> None:
        try:
            async with asyncio.timeout(HEAD_TIME):
                first = await client.read()
            if not first:
                return
            client.unread(first)
            if first[0] == _SOCKS5:
                await self._socks(client)
            elif first[0] == _SOCKS4:
                self._note(NetworkRequest(host="", decision="denied", why="SOCKS 4 is not spoken here; 5 is"))
            else:
                await self._http(client)
        except (ConnectionError, TimeoutError):
            return  # the guest's own doing, or its end
        except Exception as error:  # nothing more passes here, and the record says what broke, but quotes nothing
            why = f"a bug in Redoma, please report it: {type(error).__name__}"
            self._note(NetworkRequest(host="", decision="failed", why=why))
            client.abort()
        finally:
            client.close()

    async def _http(self, client: Stream) -> None:
        exchange = self._exchange(client)
        try:
            request = await exchange.first()
        except Denied as denied:
            return await exchange.refuse(denied)
        if request is None or request.method != b"CONNECT":
            return await exchange.run(request) if request is not None else None
        try:
            place, rules, upstream = await self._open(*split_authority(request.target.decode("ascii", "replace"), 0))
        except Denied as denied:
            return await exchange.refuse(denied)
        except Failed as failed:
            return await exchange.fail(failed)
        await exchange.answer_connect()
        client.unread(exchange.trailing())
        return await self._tunnel(client, upstream, place, rules)

    async def _socks(self, client: Stream) -> None:
        """SOCKS 5 (RFC 1928): a greeting, then one command. Only CONNECT, without a password."""
        data = await _exactly(client, 2)
        methods = await _exactly(client, data[1])
        if 0 not in methods:
            return await client.write(b"\x05\xff")
        await client.write(b"\x05\x00")
        version, command, _, kind = await _exactly(client, 4)
        if kind == 1:
            host = socket.inet_ntop(socket.AF_INET, await _exactly(client, 4))
        elif kind == 4:
            host = socket.inet_ntop(socket.AF_INET6, await _exactly(client, 16))
        elif kind == 3:
            host = (await _exactly(client, (await _exactly(client, 1))[0])).decode("ascii", "replace")
        else:
            return await self._socks_reply(client, "address")
        (port,) = struct.unpack("!H", await _exactly(client, 2))
        if version != _SOCKS5 or command != 1:
            self._note(
                NetworkRequest(host=host[:253], port=port, decision="denied", why="SOCKS is for connections only")
            )
            return await self._socks_reply(client, "command")
        try:
            place, rules, upstream = await self._open(_canonical(host), port)
        except Denied:
            return await self._socks_reply(client, "denied")
        except Failed:
            return await self._socks_reply(client, "unreachable")
        await self._socks_reply(client, "ok")
        return await self._tunnel(client, upstream, place, rules)

    @staticmethod
    async def _socks_reply(client: Stream, what: str) -> None:
        await client.write(bytes([_SOCKS5, _SOCKS_REPLIES[what], 0, 1, 0, 0, 0, 0, 0, 0]))

    # --- deciding ---

    def _rules_for(self, host: str, port: int) -> tuple[HostRule, ...]:
        """Return the rules for this host and port. Raises `Denied` if there are none, or no bytes are left."""
        if self._left <= 0:
            raise Denied(f"the run has used up its {self._max_bytes} bytes of network", status=429)
        rules = tuple(rule for rule in self._rules if rule.names(host, port))
        if rules:
            return rules
        narrowest = written(host, 0 if port in WEB_PORTS else port)
        if any(rule.names(host, rule.port or WEB_PORTS[0]) for rule in self._rules):
            raise Denied(f"port {port} of {host} is named by no rule", written(host, port))
        kind = "the address" if as_address(host) is not None else "the host"
        raise Denied(f"{kind} {host} is named by no rule", narrowest)

    async def _open(self, host: str, port: int) -> tuple[Place, tuple[HostRule, ...], Stream]:
        """Open the connection of a tunnel. Records and raises `Denied` or `Failed`."""
        try:
            rules = self._rules_for(host, port)
            return Place(host, port, False), rules, await self._upstream.connect(host, port, rules)
        except Failed as failed:
            self._note(_tunnelled(host, port, decision="failed", why=failed.why, status=failed.status))
            raise
        except Denied as denied:
            self._note(
                _tunnelled(host, port, decision="denied", why=denied.why, rule=denied.rule, status=denied.status)
            )
            denied.noted = True
            raise

    async def _tunnel(self, client: Stream, upstream: Stream, place: Place, rules: tuple[HostRule, ...]) -> None:
        """Handle what follows a CONNECT, of HTTP or of SOCKS."""
        reported = False

        def note(record: NetworkRequest) -> None:
            nonlocal reported
            reported = True
            self._note(record)

        try:
            reads = self._credentials.belong_to(place.host) or all(rule.looks_inside for rule in rules)
            first = await self._first_bytes(client, upstream, wait=reads or place.port in WEB_PORTS)
            if first[:1] == bytes([_TLS_HANDSHAKE]):
                data = await self._checked_name(client, first, place)
                client.unread(data)
                if reads:
                    await self._inside_tls(client, upstream, place, note)
                    return None if reported else self._note_silent(place)
            elif first:
                client.unread(first)
                if place.port == 443:
                    raise Denied(f"what is sent to port 443 of {place.host} is not TLS")
                if reads or place.port == 80 or await _begins_http(client):
                    await self._exchange(client, place, upstream, note).run()
                    return None if reported else self._note_silent(place)
            rule = next((rule for rule in rules if not rule.looks_inside), rules[0])
            return await self._pump(client, upstream, place, rule, note)
        except Denied as denied:
            self._note(_tunnelled(*place[:2], decision="denied", why=denied.why, rule=denied.rule))
            return client.abort()
        except Failed as failed:
            return self._note(_tunnelled(*place[:2], decision="failed", why=failed.why))
        except (ConnectionError, TimeoutError, ssl.SSLError) as error:
            return self._note(_tunnelled(*place[:2], decision="failed", why=why_broken(error)))
        except asyncio.CancelledError:
            if not reported:
                self._note(_tunnelled(*place[:2], decision="failed", why=ENDED))
            raise
        finally:
            upstream.close()

    def _note_silent(self, place: Place) -> None:
        """Record a tunnel without any request: most often the guest did not trust our authority."""
        why = f"it was closed without a request; a program has to trust {self._certificates} and speak HTTP/1.1"
        self._note(_tunnelled(*place[:2], decision="failed", why=why))

    async def _first_bytes(self, client: Stream, upstream: Stream, *, wait: bool) -> bytes:
        """Return the first bytes from the guest. Without `wait`, return none if the host speaks first."""
        if wait:
            async with asyncio.timeout(HEAD_TIME):
                return await client.read()
        theirs, ours = asyncio.ensure_future(upstream.read()), asyncio.ensure_future(client.read())
        try:
            async with asyncio.timeout(IDLE_TIME):
                await asyncio.wait([theirs, ours], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for side, task in ((upstream, theirs), (client, ours)):
                if not task.done():
                    task.cancel()
                    await asyncio.wait([task])
                if side is upstream and task.done() and not task.cancelled():
                    upstream.unread(task.result())
        return b"" if ours.cancelled() else ours.result()

    async def _checked_name(self, client: Stream, first: bytes, place: Place) -> bytes:
        """Return the bytes of the ClientHello. Raises `Denied` unless its SNI is the host of the tunnel."""
        try:
            async with asyncio.timeout(HEAD_TIME):
                name, data = await server_name(client, first)
        except NotTls as error:
            raise Denied(f"what is sent to {place.host} begins like TLS, and is none: {error}") from None
        if name is None:
            if as_address(place.host) is None:
                raise Denied(f"TLS to {place.host} does not say for whom it is (SNI)")
        elif _canonical(name) != place.host:
            raise Denied(f"the tunnel leads to {place.host}, and TLS in it is for {name[:253]}")
        return data

    async def _inside_tls(self, client: Stream, upstream: Stream, place: Place, note: _Note) -> None:
        """Terminate the guest's TLS, and read its requests."""
        place = place._replace(encrypted=True)
        secured = await self._secured(upstream, place)
        ours = TlsStream(client, self._authority().context(place.host), server=True)
        try:
            async with asyncio.timeout(HEAD_TIME):
                await ours.handshake()
        except ssl.SSLError as error:
            why = f"TLS with the guest failed: {error.reason}; it has to trust {self._certificates} and speak HTTP/1.1"
            raise Failed(why) from None
        await self._exchange(ours, place, secured, note).run()
        await ours.end()

    async def _secured(self, upstream: Stream, place: Place) -> Stream:
        """Return a TLS connection to the host. Raises `Failed` if its certificate can't be verified."""
        if self._context is None:
            self._context = self._trust()
            self._context.set_alpn_protocols(["http/1.1"])
        secured = TlsStream(upstream, self._context, server=False, name=place.host)
        try:
            async with asyncio.timeout(HEAD_TIME):
                await secured.handshake()
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", "") or error.reason
            raise Failed(f"{place.host} could not be verified: {reason}") from None
        return secured

    def _exchange(
        self, client: Stream, fixed: Place | None = None, upstream: Stream | None = None, note: _Note | None = None
    ) -> Exchange:
        return Exchange(
            client,
            credentials=self._credentials,
            rules_for=self._rules_for,
            connect=self._connect,
            note=note or self._note,
            count=self._count,
            fixed=fixed,
            upstream=upstream,
        )

    async def _connect(self, place: Place, rules: tuple[HostRule, ...]) -> Stream:
        stream = await self._upstream.connect(place.host, place.port, rules)
        return await self._secured(stream, place) if place.encrypted else stream

    # --- passing on ---

    async def _pump(self, client: Stream, upstream: Stream, place: Place, rule: HostRule, note: _Note) -> None:
        """Pass bytes on unread in both directions, and record the tunnel at its end."""
        sent = received = 0
        why = ""

        def passed(out: int, back: int) -> None:
            nonlocal sent, received
            sent, received = sent + out, received + back
            self._count(out + back)

        try:
            await pump(client, upstream, passed)
        except Denied as denied:
            why = denied.why
            client.abort()
        finally:
            record = _tunnelled(
                *place[:2],
                sent=sent,
                received=received,
                status=0 if why else 200,
                rule=str(rule),
                decision="denied" if why else "allowed",
                why=why,
            )
            note(record)

    def _count(self, size: int) -> None:
        """Count bytes against the limit of the run. Raises `Denied` when it is reached."""
        self._left -= size
        if self._left < 0:
            raise Denied(f"the run has used up its {self._max_bytes} bytes of network", status=429)

    def _note(self, record: NetworkRequest) -> None:
        if len(record.why) > _MAX_WHY:
            record = msgspec.structs.replace(record, why=record.why[: _MAX_WHY - 1] + "…")
        if len(self._records) < MAX_RECORDS:
            self._records.append(record)
            return self._recorded(record)
        key = (record.host, record.port, record.decision, record.rule)
        if key not in self._sums and len(self._sums) >= MAX_SUMS:  # the guest chooses what it is refused
            key = ("", 0, record.decision, "")
        count, sent, received = self._sums.get(key, (0, 0, 0))
        self._sums[key] = (count + 1, sent + record.sent, received + record.received)
        return None


async def _exactly(client: Stream, size: int) -> bytes:
    """Read exactly `size` bytes. Raises ConnectionError if the stream ends before."""
    data = b""
    while len(data) < size:
        async with asyncio.timeout(HEAD_TIME):
            more = await client.read()
        if not more:
            raise ConnectionResetError("it ended in the middle")
        data += more
    client.unread(data[size:])
    return data[:size]


async def _begins_http(client: Stream) -> bool:
    """Return whether the guest speaks HTTP/1. Its requests are then read, since an allowed host may be a proxy itself.

    Reads until the first line tells, and puts everything back.
    """
    data = b""
    async with asyncio.timeout(HEAD_TIME):
        while more := await client.read():
            data += more
            if len(data) > MAX_HEAD or not _MAY_BEGIN_HTTP.fullmatch(data):
                break
    client.unread(data)
    return bool(_BEGINS_HTTP.match(data))


def _canonical(host: str) -> str:
    try:
        return canonical(host)
    except ValueError:
        return host[:253]  # which no rule names


def _tunnelled(host: str, port: int, **fields: object) -> NetworkRequest:
    return NetworkRequest(host=host, port=port, method="CONNECT", **fields)  # type: ignore[arg-type]
