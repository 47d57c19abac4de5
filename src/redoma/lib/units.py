"""How people write sizes, durations and the addresses of engines. Pure: nothing is asked or opened."""

from __future__ import annotations

import re

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([KMGT]?)(i?)B?\Z")
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?([smhd])\Z")


def parse_size(text: str) -> int | None:
    """Bytes of a size as people write it: `1048576`, `512KB`, `256MiB`, `1.5 GB`. None if unparsable."""
    if not (size := _SIZE.match(text)):
        return None
    amount, unit, binary = size.groups()
    return int(float(amount) * (1024 if binary else 1000) ** " KMGT".index(unit or " "))


def parse_duration(text: str) -> float | None:
    """Seconds of a time as people write it: `90s`, `5m`, `1.5h`, `2d`. None if unparsable."""
    if not (duration := _DURATION.match(text)):
        return None
    return float(duration[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[duration[2]]


def format_size(size: int) -> str:
    """A size as `parse_size` reads it, in the largest unit that divides it: `256MiB`. One with too many digits for that
    is rounded up."""
    for exponent, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB"), (0, "")):
        amount, rest = divmod(size, 1024**exponent)
        if not rest and amount < 10**15:
            return f"{amount}{unit}"
    return f"{-(-size // 1024**4)}TiB"


ENGINES = ("unix://", "tcp://", "http://", "https://")
"""How the URL of a Docker engine begins."""


def engine_problem(url: str) -> str | None:
    """What is wrong with the URL of an engine, as far as can be seen without asking there."""
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
