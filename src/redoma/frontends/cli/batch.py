"""batch: many runs from a file, with their results in another; if restarted, it continues where it was."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from redoma.lib.errors import InvalidRequest, RedomaError
from redoma.models import Result

from .completion import backends, files
from .emit import counted, note, shown
from .options import Size, policy_option
from .state import State

_KNOWN = ("id", "code", "language", "args", "stdin", "env", "timeout", "memory", "files", "policy", "label", "reason")
"""The fields of a job."""
_MAX_LINE = 16 << 20
_MAX_SHOWN = 5
"""How many broken lines are named."""


@click.command("batch")
@click.argument("jobs_file", metavar="JOBS", shell_complete=files)
@click.option("-o", "--output", "results_file", metavar="FILE", required=True, help="Add a line to this for each job.")
@click.option("-j", "--jobs", "count", default="auto", show_default=True, help="Run so many at one time.")
@click.option("--backend", default="auto", show_default=True, shell_complete=backends, help="Run them on this.")
@policy_option
@click.option("--time", "seconds", type=float, help="Limit the time of each, in seconds.")
@click.option("--memory", type=Size(), help="Limit the memory of each, such as 256MiB.")
@click.pass_obj
def batch(state: State, /, jobs_file: str, results_file: str, count: str, **given: Any) -> int:
    """Run many jobs, each a line of JSON in the file JOBS, and write a line of JSON for each as it ends.

    A job has "code", and may have "id", "language", "args", "stdin", "env", "timeout", "memory", "files" (name and
    text) and others of the options of a run. If it is started again with the same files, jobs that have a result are
    not run.

    \b
    Examples:
      redoma batch jobs.jsonl -o results.jsonl
      redoma batch jobs.jsonl -o results.jsonl -j 8 --time 5
    """
    from redoma.pipeline.batch import as_they_end, parallel
    from redoma.pipeline.sync import Executor

    if count != "auto" and not count.isdigit():
        raise InvalidRequest(f"--jobs is {count!r}", why="it is a number, or auto", next="leave it out")
    jobs = parallel(None if count == "auto" else int(count))
    if not Path(jobs_file).is_file():
        raise InvalidRequest(f"there is no file {jobs_file}", why="JOBS is one with a job on each line", next="make it")
    limits = {"time": given["seconds"], "memory": given["memory"]}
    defaults = {
        "backend": given["backend"],
        "policy": given["pack"],
        "limits": {name: value for name, value in limits.items() if value is not None},
    }
    with _Results(results_file) as results, Executor(state.config) as executor:
        progress = _Progress(_count(jobs_file), results.counts)
        broken: list[tuple[int, str]] = []

        async def run(job: tuple[int, bytes]) -> None:
            number, line = job
            job_id, result = await _run(executor.core, number, line, defaults)
            results.add(number, job_id, result)
            if isinstance(result, str):
                broken.append((number, result))
            progress.show()

        async def everything() -> None:
            async for _ in as_they_end(run, _jobs(jobs_file, results.done), jobs):
                continue

        try:
            executor.wait(everything())
        finally:
            progress.end()
            _say_broken(broken, jobs_file, results_file)
    return 0 if set(results.counts) <= {"ok"} else 1


def _say_broken(broken: list[tuple[int, str]], jobs_file: str, results_file: str) -> None:
    """Say which lines held no job that could be run, and how to have them run once they do."""
    for number, why in sorted(broken)[:_MAX_SHOWN]:
        note(f"line {number} of {shown(jobs_file)}: {shown(why, 200)}", "failed", "red")
    if len(broken) > _MAX_SHOWN:
        note(f"{counted(len(broken) - _MAX_SHOWN, 'more line')}: see {shown(results_file)}", "failed", "red")
    if broken:
        click.echo(
            f"  next: fix them, remove their results from {shown(results_file)}, and start the batch again", err=True
        )


async def _run(core: Any, number: int, line: bytes, defaults: dict[str, Any]) -> tuple[Any, Result | str]:
    """Run one job. Returns its id, and its result or why there is none."""
    import msgspec

    job_id: Any = number
    try:
        job = msgspec.json.decode(line, type=dict[str, Any])
        job_id = job.pop("id", number)
        for name in job:
            if name not in _KNOWN:
                return job_id, f"it has an unknown {name!r}; known: {', '.join(_KNOWN)}"
        code, language = job.pop("code", None), job.pop("language", "python")
        if not isinstance(code, str):
            return job_id, 'it has no "code"'
        return job_id, await core.run(code, language, **{**defaults, **job})
    except msgspec.DecodeError as error:
        return job_id, f"it is not a JSON object: {error}"
    except (RedomaError, RecursionError) as error:
        return job_id, str(error)


def _jobs(name: str, done: bytearray) -> Iterator[tuple[int, bytes]]:
    """Yield number and text of the jobs without a result. Lines without a job are skipped."""
    with open(name, "rb") as file:
        number = 0
        while line := file.readline(_MAX_LINE):
            number += 1
            if not line.endswith(b"\n") and len(line) == _MAX_LINE:
                raise InvalidRequest(f"line {number} of {name} is too long", why=f"more than {_MAX_LINE:,} bytes")
            if line.strip() and not (number < len(done) and done[number]):
                yield number, line


def _count(name: str) -> int:
    with open(name, "rb") as file:
        return sum(1 for line in file if line.strip())


class _Results:
    """The file of results: reads which jobs are done, and adds a line for each job. It is locked against other
    writers.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.done = bytearray()
        """By number, whether a job has its result: a byte each, so that millions fit in memory."""
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> _Results:
        import msgspec

        self._file = os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            why = "another batch writes to it"
            raise InvalidRequest(f"{self._name} can't be used", why=why, next="wait for that one") from None
        end = 0
        with open(self._name, "rb") as file:
            for line in file:
                try:
                    told = msgspec.json.decode(line, type=dict[str, Any])
                    number, status = told["job"], told["status"]
                    if not line.endswith(b"\n") or not isinstance(number, int) or number < 1:
                        raise ValueError
                except (msgspec.DecodeError, KeyError, ValueError):
                    if line.endswith(b"\n"):
                        os.close(self._file)
                        why = "it has lines that are not results of a batch"
                        raise InvalidRequest(
                            f"{self._name} can't be used", why=why, next="name another file for the results"
                        ) from None
                    break  # the last line, cut off by a crash: that job is run again
                end += len(line)
                self._note(number, str(status))
        os.ftruncate(self._file, end)
        return self

    def _note(self, number: int, status: str) -> None:
        if number >= len(self.done):
            self.done.extend(bytes(max(number + 1, 2 * len(self.done)) - len(self.done)))
        self.done[number] = 1
        self.counts[status] += 1

    def add(self, number: int, job_id: Any, result: Result | str) -> None:
        """Add one line in one write: a crash leaves it complete, or cut off at the end of the file."""
        import msgspec

        from redoma.frontends.shapes import result_json

        told = {"status": "failed", "error": result} if isinstance(result, str) else result_json(result)
        line = msgspec.json.encode({"job": number, **told, "id": job_id}) + b"\n"
        left = memoryview(line)
        while left:
            left = left[os.write(self._file, left) :]
        self._note(number, told["status"])

    def __exit__(self, *exc: object) -> None:
        os.close(self._file)


class _Progress:
    """The progress on standard error: live on a terminal, else a summary at the end."""

    def __init__(self, total: int, counts: Counter[str]) -> None:
        self._total, self._counts = total, counts
        self._before, self._start, self._last = counts.total(), time.monotonic(), 0.0
        self._live = sys.stderr.isatty()

    def show(self) -> None:
        now = time.monotonic()
        if self._live and now - self._last > 0.1:
            self._last = now
            click.echo(f"\r\x1b[K{self._bar()}", nl=False, err=True)

    def _bar(self) -> str:
        done = self._counts.total()
        rate = (done - self._before) / max(time.monotonic() - self._start, 1e-6)
        left = (self._total - done) / rate if rate else 0
        filled = 20 * done // max(self._total, 1)
        return (
            f"{'█' * filled}{'·' * (20 - filled)} {done}/{self._total}  {rate:.0f}/s  {left:.0f} s left  {self._said()}"
        )

    def _said(self) -> str:
        return ", ".join(f"{count} {status}" for status, count in self._counts.most_common())

    def end(self) -> None:
        if self._live:
            click.echo("\r\x1b[K", nl=False, err=True)
        seconds, ran = time.monotonic() - self._start, self._counts.total() - self._before
        before = f", {self._before} before" if self._before else ""
        note(f"{ran} of {self._total} jobs in {seconds:.1f} s{before}: {self._said() or 'none'}")
