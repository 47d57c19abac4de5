"""Parses and formats sizes, durations, URLs and the addresses of engines. Pure: nothing is opened."""

from __future__ import annotations

from .patterns import lazy_pattern

_SIZE = lazy_pattern(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([KMGTkmgt]?)([iI]?)[Bb]?\Z")
_DURATION = lazy_pattern(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?([smhdw])\Z")


def parse_size(text: str) -> int | None:
    """Return the bytes of a size: `1048576`, `512KB`, `256MiB`, `1.5 GB`; letters may be small. None if unparsable."""
    if not (size := _SIZE.match(text)):
        return None
    amount, unit, binary = size.groups()
    return int(float(amount) * (1024 if binary else 1000) ** " KMGT".index(unit.upper() or " "))


def parse_duration(text: str) -> float | None:
    """Return the seconds of a duration: `90s`, `5m`, `1.5h`, `2d`, `4w`. None if unparsable."""
    if not (duration := _DURATION.match(text)):
        return None
    return float(duration[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}[duration[2]]


def format_size(size: int) -> str:
    """Return a size that `parse_size` reads, in the largest unit that divides it: `256MiB`. One with too many digits is
    rounded up.
    """
    for exponent, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB"), (0, "")):
        amount, rest = divmod(size, 1024**exponent)
        if not rest and amount < 10**15:
            return f"{amount}{unit}"
    return f"{-(-size // 1024**4)}TiB"


def is_url(text: str) -> bool:
    """Return whether it is an HTTP or HTTPS URL without a user name."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.username is None and parts.port != 0
    except ValueError:
        return False
    return bool(usable) and text.isprintable() and " " not in text


ENGINES = ("unix://", "tcp://", "http://", "https://")
"""The possible prefixes of a Docker engine's URL."""


def engine_problem(url: str) -> str | None:
    """Return what is wrong with the URL of an engine, without connecting to it; None if nothing is."""
    if not url.startswith(ENGINES):
        return "it begins with no protocol that is spoken here"
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - which is read now, and may be no port
    except ValueError as error:
        return str(error)
    if url.startswith("unix://"):
        return None if url != "unix://" else "it names no socket"
    return None if parts.hostname else "it names no host"
