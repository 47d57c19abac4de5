"""Where packages come from, as pip's own configuration says (or uv's variables, where that says nothing), and what an
install cell may reach for that.

Read through `pip config`, in a process of its own, because pip alone knows all the places that it looks at.
"""

from __future__ import annotations

import ast
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

import msgspec

from ..lib.errors import BackendError, InvalidRequest
from ..lib.files import reason
from ..lib.hosts import as_address, why_not_public
from ..models import HostRule, Secret, host_rule

PYPI = "https://pypi.org/simple"
_FILES_OF = {"pypi.org": "files.pythonhosted.org", "test.pypi.org": "test-files.pythonhosted.org"}
"""Where an index has its files, if not on its own host."""
_READING = ("GET", "HEAD")
_PORTS = {"https": 443, "http": 80}
_TIMEOUT = 60.0
_LINE = re.compile(r"(?P<section>[^=]*)\.(?P<name>[a-z-]+)=(?P<value>.*)\Z")
_PLACEHOLDER = "REDOMA_INDEX_PASSWORD_{}"


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """The package index: what an install cell is told of it, and its network. Passwords are in `secrets` only."""

    urls: tuple[str, ...]
    """The first is the index, the others are extra ones. `{NAME}` stands for the value of a variable of the cell."""
    trusted: tuple[str, ...] = ()
    """Hosts that pip's configuration trusts without TLS."""
    rules: tuple[HostRule, ...] = ()
    secrets: dict[str, Secret] = {}

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(rule.host for rule in self.rules))


def configured_index(more: Iterable[str] = ()) -> Index:
    """Return the index of pip's configuration; `more` are further hosts for its files. Slow: resolves names.

    A host with a private address is pinned to that address, since the user's own configuration names it. Raises
    `BackendError` if a host can't be resolved, and `InvalidRequest` if the configuration has no index to use.
    """
    settings = _settings()
    first = settings.get("index-url") or os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL") or PYPI
    given = [*first.split()[:1], *settings.get("extra-index-url", "").split()]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        given = []
    remote = [url for url in given if urlsplit(url).scheme in _PORTS and urlsplit(url).hostname]
    if not remote:
        raise InvalidRequest(
            "no package can be installed",
            why="pip's configuration names no index of the network",
            next="set index-url: pip config set global.index-url https://pypi.org/simple",
        )
    urls, secrets = list[str](), dict[str, Secret]()
    for number, url in enumerate(remote):
        urls.append(_without_password(urlsplit(url), _PLACEHOLDER.format(number), secrets))
    return Index(
        urls=tuple(urls),
        trusted=tuple(settings.get("trusted-host", "").split()),
        rules=tuple(dict.fromkeys([*_rules(map(urlsplit, remote)), *map(host_rule, more)])),
        secrets=secrets,
    )


def _settings() -> dict[str, str]:
    """Return pip's settings. As in pip, variables override files, and the section `install` overrides `global`."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
            env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError("pip's configuration can't be read", why=str(error), next="try `pip config list`") from error
    if done.returncode and "No module named pip" in done.stderr:
        return _of_variables()
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        raise BackendError("pip's configuration can't be read", why=why, next="try `pip config list`")
    ranks = {"global": 0, "install": 1, ":env:": 2}
    found: dict[str, tuple[int, str]] = {}
    for line in filter(None, map(_LINE.match, done.stdout.splitlines())):
        rank = ranks.get(line["section"], -1)
        if rank >= found.get(line["name"], (0, ""))[0]:
            found[line["name"]] = (rank, _value(line["value"]))
    return {name: value for name, (_, value) in found.items()}


def _value(text: str) -> str:
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text


def _of_variables() -> dict[str, str]:
    """Return pip's settings from variables alone, for an interpreter without pip."""
    names = ("index-url", "extra-index-url", "trusted-host", "no-index", "find-links")
    return {name: value for name in names if (value := os.environ.get(f"PIP_{name.upper().replace('-', '_')}"))}


def _without_password(url: SplitResult, name: str, secrets: dict[str, Secret]) -> str:
    """Return the URL with `{NAME}` in place of its password, which goes to `secrets`."""
    if not url.password:
        return urlunsplit(url)
    secrets[name] = Secret(unquote(url.password), hosts=(url.hostname or "",))
    host = url.netloc.rpartition("@")[2]
    return urlunsplit(url._replace(netloc=f"{url.username}:{{{name}}}@{host}"))


def _rules(urls: Iterable[SplitResult]) -> Iterator[HostRule]:
    """Yield rules that permit reading from these hosts. Not writing: an index takes uploads, too."""
    for url in urls:
        host, port = url.hostname or "", url.port or _PORTS[url.scheme]
        for each in filter(None, (host, _FILES_OF.get(host))):
            yield HostRule(host=each, port=port, methods=_READING, addresses=_pinned(each, port))


def _pinned(host: str, port: int) -> tuple[str, ...]:
    """Return the addresses of a host if one is private; otherwise none, and the proxy resolves it."""
    if as_address(host) is not None:
        return ()  # a rule that names an address permits it
    try:
        answer = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise BackendError(
            f"the package index {host} can't be reached",
            why=reason(error),
            next="check the network, or index-url in pip's configuration",
        ) from error
    found = [ip_address(str(each[4][0]).partition("%")[0]) for each in answer]
    return tuple(dict.fromkeys(map(str, found))) if any(map(why_not_public, found)) else ()
