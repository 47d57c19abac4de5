"""What may help a run that failed, for failures that were recognised in its output.

Code can print anything, so a hint says what may be the reason and what to do then. Nothing is decided by it; what is
known for certain is a denial's: see `denial`.
"""

from __future__ import annotations

import re
import sys

import msgspec

from ..backends.base import Capabilities
from ..lib.units import format_size
from ..models import Diagnosis, Limits, Request
from .denial import raising

_WORDS: dict[str, tuple[str, ...]] = {
    "disk": ("no space left on device", "disk quota exceeded"),
    "open_files": ("too many open files",),
    "file_size": ("file too large", "file size limit exceeded", "sigxfsz"),
    "processes": ("can't start new thread", "fork: resource temporarily unavailable", "fork: retry: resource temp"),
}
"""Limit → what the system says when it is reached, in lower case."""
_MAX_MESSAGE = 300
_MISSING = re.compile(r"No module named '([A-Za-z_]\w{0,99})")
_PACKAGES = (
    "aiohttp altair anyio arrow babel black bokeh boto3 botocore celery click cryptography cython dask django "
    "duckdb fastapi flask gensim h5py httpx jinja2 jsonschema keras lightgbm lxml mako markdown matplotlib mypy "
    "networkx nltk numba numpy openpyxl orjson pandas plotly polars psutil psycopg pyarrow pydantic pygments "
    "pymongo pytest pytz redis regex requests rich scipy seaborn shapely six spacy sqlalchemy starlette "
    "statsmodels sympy tabulate torch tornado tqdm transformers typer urllib3 uvicorn xarray xgboost xlsxwriter"
)
_SAME_NAME = frozenset(_PACKAGES.split())
"""Modules whose package has the same name. To guess it for others could name a package that somebody made to be
installed by mistake."""


def with_hints(
    found: tuple[Diagnosis, ...], error: str, request: Request, can: Capabilities, *, in_session: bool
) -> tuple[Diagnosis, ...]:
    """Return the diagnoses of a failed run, with hints. `error` is its error without secrets, and `can` what the
    backend that ran it can do.
    """
    if error.startswith("could not start ") and (limit := _limit_in(error, can)):  # nothing was printed
        found = (Diagnosis(kind=f"resource.{limit}", message=error[:_MAX_MESSAGE]), *found)
    given: set[str] = set()
    hinted = []
    for one in found:
        hint = _hint(one, request, can, in_session=in_session)
        hinted.append(msgspec.structs.replace(one, hint=hint) if hint not in given else one)
        given.add(hint)
    return tuple(hinted)


def _hint(one: Diagnosis, request: Request, can: Capabilities, *, in_session: bool) -> str:
    if one.exception == "ModuleNotFoundError" and (missing := _MISSING.match(one.message)):
        return _about_module(missing[1], request, can, in_session=in_session)
    limit = _limit_in(one.message, can)
    return _about_limit(limit, request.limits, in_session=in_session) if limit else ""


def _limit_in(message: str, can: Capabilities) -> str:
    """Return the limit that a message may be about, if the backend enforces it; else an empty text."""
    said = message.lower()
    found = (limit for limit, words in _WORDS.items() if any(word in said for word in words))
    return next((limit for limit in found if limit in can.limits), "")


def _about_limit(limit: str, limits: Limits, *, in_session: bool) -> str:
    more = _more(limit, limits, in_session=in_session)
    match limit:
        case "disk":
            files = _more("files", limits, in_session=in_session)
            size = format_size(limits.disk)
            return (
                f"this may be a limit of the run, not a full disk: its files may take {size} together and be "
                f"{limits.files:,}. Ask for more: {raising(limit, limits, in_session=in_session)} or {files}"
            )
        case "open_files":
            return f"each of its processes may have {limits.open_files} open files. Ask for more: {more}"
        case "file_size":
            return f"each of its files may have {format_size(limits.file_size)}. Ask for more: {more}"
        case _:
            return f"it may have {limits.processes} processes and threads. Ask for more: {more}"


def _more(limit: str, limits: Limits, *, in_session: bool) -> str:
    """Return how to ask for more of a limit; in the configuration, if the command line has no option for it."""
    asked = raising(limit, limits, in_session=in_session)
    return asked if "`" in asked else f"{asked}, or under `limits` in redoma.yaml"


def _about_module(module: str, request: Request, can: Capabilities, *, in_session: bool) -> str:
    """Return how to get a package that is missing; empty where no packages can be given."""
    of_python = module in sys.stdlib_module_names
    if of_python or request.language != "python" or not (can.environments or in_session):
        return ""
    known = module in _SAME_NAME
    package = module if known else "PACKAGE"
    create = f"`redoma env create NAME {package}`"
    what = f"{package}" if known else "the package that has it"
    if in_session:
        advice = f"make an environment with {what}, {create}, and open a session with it: "
        advice += "redoma.Session(environment='NAME') (`redoma repl --environment NAME`)"
        own = f"session.files.write('{module}.py', text)"
    else:
        advice = f"name {what}: packages=['{package}'] (`--package {package}`), which a person has to approve; or use "
        advice += f"an environment with it ({create})"
        own = f"files=['{module}.py'] (`-f {module}.py`)"
    return f"no {module} is installed here; {advice}" + ("" if known else f". If it is a file of yours, add it: {own}")
