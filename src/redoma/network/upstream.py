"""Resolve a host once for a run, check its addresses, and connect to an address that was checked."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from ..lib.hosts import Address, as_address, why_not_public
from ..models.network import WEB_PORTS, HostRule, written
from .streams import Stream

Resolve = Callable[[str], Awaitable[Iterable[str]]]
"""Returns the addresses of a name. Raises OSError."""

_CONNECT_TIME = 10.0
_RESOLVE_TIME = 10.0
_MAX_ADDRESSES = 8
_MAX_QUERIES = 4  # of one run at one time


class Denied(Exception):
    """A request that is not allowed: why, and the narrowest rule that would permit it, if any would."""

    def __init__(self, why: str, rule: str = "", *, status: int = 403) -> None:
        super().__init__(why)
        self.why, self.rule, self.status = why, rule, status
        self.noted = False
        """Whether it is on record already."""


class Failed(Exception):
    """A request that is allowed and could not be made."""

    def __init__(self, why: str, *, status: int = 502) -> None:
        super().__init__(why)
        self.why, self.status = why, status


def resolver() -> Resolve:
    """Return what finds the addresses of a name as this machine does, with threads of its own.

    The C library waits in a thread for as long as a name service takes, and the guest may choose a slow one. With the
    threads of all runs in one pool, one run could hold up the names of the others.
    """
    threads = ThreadPoolExecutor(_MAX_QUERIES, thread_name_prefix="redoma-names")
    ask = functools.partial(socket.getaddrinfo, port=None, type=socket.SOCK_STREAM)

    async def resolve(name: str) -> Iterable[str]:
        found = await asyncio.get_running_loop().run_in_executor(threads, ask, name)
        return [str(where[0]) for *_, where in found]

    return resolve


class Upstream:
    """Opens connections to hosts, for one run. A name keeps the addresses it was first resolved to."""

    def __init__(self, resolve: Resolve | None = None) -> None:
        self._resolve = resolve or resolver()
        self._known: dict[str, asyncio.Future[list[Address]]] = {}

    async def connect(self, host: str, port: int, rules: Iterable[HostRule]) -> Stream:
        """Connect to a host that these rules name. Raises `Denied` if its address is not permitted, or `Failed`."""
        problem = ""
        for address in await self._addresses(host, port, tuple(rules)):
            try:
                async with asyncio.timeout(_CONNECT_TIME):
                    return Stream(*await asyncio.open_connection(str(address), port))
            except TimeoutError:
                problem = f"no answer in {_CONNECT_TIME:g} s"
            except OSError as error:
                problem = error.strerror or str(error)
        raise Failed(f"{host} can't be reached: {problem}")

    async def _addresses(self, host: str, port: int, rules: tuple[HostRule, ...]) -> list[Address]:
        """Return the addresses that may be connected to. Only an address that a rule names may be private."""
        if (literal := as_address(host)) is not None:
            return [literal]  # the rule that names it names the address
        if pinned := [ipaddress.ip_address(text) for rule in rules for text in rule.addresses]:
            return pinned[:_MAX_ADDRESSES]
        found = await self._resolved(host)
        public = [address for address in found if not why_not_public(address)]
        if not public:
            where = found[0]
            pin = f"{written(host, 0 if port in WEB_PORTS else port)}={where}"
            raise Denied(f"{host} is at {where}: {why_not_public(where)}", pin)
        return public[:_MAX_ADDRESSES]

    async def _resolved(self, host: str) -> list[Address]:
        if host not in self._known:
            self._known[host] = asyncio.ensure_future(self._ask(host))
        try:
            return await asyncio.shield(self._known[host])
        except Failed:
            self._known.pop(host, None)  # it may be found the next time
            raise

    async def _ask(self, host: str) -> list[Address]:
        try:
            async with asyncio.timeout(_RESOLVE_TIME):
                texts = await self._resolve(host)
        except TimeoutError:
            raise Failed(f"{host} can't be found: the name service did not answer", status=504) from None
        except (OSError, UnicodeError) as error:
            raise Failed(f"{host} can't be found: {getattr(error, 'strerror', None) or error}") from None
        found = [address for text in texts if (address := as_address(text.partition("%")[0])) is not None]
        if not found:
            raise Failed(f"{host} can't be found: it has no address")
        return list(dict.fromkeys(found))
