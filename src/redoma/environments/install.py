"""The code of the install cell, and how the files it leaves are taken.

Installing runs foreign code: a `setup.py`, a build backend. So pip runs in a cell that reaches the index alone, and
what it leaves is untrusted: only regular files are taken, anything else refuses the whole install, and pip's report
is validated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from ..backends.base import OverlayEntry
from ..lib.errors import EnvironmentProblem
from ..lib.types import resolved
from ..models import Limits, NetworkRequest, Result, Status
from .index import Index
from .store import New, Package

LIMITS = Limits(
    time=3600.0,
    cpu=7200.0,
    memory=4 << 30,
    processes=256,
    file_size=4 << 30,
    disk=8 << 30,
    files=95_000,
    open_files=1024,
    network_bytes=8 << 30,
)
"""Of an install. Each is bounded; building a large package takes long."""

CODE = """
import glob, json, os, subprocess, sys, sysconfig

order = json.load(sys.stdin)
here = os.getcwd()
os.mkdir("tmp")
with open("requirements.txt", "w") as file:
    file.write("\\n".join(order["requirements"]) + "\\n")
places = [sysconfig.get_path("purelib"), os.path.join(os.path.dirname(os.__file__), "ensurepip", "_bundled")]
places.append(sysconfig.get_config_var("WHEEL_PKG_DIR") or "/usr/share/python-wheels")
names = ("/pip/__pip-runner__.py", "/pip-*.whl")
found = [path for place in places for name in names for path in glob.glob(place + name)]
if not found:
    sys.exit("error: this interpreter has neither pip nor ensurepip")
program = os.path.dirname(found[0]) if found[0].endswith(".py") else found[0] + "/pip"
first, *more = [url.format(**os.environ) for url in order["urls"]]
settings = {
    "TMPDIR": here + "/tmp",
    "HOME": here + "/tmp",
    "PIP_INDEX_URL": first,
    "PIP_EXTRA_INDEX_URL": " ".join(more),
    "PIP_TRUSTED_HOST": " ".join(order["trusted"]),
}
options = ["--prefix", here + "/env", "--ignore-installed", "--no-input", "--no-cache-dir"]
options += ["--report", here + "/report.json", "--disable-pip-version-check", "--no-warn-script-location"]
options += ["--progress-bar", "off", "--retries", "2", "--timeout", "30", "--no-compile"]
command = [sys.executable, program, "install", *options, "--requirement", "requirements.txt"]
status = subprocess.call(command, env={**os.environ, **settings})
if status == 0:
    names = ["-s", here + "/env", "-p", sys.prefix, "--invalidation-mode", "unchecked-hash"]
    subprocess.call([sys.executable, "-m", "compileall", "-qq", "-j", "0", *names, here + "/env/lib"])
sys.exit(status)
"""
"""Runs pip: a copy of this interpreter's own, or the one that came with it. No other package is in an install cell.
Modules are compiled with the paths that they have in cells, and without the time of their source, so that the same
packages are the same files, whenever and wherever they were installed."""

_TOP, _REPORT = "env/", "report.json"
_MAX_REPORT = 32 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_VERSION = re.compile(r"[A-Za-z0-9.!+_-]{1,128}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


def order(requirements: Iterable[str], index: Index) -> bytes:
    """The input of `CODE`."""
    return msgspec.json.encode({"requirements": list(requirements), "urls": index.urls, "trusted": index.trusted})


class _Archive(msgspec.Struct, frozen=True):
    hashes: dict[str, str] = {}


class _Download(msgspec.Struct, frozen=True):
    archive_info: _Archive = _Archive()


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    version: str


class _Installed(msgspec.Struct, frozen=True):
    metadata: _Metadata
    download_info: _Download = _Download()


class _Report(msgspec.Struct, frozen=True):
    install: list[_Installed] = []


def take(entries: Iterable[OverlayEntry], new: New) -> tuple[Package, ...]:
    """Move the files that the install cell left into `new`, and return the packages that pip reported. Slow.

    Raises `EnvironmentProblem` for anything but files and directories.
    """
    reported: tuple[Package, ...] = ()
    for entry in entries:
        if entry.path == _REPORT and entry.kind == "file" and entry.size <= _MAX_REPORT:
            reported = _packages((new.stage / entry.blob).read_bytes())
        if entry.kind == "refused" and not entry.path.startswith("tmp/"):
            raise _odd(entry.path, entry.why)
        if not entry.path.startswith(_TOP):
            continue
        path = entry.path.removeprefix(_TOP)
        if entry.kind == "directory":
            new.directory(path)
        elif entry.kind == "file" and not entry.link_of:
            new.file(path, entry.blob, entry.sha256, entry.size, executable=bool(entry.mode & 0o100))
        else:
            raise _odd(path, "it is a link" if entry.kind != "removed" else "it is not a file")
    if not new.count:
        raise EnvironmentProblem("nothing was installed", why="pip left no files", next="name packages")
    return reported


def _odd(path: str, why: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        "the packages can't be kept",
        why=f"{ascii(path)[1:-1][:200]}: {why}",
        next="leave out the package that makes it",
    )


def _packages(report: bytes) -> tuple[Package, ...]:
    try:
        found = msgspec.json.decode(report, type=resolved(_Report)).install
    except (msgspec.DecodeError, RecursionError) as error:
        raise EnvironmentProblem("pip's report can't be read", why=str(error)[:200], next="try again") from None
    packages = []
    for each in found[:10_000]:
        sha256 = each.download_info.archive_info.hashes.get("sha256", "")
        if not _NAME.match(each.metadata.name) or not _VERSION.match(each.metadata.version):
            raise EnvironmentProblem("pip's report can't be read", why="it has an invalid name", next="try again")
        packages.append(
            Package(
                name=each.metadata.name, version=each.metadata.version, sha256=sha256 if _SHA256.match(sha256) else ""
            )
        )
    return tuple(sorted(packages, key=lambda package: package.name.lower()))


def problem(result: Result, index: Index) -> EnvironmentProblem:
    """Return the error for an install that failed: what happened, why, and what to do next."""
    what, printed = "the packages can't be installed", f"{result.stderr}\n{result.stdout}"
    if lost := _unreached(result.network, index):
        return EnvironmentProblem(
            "the package index can't be reached",
            why=f"{lost.host}: {lost.why}",
            next="check the network, or index-url in pip's configuration (`pip config list`)",
        )
    if missing := re.search(r"No matching distribution found for ([^\n]{1,200})", printed):
        return EnvironmentProblem(
            f"there is no package {missing[1].strip()}",
            why=f"{', '.join(index.hosts)} has none of that name and version for this Python",
            next="check the spelling and the version",
        )
    if result.status is not Status.ERROR:
        return EnvironmentProblem(what, why=result.error or str(result.status), next="name fewer packages at a time")
    if "No space left on device" in printed:
        return EnvironmentProblem(what, why="there is no space left on the disk", next="free some space")
    if refused := next((one for one in result.network if one.decision == "denied"), None):
        return EnvironmentProblem(
            what,
            why=f"it wanted to reach {refused.host}, and the index is {', '.join(index.hosts)}",
            next=f"if the index has its files there: --allow-host {refused.rule or refused.host}",
        )
    errors = [line for line in printed.splitlines() if line.strip().lower().startswith("error")]
    return EnvironmentProblem(what, why=(errors or [result.error or "pip failed"])[-1].strip()[:500], next="see above")


def _unreached(requests: Iterable[NetworkRequest], index: Index) -> NetworkRequest | None:
    """Return a failed request to the index, if no request to it succeeded."""
    made = [one for one in requests if one.host in index.hosts]
    failed = [one for one in made if one.decision == "failed"]
    return failed[-1] if failed and not any(one.decision == "allowed" for one in made) else None
