"""How a request ended: the one `Result` that every caller gets, and its parts."""

from __future__ import annotations

import enum
from typing import Any, Literal, NamedTuple

import msgspec

from ..lib.errors import InvalidRequest, RedomaError
from ..lib.text import cut_middle, shorten
from .effect import Effect
from .evaluation import Approval, Evaluation, Level
from .isolation import Isolation
from .network import NetworkRequest
from .request import Seed, Stream


class Status(enum.StrEnum):
    """How a request ended. Three endings, never confused: it ran, we refused, we failed. Or it waits for a person."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT = "output"
    KILLED = "killed"

    FORBIDDEN = "forbidden"
    DENIED = "denied"
    EXPIRED = "expired"

    FAILED = "failed"

    PENDING = "pending"

    @property
    def ending(self) -> Literal["ran", "refused", "failed", "pending"]:
        if self in (Status.FORBIDDEN, Status.DENIED, Status.EXPIRED):
            return "refused"
        if self is Status.PENDING:
            return "pending"
        return "failed" if self is Status.FAILED else "ran"


class Chunk(NamedTuple):
    """A piece of output, during the run."""

    stream: Stream
    text: str


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a run used. None means that the backend doesn't know: never a made-up zero."""

    wall: float = 0.0
    cpu: float | None = None
    memory: int | None = None


class Denial(msgspec.Struct, frozen=True, kw_only=True):
    """Why something was refused, and what would be allowed: the same record, whatever refused it."""

    rule: str
    """What refused it: a rule of the policy, `limits.memory`, `backend.unsupported` …"""
    resource: str = ""
    """What it was about: the command, the path, the limit, the layer."""
    why: str
    allowed: str
    """What to do instead."""
    narrowest: str = ""
    """Lines of a redoma.yaml that permit it, as narrowly as possible; empty if none could. For a rule exactly this
    request; for a limit, more of it for every run; for an executor, to be merged into its other lines.
    """
    retry: bool = False
    """Whether the same request may succeed if it is repeated."""
    retry_why: str = ""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A failure that was recognised in the output of a run. A help for the reader, never a verdict: programs may print
    anything.
    """

    kind: str
    """Stable, from the general to the specific: `python.exception`, `tool.make`, `file.missing`."""
    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    """1-based; 0 if unknown."""
    function: str = ""
    exception: str = ""
    """The type, as its language spells it."""
    hint: str = ""
    """What may help, if something is known that does: the limit that it may have met, how to get a package."""


class Artifact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that a run printed to one stream, if the result has only its beginning and its end: redacted and
    sanitised like the result. Kept for a while; `artifacts.StoredArtifact` is one that can be read.
    """

    id: str
    """The run's id; with the stream, `redoma output` finds it by this."""
    stream: Literal["stdout", "stderr"]
    size: int = 0
    """Bytes, of UTF-8 text."""
    line_count: int = 0
    sha256: str = ""
    redacted: dict[str, int] = {}
    """How many secrets of each kind were removed from it."""
    missing: str = ""
    """Why it is incomplete: the disk was full, or it exceeded the bound. Empty if it is complete."""

    def read(self, start: int = 0, size: int = 65536) -> bytes:
        """Return some of its bytes; fewer, or none, at its end."""
        raise self._only_described()

    def lines(self, first: int = 1, count: int = 100) -> list[str]:
        """Return some of its lines, without their ends, counted from 1."""
        raise self._only_described()

    def _only_described(self) -> RedomaError:
        return RedomaError(
            f"the {self.stream} of run {self.id} can't be read from here",
            why="this is its description only",
            next=f"use `redoma output {self.id} --stream {self.stream}`",
        )


class Display(msgspec.Struct, frozen=True, kw_only=True):
    """Something that code showed besides its output, as in a notebook: a picture, a table, a formula.

    The code made all of it: show HTML or SVG only in a frame without rights (`<iframe sandbox>`), not in a page.
    """

    data: dict[str, Any]  # not `str | bytes`: JSON can't distinguish them, and encodes bytes as base64
    """Type → content: `image/png` and `image/jpeg` as bytes; `text/html`, `text/markdown`, `text/latex`,
    `image/svg+xml`, `application/json` and `text/plain` as text, without secrets."""
    is_value: bool = False
    """Whether it shows the value of the last expression."""

    @property
    def text(self) -> str:
        """The display as plain text."""
        text = self.data.get("text/plain", "")
        return text if isinstance(text, str) else ""

    @property
    def png(self) -> bytes | None:
        """The picture, if it is one."""
        picture = self.data.get("image/png")
        return picture if isinstance(picture, bytes) else None

    @property
    def html(self) -> str | None:
        html = self.data.get("text/html")
        return html if isinstance(html, str) else None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The one answer to a request, whichever backend ran it and however it ended."""

    id: str
    status: Status
    exit_code: int | None = None
    """The code's own exit status; None if it didn't run or didn't get that far."""
    stdout: str = ""
    stderr: str = ""
    value: Any = None
    """The value of a last expression: plain data, dates and `Decimal` unchanged, a NumPy scalar as its number, anything
    else as its `repr`.
    """
    value_repr: str | None = None
    """The value as Python prints it; None if there was none."""
    exception: str | None = None
    """The type of the exception that ended the code, if the backend knows it."""
    error: str | None = None
    """What went wrong."""
    backend: str = ""
    passed_over: dict[str, str] = {}
    """Backend → why it could not run it, for those that `auto` tried first."""
    evaluation: Evaluation
    level: Level | None = None
    level_why: tuple[str, ...] = ()
    denial: Denial | None = None
    """What refused it, and what would be allowed, if it was refused, could not run, or was ended at a limit."""
    isolation: Isolation = Isolation()
    usage: Usage = Usage()
    seed: Seed | None = None
    """The seed of its random numbers, if the backend knows it."""
    redacted: dict[str, int] = {}
    """Kind of secret → how many were removed from this result."""
    omitted: dict[Stream, int] = {}
    """Bytes of each stream that were left out to keep it within the limits."""
    files: dict[str, bytes] = {}
    """Path → content of the files that `outputs` requested: new or changed ones, as the run left them, not redacted."""
    left_out: dict[str, str] = {}
    """Path → why a file that `outputs` requested was not returned."""
    data: Any = None
    """The output parsed as `expect` requested."""
    mismatch: str | None = None
    """How the output differs from what `expect` requested. The code itself may have succeeded."""
    displays: tuple[Display, ...] = ()
    """What it showed besides its output: pictures, tables."""
    diagnoses: tuple[Diagnosis, ...] = ()
    """Failures that were recognised in the output, the most important first."""
    artifacts: dict[Stream, Artifact] = {}
    """The whole of each stream that was cut in `stdout` or `stderr`."""
    effect: Effect | None = None
    """What it did to its project. In an overlay the project itself has not changed yet."""
    network: tuple[NetworkRequest, ...] = ()
    """Every request that it made to a host, or was not allowed to make, in the order in which they ended."""
    unexpected: tuple[str, ...] = ()
    """Paths that it changed outside of the declared ones."""
    rollback: dict[str, str] | None = None
    """Set if a checkpoint was restored: path → why it could not be restored. None if nothing was restored."""
    no_checkpoint: str = ""
    """Why there was no checkpoint, though the run needed approval and worked in a directory of the host."""
    approval: Approval | None = None
    """A person's answer, if one was asked."""
    approval_id: str = ""
    """The id of the question that a person was asked. Pass that of a `pending` result to `resume`."""

    def __repr__(self) -> str:
        """Return the essentials, in a few hundred characters: all fields together would be thousands."""
        parts = [self.status.value]
        if self.exit_code not in (None, 0):
            parts.append(f"exit code {self.exit_code}")
        if self.value_repr is not None:
            shown = self.value_repr[:_MAX_SHOWN]
            parts.append(f"value={_beginning(self.value_repr) if shown.isprintable() else _quoted(shown)}")
        texts = {"error": self.error, "mismatch": self.mismatch, "stdout": self.stdout}
        texts["stderr"] = "" if self.error else self.stderr  # usually it ends with the error
        parts += [f"{name}={_quoted(text)}" for name, text in texts.items() if text]
        if self.files:
            parts.append(f"{len(self.files)} files" if len(self.files) > 1 else "1 file")
        if self.backend:
            parts.append(f"{self.usage.wall:.3g} s on {self.backend}")
        return f"<Result {', '.join([*parts, f'id={self.id}'])}>"

    @property
    def ok(self) -> bool:
        """Whether it succeeded. Ask this, not for the truth of the result itself: every result is true."""
        return self.status is Status.OK

    @property
    def hints(self) -> tuple[str, ...]:
        """What may help a run that failed: by what was recognised in its output, and if it wanted to install something,
        which no sandbox without a network can.
        """
        if self.status is not Status.ERROR:
            return ()
        installs = [one for one in self.evaluation.findings if one.out_of_reach and one.rule.startswith("install.")]
        found = [*(one.hint for one in self.diagnoses), *(one.suggestion for one in installs)]
        return tuple(dict.fromkeys(hint for hint in found if hint))

    def to_text(self, limit: int = 8000) -> str:
        """Return a summary as one text, for a language model or a log: how it ended, output, value and error.

        `limit` is the maximum number of characters (at least 200). Each part gets its share; the middle of a part that
        is too long is left out. The text stays redacted.
        """
        if limit < 200:
            raise InvalidRequest(f"limit is {limit}", why="nothing useful fits", next="allow 200 characters or more")
        head = f"status: {self.status.value}"
        head += "" if self.exit_code in (None, 0) else f" (exit code {self.exit_code})"
        said, denial = self.error or "", self.denial
        parts = {
            "stdout": self.stdout.strip("\n"),
            "stderr": self.stderr.strip("\n"),
            "value": None if self.value is None else self.value_repr or repr(self.value),
            "error": self.error,
            # Usually the error already contains these words.
            "denied": denial.why if denial and denial.why not in said else None,
            "allowed": denial.allowed if denial and denial.allowed not in said else None,
            "hint": "\n".join(self.hints),
            "mismatch": self.mismatch,
            "files": ", ".join(sorted(self.files)),
        }
        shown = {name: text for name, text in parts.items() if text}
        room, texts = limit - len(head), {}
        for place, (name, text) in enumerate(sorted(shown.items(), key=lambda part: len(part[1]))):
            share = room // (len(shown) - place)  # short ones first, so that the others get what they don't need
            texts[name] = cut_middle(f"\n{name}:\n{text}" if "\n" in text else f"\n{name}: {text}", share)
            room -= len(texts[name])
        return head + "".join(texts[name] for name in shown)

    @property
    def shell_exit(self) -> int:
        """The exit status for a command line."""
        match self.status:
            case Status.OK:
                return 0
            case Status.ERROR:
                return self.exit_code or 1
            case Status.TIMEOUT:
                return 124
            case Status.MEMORY | Status.OUTPUT:
                return 137
            case Status.KILLED:
                return self.exit_code or 137
            case Status.FORBIDDEN | Status.DENIED | Status.EXPIRED:
                return 126
            case Status.FAILED:
                return 125
            case Status.PENDING:
                return 75  # EX_TEMPFAIL: try again later


_MAX_SHOWN = 100  # characters of each part in the `repr` of a result


def _beginning(text: str) -> str:
    """Return the beginning of a text."""
    return shorten(text[: _MAX_SHOWN + 1], _MAX_SHOWN)


def _quoted(text: str) -> str:
    """Return the beginning of a text in quotation marks, without control characters."""
    return _beginning(repr(text[:_MAX_SHOWN]) + ("…" if len(text) > _MAX_SHOWN else ""))
