"""Names and addresses of hosts, as people, programs and attackers write them.

One host has many spellings: `EXAMPLE.org.`, `127.1`, `0x7f000001`, `0177.0.0.1`, `2130706433`, `[::ffff:127.0.0.1]`.
Before a comparison each is converted to its canonical spelling: a name in lower case, ASCII (IDNA) and without a
trailing dot, or an address as `ipaddress` prints it. What has no canonical spelling is refused, not guessed.
"""

from __future__ import annotations

import ipaddress
import re

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_HOST = 253
"""Maximum characters of a name in DNS."""

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\Z")
_NUMBER = re.compile(r"(?:0[xX][0-9a-fA-F]*|[0-9]+)\Z")

_EMBEDDING = (
    (ipaddress.IPv6Network("::/96"), 0),  # "IPv4-compatible": deprecated, but still used by attackers
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),
    (ipaddress.IPv6Network("::ffff:0:0:0/96"), 0),
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),
    (ipaddress.IPv6Network("2002::/16"), 80),
)
"""IPv6 networks whose addresses contain an IPv4 address, and how many bits are to the right of it."""
_NEVER_PUBLIC = tuple(
    ipaddress.ip_network(text)
    for text in (
        *("64:ff9b:1::/48", "2001::/23", "fec0::/10"),  # local NAT64; Teredo and the like; former "site-local"
        *("192.88.99.0/24", "100.64.0.0/10", "0.0.0.0/8", "240.0.0.0/4"),  # relays; carriers; "this network"; reserved
    )
)


def canonical(text: str) -> str:
    """Return the canonical spelling of a host: a name, or an address without brackets. Raises ValueError, with the
    reason.
    """
    host = text[1:-1] if text[:1] == "[" and text[-1:] == "]" else text
    if text[:1] == "[" or ":" in host:
        if "%" in host:
            raise ValueError("an address with a zone leads to this machine's own links")
        try:
            return str(ipaddress.IPv6Address(host))
        except ValueError:
            raise ValueError("it is not an IPv6 address") from None
    name = _ascii(host).removesuffix(".")
    if not name or len(name) > MAX_HOST:
        raise ValueError("a host has a name of 1 to 253 characters")
    last = name.rpartition(".")[2]
    if _NUMBER.match(last):  # like every browser and C library: it is an address, however it is written
        return str(_ipv4(name))
    if not all(map(_LABEL.match, name.split("."))):
        raise ValueError("the parts of a name are letters, digits, - and _, with single dots between them")
    return name


def _ascii(host: str) -> str:
    """Return a name as in DNS: in lower case, and other scripts in Punycode."""
    if host.isascii():
        lowered = host.lower()
        if "xn--" not in lowered:
            return lowered
        host = lowered
    try:
        import idna
    except ImportError:
        raise ValueError("names in other scripts need the package idna") from None
    try:
        return idna.encode(host, uts46=True, std3_rules=False, transitional=False).decode("ascii")
    except idna.IDNAError as error:
        raise ValueError(f"it is not a valid name (IDNA): {error}") from None


def _ipv4(text: str) -> ipaddress.IPv4Address:
    """Return an address as inet_aton parses it: one to four numbers, each decimal, octal (0…) or hexadecimal (0x…)."""
    parts = text.split(".")
    if len(parts) > 4 or not all(map(_NUMBER.match, parts)):
        raise ValueError("it ends in a number, and is not an IPv4 address")
    try:
        numbers = [_number(part) for part in parts]
    except ValueError:
        raise ValueError("it ends in a number, and is not an IPv4 address") from None
    *first, last = numbers
    if any(number > 255 for number in first) or last >= 256 ** (4 - len(first)):
        raise ValueError("a number in the address is too large")
    value = last
    for place, number in enumerate(first):
        value += number << (24 - 8 * place)
    return ipaddress.IPv4Address(value)


def _number(text: str) -> int:
    if text[:2] in ("0x", "0X"):
        return int(text[2:] or "0", 16)
    return int(text, 8) if text.startswith("0") and len(text) > 1 else int(text)


def as_address(host: str) -> Address | None:
    """Return the address for a canonical host that is one; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def why_not_public(address: Address) -> str:
    """Return why an address is not on the public internet; empty if it is. For an address inside another, both are
    checked.
    """
    if isinstance(address, ipaddress.IPv6Address):
        for network, right in _EMBEDDING:
            inner = ipaddress.IPv4Address((int(address) >> right) & 0xFFFFFFFF)
            if address in network and int(address) > 1 and (why := why_not_public(inner)):
                return f"it holds {inner}: {why}"
    if address.is_unspecified:
        return "it is not the address of a host"
    if address.is_loopback:
        return "it is this machine's own"
    if address.is_link_local:
        return "it is on the local link, where clouds keep the credentials of machines"
    if address.is_multicast:
        return "it is multicast"
    if address.is_private or not address.is_global or any(address in network for network in _NEVER_PUBLIC):
        return "it is in a private or reserved network"
    return ""
