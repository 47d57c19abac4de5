"""Bash that a cell starts before it knows the script: it is the shell that a run would have started itself, and the
helper that passes the script on gains a guest nothing."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from jail_insides import behind, children_of, jail, pool_of, run, soon

from redoma import AsyncExecutor, Result, Status
from redoma.backends.jail import JailBackend
from redoma.backends.jail.cell import Ahead, Spec
from redoma.models import Limits

MARK = "tr '\\0' '\\n' < /proc/$$/environ | grep -c ^BASH_ENV="  # what the process was executed with
Jail = tuple[AsyncExecutor, JailBackend]
_disk = itertools.count(Limits().disk + 4096, 4096)


@pytest.fixture(params=["group", "watched"])
async def the(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Jail]:
    """One whose cells have their memory limited by a control group, and one where init watches it."""
    executor, backend = jail(tmp_path, minimum=1, without=["memory"] if request.param == "watched" else [])
    async with executor:
        yield executor, backend


def kinds(backend: JailBackend) -> list[bool]:
    """Return of each armed cell whether it has started a shell."""
    return [cell.spec.ahead is not None for cell in list(pool_of(backend)._armed)]


async def ahead(the: Jail, script: str, files: dict[str, str] | None = None, **options: Any) -> Result:
    """Run a script after others of its kind, so that the shell was started ahead if its kind allows it."""
    executor, backend = the
    for _ in range(3):  # a kind is kept from the second request on, and the first run of all finds out about groups
        assert (await run(executor, ":", "bash", **options)).ok
    pool = pool_of(backend)
    await soon(lambda: any(cell.spec in pool._kept()[-1:] for cell in list(pool._armed)), 1)
    return await run(executor, script, "bash", files=files or {}, **options)


async def plain(the: Jail, script: str, limits: dict[str, Any] | None = None, **options: Any) -> Result:
    """Run it in a cell that starts the shell when the script is there, as it does for a kind that is requested once."""
    return await run(the[0], script, "bash", limits={"disk": next(_disk), **(limits or {})}, **options)


async def test_it_is_used_and_only_where_nothing_but_the_script_is_the_requests_own(the: Jail) -> None:
    assert (await plain(the, MARK)).stdout == "0\n"
    assert (await ahead(the, MARK)).stdout == "1\n"
    assert (await ahead(the, MARK, files={"data.txt": "x"}, stdin="in\n")).stdout == "1\n"
    assert (await ahead(the, MARK, env={"NAME": "value"})).stdout == "0\n"
    assert (await ahead(the, MARK, args=["one"])).stdout == "0\n"
    assert (await ahead(the, MARK, limits={"file_size": "1MiB"})).stdout == "1\n"
    assert (await ahead(the, MARK, limits={"processes": 3})).stdout == "0\n"


SCRIPTS = {
    "variables": "set | grep -v -e ^BASH_ARGC= -e ^PIPESTATUS= -e ^SECONDS=",  # `_BEGIN` in guest.py leaves these
    "environment": "env",
    "options": "set -o; shopt; echo $-",
    "limits": "ulimit -a; ulimit -Ha",
    "parameters": 'echo "$0" "$_" "$#" "$@" $$ $PPID $SHLVL $LINENO "${BASH_SOURCE[@]}" "$BASH"; caller',
    "time": "echo $SECONDS",
    "state": "trap -p; alias; jobs; dirs; umask; pwd; declare -F; type ls; hash",
    "descriptors": "ls -l /proc/self/fd | awk '{print $1, $9, $10, $11}' | sed 's/[0-9]*]$/]/'; ls /proc/$$/fd",
    "signals": "while read -r x; do case $x in Sig[IC]*|Cap*|NoNew*|Secc*) echo $x;; esac; done < /proc/$$/status",
    "files": "ls -lA /run /workspace /tmp | awk '{print $1, $3, $4, $NF}'; cat /run/script",
    "processes": "sleep 0.3; ls /proc; cat /proc/$$/cmdline",
    "identity": "id; cat /proc/self/oom_score_adj; cat /proc/$$/comm; echo $BASHPID",
    "error": "no-such-program; echo $?; echo ${x:?unset}",
    "syntax": "echo one\nif then",
    "exit": "echo out; echo err >&2; exit 7",
    "signal": "kill -TERM $$",
    "read": 'read -r line; echo "$line"; cat',
    "functions": "f() { local x=1; echo $FUNCNAME $x; return 3; }; f; echo $?",
    "a line without an end": "printf abc",
    "bytes": "printf '\\xff\\x00é'; echo \"${#LANG}\" é | cat -v",
    "large": "# " + "x" * 200_000 + "\necho done",
    "comment": "# only a comment",
    "child": "bash -c 'env; set -o; echo $SHLVL $0'; sh -c 'echo $PPID'",
    "exec": "exec env",
    "strict": "set -euo pipefail; echo ${BASH_ENV-none}; false; echo not here",
}


async def test_it_is_the_shell_that_a_run_would_have_started(the: Jail) -> None:
    different = {}
    for name, script in SCRIPTS.items():
        expected = await plain(the, script, stdin="first\nrest")
        found = await ahead(the, script, stdin="first\nrest")
        for part in ("status", "exit_code", "error", "stdout", "stderr"):
            if getattr(found, part) != getattr(expected, part):
                different[name, part] = getattr(found, part), getattr(expected, part)
    assert different == {}


async def test_what_arming_cost_is_not_the_runs(the: Jail) -> None:
    used = [(await ahead(the, ":")).usage.cpu or 0.0 for _ in range(5)]
    otherwise = [(await plain(the, ":")).usage.cpu or 0.0 for _ in range(5)]  # this one executes Bash in its run
    assert min(used) <= min(otherwise)


async def test_its_limits_hold(the: Jail) -> None:
    sure = f"[ $({MARK}) = 1 ] || exit 99\n"
    busy = await ahead(the, f"{sure}while :; do :; done", limits={"cpu": 1.0, "time": 60.0})
    assert busy.status is Status.TIMEOUT
    many = "for i in {1..40}; do sleep 60 & done; echo all"
    forks = await ahead(the, sure + many, limits={"processes": 20})
    assert "all" not in forks.stdout, forks
    assert forks.exit_code != 99
    large = await ahead(the, f"{sure}yes | head -c 3M > large; stat -c %s large", limits={"file_size": "1MiB"})
    assert large.stdout == f"{1 << 20}\n", large
    grow = f"{sure}x=$(yes | head -c 300M); echo ${{#x}}"
    memory = await ahead(the, grow, limits={"memory": "128MiB", "time": 100.0})
    assert memory.status is Status.MEMORY, memory


async def test_they_are_those_of_its_helper_too(the: Jail) -> None:
    limits = {"processes": 20, "file_size": "1MiB", "open_files": 40}
    show = "for who in self 3; do grep -E 'processes|Max file size|open files' /proc/$who/limits; done"
    for _ in range(20):  # until it is stopped before it has ended
        result = await ahead(the, f"kill -STOP 3 || exit 99; {show}", limits=limits)
        if result.exit_code == 0:
            break
    lines = [line.split() for line in result.stdout.splitlines()]
    assert len(lines) == 6, result
    assert lines[:3] == lines[3:]
    assert lines[0][3:5] == [str(1 << 20)] * 2, "of files"


async def test_files_that_are_larger_than_it_could_write_are_placed(the: Jail) -> None:
    result = await ahead(the, "stat -c %s large", files={"large": "x" * (2 << 20)}, limits={"file_size": "1MiB"})
    assert result.stdout == f"{2 << 20}\n", result


# --- attacks on what is new ---


async def test_the_helper_holds_nothing_of_ours_and_ends_by_itself(the: Jail) -> None:
    result = await ahead(
        the, "ls -l /proc/3/fd 2>/dev/null | grep -e socket -e ready; ls /run; sleep 0.5; ls -d /proc/3"
    )
    assert "socket" not in result.stdout
    assert result.stdout.splitlines() == ["script"], result.stdout
    assert "/proc/3" in result.stderr


@pytest.mark.parametrize("number", ["STOP", "KILL", "INT", "TERM", "SEGV"])
async def test_a_signal_for_the_helper_changes_nothing(the: Jail, number: str) -> None:
    result = await ahead(the, f"kill -{number} 3 2> /dev/null; echo here; exit 7")
    assert (result.status, result.exit_code, result.stdout) == (Status.ERROR, 7, "here\n")
    assert result.stderr == ""


async def test_an_interrupt_of_the_whole_group_prints_nothing_of_ours(the: Jail) -> None:
    result = await ahead(the, "trap 'echo caught' INT; kill -INT 0; exit 5")
    assert (result.exit_code, result.stdout, result.stderr) == (5, "caught\n", "")


SEARCH = """kill -STOP 3 || exit 99
python3 - <<'END'
import re
memory = open('/proc/3/mem', 'rb')
for line in open('/proc/3/maps'):
    start, end = (int(number, 16) for number in line.split()[0].split('-'))
    if line.split()[1].startswith('r') and not line.rstrip().endswith(('[vvar]', '[vsyscall]', '[vvar_vclock]')):
        memory.seek(start)
        found = re.findall(rb'script-of-run-[a-z]+', memory.read(end - start))
        if found: print(*sorted({each.decode() for each in found}))
END
kill -CONT 3
# """


async def test_its_memory_holds_this_run_and_no_other_and_nothing_of_the_caller(
    the: Jail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOT_FOR_CELLS", "script-of-run-caller")
    assert (await ahead(the, ": script-of-run-before")).ok
    for _ in range(20):  # until it is stopped before it has ended
        result = await ahead(the, SEARCH + "script-of-run-this #")
        if result.exit_code == 0:
            break
    assert set(result.stdout.split()) == {"script-of-run-this"}, result


async def test_a_shell_or_helper_that_dies_while_it_waits_costs_no_run(the: Jail) -> None:
    executor, backend = the
    for which in (0, 1):
        assert (await ahead(the, "echo before")).stdout == "before\n"
        assert await soon(lambda: any(kinds(backend)))
        cell = next(cell for cell in pool_of(backend)._armed if cell.spec.ahead is not None)
        processes = sorted(children_of(behind(cell.handle)))
        assert len(processes) == 2, "the shell, and its helper"
        os.kill(processes[which], signal.SIGKILL)
        await asyncio.sleep(0.2)
        assert (await run(executor, "echo after", "bash")).stdout == "after\n"


async def test_files_that_cant_be_placed_are_reported(the: Jail) -> None:
    result = await ahead(the, "echo ran", files={"a/b": "x", "a": "y"})
    assert result.status is not Status.OK
    assert "ran" not in result.stdout
    assert "place the file" in (result.error or ""), result


async def test_a_kind_that_cant_be_started_is_given_up_and_runs_go_on(the: Jail) -> None:
    executor, backend = the
    assert (await run(executor, ":", "bash")).ok
    pool, usual = pool_of(backend), Limits()
    spec = Spec(disk=usual.disk, files=usual.files, ahead=Ahead(argv=("no-such-shell",), rlimits=()))
    for _ in range(3):
        cell = await pool.take(spec)
        assert cell.spec.ahead is None
        pool.give_back(cell)
        await asyncio.sleep(0.1)
    assert await soon(lambda: pool.counts()["arming"] == 0 and pool.counts()["running"] == 0)
    assert (await run(executor, "echo fine", "bash")).stdout == "fine\n"


async def test_a_script_never_runs_without_its_files(the: Jail) -> None:
    """The helper that places them is killed, because they are larger than the memory of the run."""
    files: dict[str, Any] = {"a.bin": b"x" * (30 << 20), "b.bin": b"x" * (30 << 20)}
    result = await ahead(the, "echo ran", files=files, limits={"memory": 32 << 20, "time": 60.0})
    assert result.stdout == "", result
    assert result.status is Status.MEMORY, result
