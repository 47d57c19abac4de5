"""The process interface, the same on every kind of executor: what is written, printed, sent and returned.

The modules that run this provide the `executor`, with entries as in `process_stage`.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import redoma
from redoma import BackendError, Executor, InvalidRequest, RedomaError, Refused, Status
from redoma.exec import Process, ProcessExecutor

TRAPS_TERM = ["sh", "-c", "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.02; done"]
CALCULATOR = ["sh", "-c", 'while printf "> " && read -r line; do echo "$(($line))"; done; echo bye >&2']


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"/"


@pytest.fixture
def shell(executor: Executor) -> Iterator[ProcessExecutor]:
    with redoma.exec.get("app:shell", executor) as shell:
        yield shell


def started(shell: ProcessExecutor, command: str | list[str], **options: object) -> Process:
    process = shell.exec(command, **options)  # type: ignore[arg-type]
    process.start()
    return process


def test_what_it_prints_comes_while_it_runs_and_each_stream_by_itself(shell: ProcessExecutor) -> None:
    process = shell.exec(["sh", "-c", "echo out; echo err >&2; read -r x; echo more"])
    out, err = process.stdout_stream(), process.stderr_stream()
    process.start()
    assert (out.read(), err.read()) == ("out\n", "err\n")  # it waits for input, so it still runs
    process.write_stdin("go\n")
    assert (out.read(), out.read(), err.read()) == ("more\n", "", "")
    assert process.wait() == 0
    assert (process.result.stdout, process.result.stderr) == ("out\nmore\n", "err\n")


def test_a_dialogue(shell: ProcessExecutor) -> None:
    process = started(shell, CALCULATOR)
    out = process.stdout_stream()
    assert out.read() == "> "  # a prompt has no end of line
    for question, answer in (("6 * 7", "42"), ("2 - 3", "-1")):
        process.write_stdin(f"{question}\n")
        told = out.read()
        if not told.endswith("> "):  # the prompt arrives a moment after a whole line
            told += out.read()
        assert told == f"{answer}\n> "
    process.close_stdin()
    assert process.wait() == 0
    assert process.stderr_stream().read_all() == "bye\n"  # requested after the end


def test_bytes_go_in_as_they_are_and_the_input_of_the_request_comes_first(shell: ProcessExecutor) -> None:
    process = started(shell, ["od", "-An", "-tx1"], stdin="a")
    process.write_stdin(b"\x00\xff\n")
    process.write_stdin("é")
    process.close_stdin()
    assert process.stdout_stream().read_all().split() == ["61", "00", "ff", "0a", "c3", "a9"]


def test_much_is_written_while_another_thread_reads(shell: ProcessExecutor) -> None:
    process = started(shell, "wc -c")
    with ThreadPoolExecutor(1) as threads:
        told = threads.submit(process.stdout_stream().read_all)
        for _ in range(40):
            process.write_stdin(b"x" * 100_000)
        process.close_stdin()
        assert told.result() == "4000000\n"


def test_a_program_handles_a_signal(shell: ProcessExecutor) -> None:
    process = started(shell, TRAPS_TERM)
    out = process.stdout_stream()
    assert out.read() == "ready\n"
    process.signal(signal.SIGTERM)
    assert out.read_all() == "caught\n"
    assert process.wait() == 3
    assert process.result.status is Status.ERROR


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGUSR1])
def test_a_signal_ends_what_does_not_handle_it(shell: ProcessExecutor, number: signal.Signals) -> None:
    process = started(shell, "sleep 60")
    process.signal(number)
    assert process.wait() == 128 + number
    assert process.result.status is Status.KILLED


def test_a_signal_is_for_the_program_and_not_for_its_children(shell: ProcessExecutor) -> None:
    child = "trap 'echo theirs' USR1; echo up; read -r x; echo child"
    script = f"exec 3<&0; trap 'echo mine' USR1; sh -c \"{child}\" <&3 & wait; wait"
    process = started(shell, ["sh", "-c", script])
    out = process.stdout_stream()
    assert out.read() == "up\n"
    process.signal(signal.SIGUSR1)
    assert out.read() == "mine\n"
    process.write_stdin("\n")
    assert out.read_all() == "child\n"


@pytest.mark.parametrize("number", [0, -1, 32, 33, 65, 1000, True, "TERM", 15.0, None, []])
def test_what_is_no_signal_is_refused_and_changes_nothing(shell: ProcessExecutor, number: int) -> None:
    process = started(shell, "cat")
    with pytest.raises(InvalidRequest, match="not a signal"):
        process.signal(number)
    process.close_stdin()
    assert process.wait() == 0


def test_two_at_once_have_nothing_to_do_with_each_other(shell: ProcessExecutor) -> None:
    one, two = started(shell, "cat"), started(shell, "cat")
    one.write_stdin("1\n")
    two.write_stdin("2\n")
    assert (two.stdout_stream().read(), one.stdout_stream().read()) == ("2\n", "1\n")
    one.signal(signal.SIGKILL)
    assert one.wait() == 137
    two.write_stdin("still here\n")
    assert two.stdout_stream().read() == "still here\n"
    two.close_stdin()
    assert two.wait() == 0


def test_reading_takes_at_most_what_was_asked_for(shell: ProcessExecutor) -> None:
    process = started(shell, ["printf", "héllo"])
    process.wait()
    out = process.stdout_stream()
    assert [out.read(2), out.read(0), out.read(2), out.read(), out.read()] == ["hé", "", "ll", "o", ""]
    with pytest.raises(InvalidRequest, match="less than none"):
        out.read(-1)
    for size in ("a", 2.5):
        with pytest.raises(InvalidRequest, match="not a whole number"):
            out.read(size)  # type: ignore[arg-type]


def test_a_stream_that_was_closed_is_dropped_and_the_other_goes_on(shell: ProcessExecutor) -> None:
    process = started(shell, ["sh", "-c", "echo out; echo err >&2; read -r x; echo out; echo err >&2"])
    out, err = process.stdout_stream(), process.stderr_stream()
    assert out.read() == "out\n"
    out.close()
    with pytest.raises(InvalidRequest, match="was closed"):
        out.read()
    process.write_stdin("\n")
    assert err.read_all() == "err\nerr\n"
    assert process.wait() == 0
    assert process.result.stdout == "out\nout\n"


def test_a_stream_is_bounded_like_a_result(shell: ProcessExecutor) -> None:
    process = started(shell, ["yes", "x" * 100], limits={"output_total": 1 << 20, "output_bytes": 50_000})
    assert process.wait() == 137
    assert process.result.status is Status.OUTPUT
    assert 40_000 < len(process.stdout_stream().read_all()) < 100_000


def test_secrets_are_taken_out_of_the_streams(shell: ProcessExecutor) -> None:
    process = started(shell, "printenv TOKEN", secrets={"TOKEN": "correct-horse-battery"})
    assert "correct" not in process.stdout_stream().read_all()


def test_the_limits_hold(shell: ProcessExecutor) -> None:
    process = started(shell, "sleep 60", limits={"time": 0.3})
    assert process.wait() == 124
    with pytest.raises(InvalidRequest, match="has ended"):
        process.signal(signal.SIGTERM)
    with pytest.raises(InvalidRequest, match="has ended"):
        process.write_stdin("x")


def test_what_policy_refuses_is_not_started(shell: ProcessExecutor) -> None:
    refused: tuple[tuple[str, int, str, str], ...] = (
        ("rm -rf /", 30, "whole file system", "forbidden"),
        ("id", 3601, "approve", "denied"),
    )
    for command, seconds, word, status in refused:
        process = shell.exec(command, limits={"time": seconds})
        with pytest.raises(Refused, match=word) as refusal:
            process.start()
        assert refusal.value.result.status.value == status
        assert refusal.value.next


def test_a_program_that_is_not_there_ends_as_in_a_shell(shell: ProcessExecutor) -> None:
    process = started(shell, "no-such-program --now")
    assert process.wait() == 127
    assert "no-such-program" in (process.result.error or "")


def test_what_can_not_be_run_is_a_backend_error(shell: ProcessExecutor) -> None:
    process = shell.exec("true", require=["no-such-layer"])
    with pytest.raises(BackendError, match="no-such-layer"):
        process.start()


def test_nothing_can_be_done_with_a_process_that_was_not_started(shell: ProcessExecutor) -> None:
    process = shell.exec("cat")
    for act in (process.stdout_stream().read, process.wait, process.close_stdin, lambda: process.write_stdin("x")):
        with pytest.raises(InvalidRequest, match=r"not started.*start\(\)"):
            act()
    process.close()
    with pytest.raises(InvalidRequest, match="closed"):
        process.start()


def test_a_process_is_started_once(shell: ProcessExecutor) -> None:
    with started(shell, "cat") as process, pytest.raises(InvalidRequest, match="started before"):
        process.start()


def test_options_that_do_not_exist_are_refused(shell: ProcessExecutor) -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'work_dir'"):
        shell.exec("true", {"workdir": "/"})
    with pytest.raises(InvalidRequest, match="on_output"):
        shell.exec("true", on_output=print)  # type: ignore[call-arg]
    with pytest.raises(InvalidRequest, match=r"unknown executor 'app:shel'.*did you mean 'app:shell'"):
        redoma.exec.get("app:shel", shell._executor)


def test_what_makes_no_sense_is_told_without_a_traceback(shell: ProcessExecutor) -> None:
    wrongs: list[Callable[[], Process]] = [
        lambda: shell.exec(5),  # type: ignore[arg-type]
        lambda: shell.exec(b"true"),  # type: ignore[arg-type]
        lambda: shell.exec(["true", 5]),  # type: ignore[list-item]
        lambda: shell.exec([]),
        lambda: shell.exec(""),
        lambda: shell.exec("true", ["x"]),  # type: ignore[arg-type]
        lambda: shell.exec("true", env={"A": 5}),  # type: ignore[dict-item]
        lambda: shell.exec("true", env={"A=B": ""}),
        lambda: shell.exec("true", work_dir=5),  # type: ignore[arg-type]
        lambda: shell.exec("true", work_dir="/\0"),
        lambda: shell.exec("true", work_dir=BytesPath()),  # type: ignore[arg-type]
        lambda: shell.exec("a\0b"),
        lambda: shell.exec("true", limits={"time": -1}),
    ]
    for wrong in wrongs:
        with pytest.raises(InvalidRequest):
            wrong()
    with started(shell, "cat") as process, pytest.raises(InvalidRequest, match="neither text nor bytes"):
        process.write_stdin(5)  # type: ignore[arg-type]


def test_a_text_is_split_into_words_and_read_by_no_shell(shell: ProcessExecutor) -> None:
    process = started(shell, "printf '%s|' 'a b' $HOME ';' \"c\"")
    assert process.stdout_stream().read_all() == "a b|$HOME|;|c|"
    with pytest.raises(InvalidRequest, match="No closing quotation"):
        shell.exec("echo 'x")


def test_an_entry_has_variables_a_directory_and_limits(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_HOST", "x")
    with redoma.exec.get("app:own", executor) as own:
        process = started(own, ["sh", "-c", "echo $A $B ${OF_THE_HOST-clean}; pwd"], env={"B": "call"})
        assert process.stdout_stream().read_all() == "entry call clean\n/usr/lib\n"
        assert started(own, "pwd", work_dir="/usr/bin").stdout_stream().read_all() == "/usr/bin\n"
        assert started(own, "pwd", work_dir="../bin").stdout_stream().read_all() == "/usr/bin\n"
    with redoma.exec.get("app:brief", executor) as brief:
        process = started(brief, "sleep 60")
        assert process.wait() == 124
        assert "0.3 s" in (process.result.error or "")


def test_closing_ends_it_and_can_be_done_twice(shell: ProcessExecutor) -> None:
    process = started(shell, "sleep 60")
    process.close()
    process.close()
    with pytest.raises(RedomaError, match="ended early"):
        process.wait()
    with pytest.raises(InvalidRequest, match="was closed"):
        process.stdout_stream().read()


def test_closing_wakes_whoever_reads(shell: ProcessExecutor) -> None:
    process = started(shell, "sleep 60")
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(process.stdout_stream().read)
        time.sleep(0.1)
        process.close()
        with pytest.raises(InvalidRequest, match="was closed"):
            reading.result(60)


def test_release_ends_all_processes_and_makes_no_more(executor: Executor) -> None:
    shell = redoma.exec.get("app:shell", executor)
    processes = [started(shell, "sleep 60") for _ in range(3)]
    shell.release()
    shell.release()
    for process in processes:
        with pytest.raises(RedomaError, match="ended early"):
            process.wait()
    with pytest.raises(InvalidRequest, match="released"):
        shell.exec("true")
    assert redoma.exec.get("app:shell", executor).exec("true") is not None


def test_many_threads_share_an_executor(shell: ProcessExecutor) -> None:
    def talk(number: int) -> str:
        with started(shell, "cat") as process:
            process.write_stdin(f"{number}\n")
            process.close_stdin()
            return process.stdout_stream().read_all()

    barrier = threading.Barrier(4)
    with ThreadPoolExecutor(4, initializer=barrier.wait) as threads:
        assert list(threads.map(talk, range(12))) == [f"{number}\n" for number in range(12)]
