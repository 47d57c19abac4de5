"""What a run may reach, secrets that stay outside, and the requests it made: hosts, secrets and requests.

A rule is written as a text, `[METHODS ]HOST[:PORT][=ADDRESS][/PATH]`, or as a mapping of the fields of `HostRule`:

    api.github.com                     this host, ports 443 and 80
    *.example.org:8443                 every host below example.org, one port
    GET,HEAD api.x.com/v1/**           two methods, and paths that begin with /v1/
    git.corp:443=10.1.2.3              a host in a private network: this address, without a DNS query
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from ..lib.errors import InvalidRequest
from ..lib.patterns import lazy_pattern
from ..lib.types import resolved

WEB_PORTS = (443, 80)
"""The ports of a rule that names none."""
READING = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that are meant to change nothing on the server."""
MAX_RULES, MAX_TEXT = 200, 2048

_RULE = lazy_pattern(
    r"(?:(?P<methods>[A-Za-z,]+)[ ]+)?(?P<host>\[[^\]]*\]|[^\s:/=\[\]]+)"
    r"(?::(?P<port>[0-9]+))?(?:=(?P<addresses>[^/\s]+))?(?P<path>/\S*)?\Z"
)
_METHOD = lazy_pattern(r"[A-Z]{1,20}\Z")
_PATH = lazy_pattern(r"/[!-~]*\Z")
_FORMS = "write it like api.github.com, *.example.org:443 or 'GET api.x.com/v1/**'"


class HostRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One host, or all hosts below a name, that a run may reach, and which requests it may make there."""

    host: str
    """A name or an address in its canonical spelling, or `*.` and a name: every host below it, at any depth."""
    port: int = 0
    """0: the web ports, 443 and 80."""
    methods: tuple[str, ...] = ()
    """Empty: all methods."""
    paths: tuple[str, ...] = ()
    """Globs: `*` matches a part of one segment, `**` anything. Empty: all paths."""
    addresses: tuple[str, ...] = ()
    """Its addresses; then there is no DNS query. Only addresses that are named here, or as `host`, may be private."""

    def __post_init__(self) -> None:
        put = functools.partial(msgspec.structs.force_setattr, self)
        put("host", _host(self.host))
        if not 0 <= self.port < 65536:
            raise _wrong(f"{self.host}:{self.port}", "ports are numbers from 1 to 65535")
        put("methods", tuple(sorted({_method(self.host, method) for method in self.methods})))
        put("addresses", tuple(_address(self.host, text) for text in self.addresses))
        if self.addresses and self.host.startswith("*."):
            raise _wrong(self.host, "hosts below a name are not all at one address")
        for path in self.paths:
            if not _PATH.match(path) or len(path) > MAX_TEXT or "?" in path or "#" in path or "%" in path:
                raise _wrong(
                    f"{self.host}{path}", "a path begins with /, is ASCII without spaces, and has no ?, # or %"
                )

    @property
    def looks_inside(self) -> bool:
        """Whether enforcing it requires reading the requests."""
        return bool(self.methods or self.paths)

    @property
    def writes(self) -> bool:
        """Whether it permits methods that change something on the server."""
        return not self.methods or not READING.issuperset(self.methods)

    def names(self, host: str, port: int) -> bool:
        """Return whether the rule includes this canonical host and this port."""
        if port not in ((self.port,) if self.port else WEB_PORTS):
            return False
        return host.endswith(self.host[1:]) if self.host.startswith("*.") else host == self.host

    def permits(self, method: str, path: str) -> bool:
        """Return whether a request may be made; `path` must come from `plain_path`."""
        if self.methods and method not in self.methods:
            return False
        return not self.paths or any(_glob(glob)(path) for glob in self.paths)

    def covers(self, other: HostRule) -> bool:
        """Return whether this rule certainly permits everything that the other one permits."""
        ports = (other.port,) if other.port else WEB_PORTS
        wanted = other.host[1:] if other.host.startswith("*.") else other.host
        host = wanted.endswith(self.host[1:]) if self.host.startswith("*.") else other.host == self.host
        return (
            host
            and all(port in ((self.port,) if self.port else WEB_PORTS) for port in ports)
            and (not self.methods or bool(other.methods and set(other.methods) <= set(self.methods)))
            and (not self.paths or bool(other.paths and set(other.paths) <= set(self.paths)))
            and set(other.addresses) <= set(self.addresses)
        )

    def __str__(self) -> str:
        """Return it as written; with several paths, only the first."""
        methods = ",".join(self.methods) + " " if self.methods else ""
        pinned = f"={','.join(self.addresses)}" if self.addresses else ""
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"{methods}{written(self.host, self.port)}{pinned}{''.join(self.paths[:1])}{more}"


def written(host: str, port: int) -> str:
    """Return a host as in rules and URLs, with its port unless that is 0."""
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{port}" if port else host


def host_rule(given: Any) -> HostRule:
    """Return a rule from a text, a mapping, or a `HostRule`. Raises `InvalidRequest`."""
    if isinstance(given, HostRule):
        return given
    if isinstance(given, str):
        return _from_text(given)
    if not isinstance(given, Mapping):
        raise _wrong(repr(given)[:80], "a rule is a text or a mapping")
    if unknown := set(given) - set(HostRule.__struct_fields__):
        known = ", ".join(HostRule.__struct_fields__)
        raise _wrong(
            repr(dict(given))[:200], f"unknown: {', '.join(map(str, sorted(unknown, key=str)))}; known: {known}"
        )
    for name in ("methods", "paths", "addresses"):
        if isinstance(given.get(name), str):
            raise _wrong(repr(dict(given))[:200], f"{name} is one text, and takes a list of them")
    try:
        return msgspec.convert(dict(given), resolved(HostRule))
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InvalidRequest):
            raise error.__cause__ from None
        raise _wrong(repr(dict(given))[:200], str(error)) from None


def host_rules(given: Iterable[Any]) -> tuple[HostRule, ...]:
    """Return every rule of a list. Raises `InvalidRequest`."""
    if isinstance(given, (str, bytes, Mapping, HostRule)) or not isinstance(given, Iterable):
        raise InvalidRequest(
            f"network is {given!r}", why="it takes a list of hosts", next="write ['api.github.com']; [] for none"
        )
    rules = tuple(dict.fromkeys(map(host_rule, given)))
    if len(rules) > MAX_RULES:
        raise InvalidRequest(
            f"network names {len(rules)} hosts", why=f"at most {MAX_RULES} can be named", next="use wildcards"
        )
    return rules


def _from_text(text: str) -> HostRule:
    if "://" in text:
        raise _wrong(
            text, "a rule names a host, not a URL", f"write {text.partition('://')[2].rstrip('/') or 'a host'}"
        )
    found = _RULE.match(text.strip()) if len(text) <= MAX_TEXT else None
    if found is None:
        raise _wrong(text[:200], "it can't be read as [METHODS ]HOST[:PORT][=ADDRESS][/PATH]; IPv6 is in brackets")
    methods, host, port, addresses, path = found.group("methods", "host", "port", "addresses", "path")
    if port is not None and not 0 < int(port) < 65536:
        raise _wrong(text, "ports are numbers from 1 to 65535")
    return HostRule(
        host=host,
        port=int(port or 0),
        methods=tuple(methods.split(",")) if methods else (),
        paths=(path,) if path and path != "/" else (),
        addresses=tuple(addresses.split(",")) if addresses else (),
    )


def _host(text: str) -> str:
    from ..lib.hosts import as_address, canonical

    star, name = text.startswith("*."), text.removeprefix("*.")
    if "*" in name:
        raise _wrong(text, "a star stands for whole names in front: *.example.org")
    try:
        host = canonical(name)
    except ValueError as error:
        raise _wrong(text, str(error)) from None
    if star and (as_address(host) is not None or "." not in host):
        raise _wrong(text, "it would permit a whole country or registry of hosts, or is an address")
    return f"*.{host}" if star else host


def _method(host: str, method: str) -> str:
    if not _METHOD.match(method.upper()) or method.upper() == "CONNECT":
        raise _wrong(f"{method} {host}", f"{method!r} is not a method of HTTP that can be permitted")
    return method.upper()


def _address(host: str, text: str) -> str:
    from ..lib.hosts import as_address, canonical

    try:
        found = canonical(text)
    except ValueError as error:
        raise _wrong(f"{host}={text}", str(error)) from None
    if as_address(found) is None:
        raise _wrong(f"{host}={text}", "what stands after = is an address")
    return found


def _wrong(rule: str, why: str, next: str = _FORMS) -> InvalidRequest:  # noqa: A002 - as in the error
    return InvalidRequest(f"the host rule {rule!r} can't be used", why=why, next=next)


@functools.lru_cache(maxsize=256)
def _glob(glob: str) -> Callable[[str], object]:
    """Return a function that matches a path, in linear time because the guest chooses the path."""
    from ..lib.text import compile_re2

    parts = (".*" if part == "**" else "[^/]*" if part == "*" else re.escape(part) for part in re.split(r"(\*+)", glob))
    return compile_re2("(?s)" + "".join(parts)).fullmatch  # type: ignore[no-any-return]


def plain_path(target: str) -> str:
    """Return the path of a request target, for comparison with a rule. Raises ValueError if servers may interpret it
    differently: `..`, encoded slashes, backslashes, double encoding, fragments.
    """
    if "#" in target:  # some servers end the path there, for others it is a letter like any other
        raise ValueError("it has a fragment (#)")
    path = target.partition("?")[0]
    from urllib.parse import unquote

    plain = unquote(path, errors="strict")
    if re.search(r"%2[fF]|%5[cC]|%00", path) or "\\" in plain or "\0" in plain:
        raise ValueError("it has an encoded slash, a backslash or a NUL")
    if re.search(r"%[0-9a-fA-F]{2}", plain):
        raise ValueError("it is encoded twice")
    if any(part.partition(";")[0] in (".", "..") for part in plain.split("/")):
        raise ValueError("it has . or .. in it")
    if "//" in plain:
        raise ValueError("it has an empty segment")
    return plain


class Secret(msgspec.Struct, frozen=True):
    """A secret that never enters the run: the code has a placeholder, which is replaced on the way to `hosts`.

    By default it is replaced only in headers (and in the user and password of basic authentication); `query` and `body`
    allow it there, too.
    """

    value: str
    hosts: tuple[str, ...]
    query: bool = False
    body: bool = False

    def __post_init__(self) -> None:
        given: object = self.hosts
        if isinstance(given, (str, bytes)) or not given:
            raise InvalidRequest(
                "a secret names no hosts", why="it is used for those only", next='write hosts=["api.github.com"]'
            )
        msgspec.structs.force_setattr(self, "hosts", tuple(_host(host) for host in self.hosts))

    def __repr__(self) -> str:
        return f"Secret(…, hosts={list(self.hosts)!r})"

    @property
    def use(self) -> SecretUse:
        return SecretUse(hosts=self.hosts, query=self.query, body=self.body)


class SecretUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a secret that stays outside is inserted. Its value is with the other secrets."""

    hosts: tuple[str, ...]
    query: bool = False
    body: bool = False

    def names(self, host: str) -> bool:
        return any(host.endswith(own[1:]) if own.startswith("*.") else host == own for own in self.hosts)


def placeholder(request_id: str, name: str) -> str:
    """Return what a run has in place of a secret: valid for this run only, and worthless elsewhere."""
    return f"redoma_placeholder_{hashlib.sha256(f'{request_id}:{name}'.encode()).hexdigest()[:32]}"


class NetworkRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request that a run made, or was not allowed to make. Without headers, queries and bodies."""

    host: str
    port: int = 0
    method: str = ""
    """CONNECT: a connection whose content was not read."""
    path: str = ""
    status: int = 0
    """The HTTP status of the answer; 0 if there was none."""
    sent: int = 0
    received: int = 0
    """Bytes to and from the host."""
    decision: Literal["allowed", "denied", "failed"] = "allowed"
    """Failed: it was allowed, but the host could not be reached or closed the connection."""
    rule: str = ""
    """The rule that permits it; for a denial, the narrowest that would, if any."""
    why: str = ""

    @property
    def words(self) -> str:
        """A description on one line."""
        what = f"{self.method or 'CONNECT'} {written(self.host, 0 if self.port in WEB_PORTS else self.port)}{self.path}"
        if self.decision == "allowed":
            return f"{what} {self.status or ''}".rstrip()
        return f"{what} {self.decision}: {self.why}"
