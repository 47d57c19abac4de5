"""What a run leaves in its directory comes back, bounded, and nothing else does."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import redoma
from redoma import Answer, Config, Executor, FakeBackend, InvalidRequest, Limits, Request, Status
from redoma.backends import collect as collecting
from redoma.backends.base import Backend
from redoma.backends.collect import collect, wanted
from redoma.backends.jail import JailBackend
from redoma.backends.monty.backend import MontyBackend
from redoma.backends.native.backend import NativeBackend
from redoma.frontends.cli.result import hidden_files, write_files

Command = Callable[..., subprocess.CompletedProcess[str]]


def collected(
    directory: Path, *patterns: str, given: dict[str, bytes] | None = None
) -> tuple[dict[str, bytes], dict[str, str]]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return collect(descriptor, patterns or ("**",), given or {})
    finally:
        os.close(descriptor)


# --- what comes back ------------------------------------------------------------------------------------------


def test_new_and_changed_files_come_back_and_unchanged_ones_do_not(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "new.bin").write_bytes(bytes(range(256)))
    (tmp_path / "changed").write_bytes(b"2")
    (tmp_path / "same").write_bytes(b"same")
    (tmp_path / ".hidden").write_bytes(b"")
    (tmp_path / "empty-directory").mkdir()
    files, left_out = collected(tmp_path, given={"changed": b"1", "same": b"same", "deleted": b"x"})
    assert files == {"deep/er/new.bin": bytes(range(256)), "changed": b"2", ".hidden": b""}
    assert left_out == {}


def test_names_that_are_no_utf8_keep_their_bytes(tmp_path: Path) -> None:
    name = b"caf\xe9\n\x1b[31m"
    with open(os.fsencode(tmp_path) + b"/" + name, "wb") as file:
        file.write(b"x")
    files, _ = collected(tmp_path)
    assert [os.fsencode(path) for path in files] == [name]


def test_a_file_asked_for_by_name_is_missed(tmp_path: Path) -> None:
    (tmp_path / "given").write_bytes(b"x")
    (tmp_path / "plots").mkdir()
    assert collected(tmp_path, "result.json", "given", "plots", "*.png", given={"given": b"x"}) == (
        {},
        {
            "result.json": "there is no such file",
            "given": "unchanged",
            "plots/": "a directory with nothing new in it",
        },
    )


def test_a_directory_asked_for_by_name_comes_back_with_all_below(tmp_path: Path) -> None:
    (tmp_path / "out" / "deep").mkdir(parents=True)
    (tmp_path / "out" / "deep" / "a").write_bytes(b"a")
    (tmp_path / "out" / "given").write_bytes(b"x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b").write_bytes(b"b")
    assert collected(tmp_path, "out", given={"out/given": b"x"}) == ({"out/deep/a": b"a"}, {})


@pytest.mark.parametrize(
    ("pattern", "fitting", "other"),
    [
        ("**", ["a", "a/b", ".x/.y"], []),
        ("*", ["a", ".x"], ["a/b"]),
        ("*.csv", ["a.csv"], ["a.csv.gz", "d/a.csv"]),
        ("out/**", ["out/a", "out/b/c"], ["out", "outer/a"]),
        ("**/a", ["a", "x/a", "x/y/a"], ["a/x", "ba"]),
        ("x/**/a", ["x/a", "x/y/z/a"], ["a", "x/y/b"]),
        ("**/t/*.p?", ["t/a.py", "x/t/b.pl"], ["x/t/c.p", "x/t/u/a.py"]),
        ("[ab]/c", ["a/c", "b/c"], ["c/c", "[ab]/c"]),
        ("a**b", ["ab", "axxb"], ["a/b"]),
        ("**/**", ["a", "a/b"], []),
    ],
)
def test_patterns_mean_what_they_do_in_a_shell(pattern: str, fitting: list[str], other: list[str]) -> None:
    assert [path for path in fitting if not wanted(path, [pattern])] == []
    assert [path for path in other if wanted(path, [pattern])] == []


def _as_regex(pattern: str) -> str:
    """The same language, put together in another way."""
    whole = ""
    parts = pattern.split("/")
    for at, part in enumerate(parts):
        last = at == len(parts) - 1
        if part == "**":
            whole += "(?:[^/]+/)*[^/]+" if last else "(?:[^/]+/)*"
        else:
            whole += fnmatch.translate(part).replace("(?s:", "(?:").removesuffix(r"\Z").removesuffix(r"\z").replace(
                ".*", "[^/]*"
            ) + ("" if last else "/")
    return whole


names = st.lists(st.sampled_from(["a", "b", "ab", ".a"]), min_size=1, max_size=5).map("/".join)
patterns = st.lists(st.sampled_from(["a", "b", "*", "**", "a*", "*b"]), min_size=1, max_size=5).map("/".join)


@given(names, patterns)
@settings(max_examples=500, deadline=None)
def test_patterns_fit_as_a_regular_expression_would(path: str, pattern: str) -> None:
    assert wanted(path, [pattern]) == bool(re.fullmatch(_as_regex(pattern), path)), _as_regex(pattern)


# --- what does not ---------------------------------------------------------------------------------------------


def test_links_pipes_and_sockets_are_named_but_neither_followed_nor_opened(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "key").write_text("a key of the host")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "file-link").symlink_to(outside / "key")
    (inside / "directory-link").symlink_to(outside)
    (inside / "dangling").symlink_to("/nowhere")
    os.mkfifo(inside / "pipe")  # opening it to read would wait for a writer for ever
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(inside / "socket"))
    files, left_out = collected(inside, "**", "directory-link/key")
    assert files == {}
    assert {path: why.split(",")[0] for path, why in left_out.items()} == {
        "file-link": "a symbolic link",
        "directory-link": "a symbolic link",
        "dangling": "a symbolic link",
        "pipe": "a pipe",
        "socket": "a socket",
        "directory-link/key": "there is no such file",
    }


def test_a_device_is_not_read(tmp_path: Path) -> None:
    descriptor = os.open("/dev", os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert collect(descriptor, ["zero"], {}) == ({}, {"zero": "a device, not a regular file"})
    finally:
        os.close(descriptor)


def test_the_number_of_files_is_bounded(tmp_path: Path) -> None:
    for number in range(1100):
        (tmp_path / f"{number:04}").touch()
    files, left_out = collected(tmp_path)
    assert (len(files), len(left_out)) == (1000, 100)
    assert set(left_out.values()) == {"more than 1,000 files"}


def test_the_bytes_are_bounded_and_what_still_fits_comes_back(tmp_path: Path) -> None:
    for name, size in (("a", 50 << 20), ("b", 20 << 20), ("c", 1 << 40), ("d", 10)):
        with open(tmp_path / name, "wb") as file:
            file.truncate(size)  # without taking the room
    files, left_out = collected(tmp_path)
    assert {path: len(content) for path, content in files.items()} == {"a": 50 << 20, "d": 10}
    assert left_out["b"].startswith("no room left")
    assert left_out["c"].startswith("it has 1,099,511,627,776 bytes")


def test_the_depth_is_bounded(tmp_path: Path) -> None:
    here = tmp_path
    for _ in range(40):
        here = here / "d"
        here.mkdir()
        (here / "f").touch()
    files, left_out = collected(tmp_path)
    assert len(files) == 32
    assert left_out == {"d/" * 33: "nested deeper than 32 directories"}


def test_the_length_of_a_path_is_bounded(tmp_path: Path) -> None:
    here = tmp_path
    for _ in range(5):
        here = here / ("n" * 250)
        here.mkdir()
        (here / "f").touch()
    files, left_out = collected(tmp_path)
    assert len(files) == 4
    assert list(left_out.values()) == ["its path is longer than 1024 bytes"]
    assert all(len(path) <= 1024 for path in left_out)


def test_what_is_left_out_is_counted_not_listed_without_end(tmp_path: Path) -> None:
    for number in range(150):
        (tmp_path / f"{number:03}").symlink_to("/")
    _, left_out = collected(tmp_path)
    assert len(left_out) == 101
    assert left_out[""] == "and 50 more"


def test_a_crowded_directory_is_not_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "MAX_ENTRIES", 50)
    (tmp_path / "crowded").mkdir()
    for number in range(60):
        (tmp_path / "crowded" / str(number)).touch()
    (tmp_path / "result").touch()
    assert collected(tmp_path) == (
        {"result": b""},
        {"crowded/": "not looked through: more than 50 files and directories"},
    )
    assert collected(tmp_path, "result") == ({"result": b""}, {})  # it needn't be looked into


def test_what_may_not_be_read_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch(mode=0)
    (tmp_path / "directory").mkdir(mode=0)
    (tmp_path / "fine").touch()
    tmp_path.chmod(0o755)
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    as_root = os.geteuid() == 0
    try:
        if as_root:
            os.seteuid(65534)
        assert collect(descriptor, ["**"], {}) == (
            {"fine": b""},
            {"file": "can't be opened: Permission denied", "directory/": "can't be opened: Permission denied"},
        )
    finally:
        if as_root:
            os.seteuid(0)
        os.close(descriptor)
        (tmp_path / "directory").chmod(0o700)


def test_the_collector_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; sys.path.append(sys.argv[1]); from redoma.backends.collect import collect; "
        "print({'msgspec', 'asyncio', 'ctypes'} & set(sys.modules))"
    )
    here = str(Path(redoma.__file__).parents[1])
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, here], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# --- through the whole pipeline ---------------------------------------------------------------------------------


@pytest.fixture(params=[NativeBackend, JailBackend], ids=["native", "jail"])
def executor(request: pytest.FixtureRequest, config: Config, nothing_left_behind: None) -> Iterator[Executor]:
    backend: Backend = request.param()
    with Executor(config, backends=[backend]) as executor:
        yield executor


def run(executor: Executor, code: str, **options: Any) -> redoma.Result:
    (backend,) = executor.core.backends
    return executor.run(code, backend=backend, policy="none", **options)


def test_files_go_in_and_come_out(executor: Executor) -> None:
    code = (
        "import os\nos.makedirs('out/a')\nopen('out/a/r.csv', 'w').write(open('in.csv').read().upper())\n"
        "open('in.csv', 'a').write('!')\nopen('not-asked-for', 'w')\n"
    )
    result = run(executor, code, files={"in.csv": "x,y", "same": "s"}, outputs=["out/**", "*.csv", "same"])
    assert (result.status, result.error) == (Status.OK, None)
    assert result.files == {"out/a/r.csv": b"X,Y", "in.csv": b"x,y!"}
    assert result.left_out == {"same": "unchanged"}


def test_nothing_comes_back_unless_asked_for(executor: Executor) -> None:
    assert run(executor, "open('x', 'w')").files == {}


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("raise ValueError", Status.ERROR),
        ("while True: pass", Status.TIMEOUT),
        ("os.kill(os.getpid(), 9)", Status.KILLED),
    ],
)
def test_files_come_back_from_every_ending_that_ran(executor: Executor, ending: str, status: Status) -> None:
    code = f"import os\nwith open('part', 'w') as f: f.write('so far')\nprint('written', flush=True)\n{ending}"
    for seconds in (1.5, 10, 60) if status is Status.TIMEOUT else (60,):
        result = run(executor, code, outputs=["part"], limits={"time": seconds})
        assert result.status is status
        if result.stdout:  # on a busy machine it may not have got that far in so short a time
            break
    assert (result.stdout, result.files) == ("written\n", {"part": b"so far"})


def test_a_directory_that_is_replaced_by_a_link_leads_nowhere(executor: Executor) -> None:
    code = (
        "import os\nopen('mine', 'w')\nhere = os.getcwd()\nos.mkdir('sub')\nos.rename('sub', 'moved')\n"
        "os.symlink('/etc', 'sub')\n"
        "try:\n    os.rename(here, here + '-moved')\n    os.symlink('/etc', here)\nexcept OSError: pass\n"
    )
    result = run(executor, code, outputs=["**", "sub/passwd", "passwd"])
    assert set(result.files) <= {"mine"}
    assert not any(b"root:" in content for content in result.files.values())
    leftover = Path(os.environ.get("TMPDIR", "/tmp"))
    for moved in leftover.glob("redoma-*-moved"):  # what it moved away is its own; the native backend has no boundary
        for entry in moved.iterdir():
            entry.unlink() if entry.is_symlink() or entry.is_file() else entry.rmdir()
        moved.rmdir()


def test_monty_refuses_to_bring_files_back_and_the_fake_does(config: Config) -> None:
    fake = FakeBackend(Answer(files={"a.txt": b"1", "b.bin": b"2"}))
    with Executor(config, backends=[MontyBackend(), fake]) as executor:
        refused = executor.run("1", backend="monty", outputs=["a"])
        assert (refused.status, "files to bring back" in (refused.error or "")) == (Status.FAILED, True)
        assert executor.run("1", backend="fake", outputs=["*.txt"]).files == {"a.txt": b"1"}


@pytest.mark.parametrize("pattern", ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "a\0b", "x" * 2000])
def test_a_pattern_that_leads_elsewhere_makes_no_request(pattern: str) -> None:
    with pytest.raises(InvalidRequest):
        Request(code="1", outputs=(pattern,))


def test_a_directory_of_the_host_gives_nothing_back() -> None:
    with pytest.raises(InvalidRequest, match="leave one of cwd and outputs out"):
        Request(code="1", cwd="/tmp", outputs=("**",))
    with pytest.raises(InvalidRequest, match="outputs is one text"):
        redoma.run("1", outputs="**")


def test_the_record_has_names_sizes_and_digests_but_no_contents(config: Config) -> None:
    backend = FakeBackend(Answer(files={"hunter2-hunter2": b"the contents", "ok\udcff": b""}))
    with Executor(config, backends=[backend]) as executor:
        result = executor.run("1", backend="fake", outputs=["**"], secrets={"P": "hunter2-hunter2"})
    assert set(result.files) == {"[redacted:known-secret]", "ok\udcff"}
    (log,) = Path(config.audit.directory).glob("*.jsonl")
    intent, outcome = (json.loads(line)["data"] for line in log.read_text().splitlines())
    assert intent["outputs"] == ["**"]
    assert outcome["files"] == [
        {"name": "[redacted:known-secret]", "size": 12, "sha256": hashlib.sha256(b"the contents").hexdigest()},
        {"name": "ok\\udcff", "size": 0, "sha256": hashlib.sha256(b"").hexdigest()},
    ]
    assert "the contents" not in log.read_text()
    assert "hunter2" not in log.read_text()


# --- limits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    ["while True: pass", "import os\nfor _ in range(3): os.fork()\nwhile True: pass"],
    ids=["one process", "eight"],
)
def test_processor_time_of_all_processes_together_is_limited(executor: Executor, code: str) -> None:
    result = run(executor, code, limits={"cpu": 1, "time": 60})
    assert (result.status, result.error) == (
        Status.TIMEOUT,
        "it used more than 1 s of processor time and was ended",
    )
    assert result.shell_exit == 124


def test_waiting_takes_no_processor_time(executor: Executor) -> None:
    assert run(executor, "import time\ntime.sleep(1.2)", limits={"cpu": 1}).ok


def test_monty_tells_processor_time_from_waiting(config: Config) -> None:
    with Executor(config, backends=[MontyBackend()]) as executor:
        for cpu in (0.4, 3, 15):  # its clock goes on while a busy machine gives it no processor: then with more room
            code = f"import time\ntime.sleep({2 * cpu})\n1"
            waited = executor.run(code, backend="monty", limits={"cpu": cpu, "time": 60})
            if waited.ok:
                break
        assert waited.value == 1
        result = executor.run("while True: pass", backend="monty", limits={"cpu": 0.4})
        assert (result.status, "0.4 s of processor time" in (result.error or "")) == (Status.TIMEOUT, True)


@pytest.mark.parametrize(("name", "field"), [("native", "disk"), ("native", "files"), ("monty", "files")])
def test_a_limit_that_would_not_hold_is_refused_when_it_is_asked_for(config: Config, name: str, field: str) -> None:
    with Executor(config, backends=[NativeBackend(), MontyBackend()]) as executor:
        refused = executor.run("1", backend=name, limits={field: 7})
        assert (refused.status, f"a limit on {field}" in (refused.error or "")) == (Status.FAILED, True)
        allowed = executor.run("1", backend=name)
        assert allowed.ok
        assert f"limit on {field}" in allowed.isolation.missing


def test_the_new_limits_have_their_kinds() -> None:
    assert (Limits().cpu, Limits().disk, Limits().files) == (120.0, 256 << 20, 10_000)
    assert Limits(cpu=0.5).cpu == 0.5
    for wrong in ({"disk": 0.5}, {"files": 1.5}, {"cpu": 0}, {"files": True}):
        with pytest.raises(InvalidRequest):
            Limits(**wrong)


# --- the command line --------------------------------------------------------------------------------------------


def test_files_are_written_where_they_are_wanted(redoma_command: Command, tmp_path: Path) -> None:
    code = "import os\nos.mkdir('p')\nopen('p/a.txt', 'w').write('A')\nopen('b', 'w').write('B')\nopen('.rc', 'w')"
    asked = ("run", "--backend", "native", "--policy", "none", code, "-o", "**", "--output-dir", str(tmp_path / "new"))
    done = redoma_command(*asked)
    assert done.returncode == 0, done.stderr
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "new",
        "new/b",
        "new/p",
        "new/p/a.txt",
    ]
    assert ".rc: hidden" in done.stderr

    (tmp_path / "new" / "b").write_text("ours")
    done = redoma_command(*asked)
    assert done.returncode == 125
    assert "not written: b: there is such a file already" in done.stderr
    assert (tmp_path / "new" / "b").read_text() == "ours"
    assert redoma_command(*asked, "--force").returncode == 0
    assert (tmp_path / "new" / "b").read_text() == "B"


def test_json_has_the_files_and_writes_none(redoma_command: Command, tmp_path: Path) -> None:
    code = "open('b', 'wb').write(b'\\xff\\x00')\nopen(b'\\xfe', 'w')"
    done = redoma_command("run", "--backend", "native", "--policy", "none", code, "-o", "**", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["files"] == {"b": "/wA=", "\udcfe": ""}
    assert list(tmp_path.iterdir()) == []


def test_no_written_file_escapes_its_directory(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "victim").write_text("ours")
    (inside / "to-directory").symlink_to(outside)
    (inside / "to-file").symlink_to(outside / "victim")
    (inside / "dangling").symlink_to(outside / "made")
    (inside / "directory").mkdir()
    files = dict.fromkeys(
        ["../up", "/abs", "a/../../up", "to-directory/x", "to-file", "dangling", "directory", "", "a//b", "fine/f"],
        b"!",
    )
    written, refused = write_files(str(inside), files, force=False)
    assert (written, set(refused)) == (["fine/f"], set(files) - {"fine/f"})
    assert (outside / "victim").read_text() == "ours"

    written, refused = write_files(str(inside), files, force=True)
    assert written == ["dangling", "fine/f", "to-file"]  # the links themselves were replaced
    assert not (inside / "to-file").is_symlink()
    assert (outside / "victim").read_text() == "ours"
    assert sorted(path.name for path in outside.iterdir()) == ["victim"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inside", "outside"]
    assert not list(inside.rglob(".redoma-*"))
    assert (inside / "fine" / "f").stat().st_mode & 0o111 == 0


def test_hidden_files_have_to_be_asked_for() -> None:
    files = [".git/hooks/x", "a/.b", "c"]
    assert hidden_files(files, ["**"]) == [".git/hooks/x", "a/.b"]
    assert hidden_files(files, ["**", "a/.*"]) == []


def test_secrets_in_names_of_files_are_not_shown(config: Config) -> None:
    files = {"is-hunter2x.txt": b"1", "is-hunter2x%2Etxt": b"2", "is-hunter2x": b"3", "ana@h.io": b""}
    answer = Answer(files=files)
    with Executor(config, backends=[FakeBackend(answer)]) as executor:
        result = executor.run("x", outputs=["**"], secrets={"WORD": "hunter2x"}, backend="fake")
    assert "hunter2x" not in repr(result.files)
    assert sorted(result.files.values()) == sorted(files.values())
    assert "ana@h.io" in result.files
