"""What sessions have for interfaces built on them: one run's variables and directory, process ids, usage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pace import SLOW
from redoma import AsyncExecutor, Config, Executor, InvalidRequest, Session
from redoma.backends import display


def test_variables_and_directory_of_one_run_of_python_are_gone_after_it(session: Session) -> None:
    session.files.make_dir("inner")
    code = "import os; os.environ.get('ONCE'), os.getcwd()"
    assert session.run(code, env={"ONCE": "1"}, cwd="inner").value == ("1", "/workspace/inner")
    assert session.run(code).value == (None, "/workspace")
    assert session.run("1 / 0", env={"ONCE": "1"}, cwd="/tmp").exception == "ZeroDivisionError"
    assert session.run(code).value == (None, "/workspace")
    assert session.run(code, env={"HOME": "/other"}).value == (None, "/workspace")
    assert session.command("echo $HOME").stdout == "/tmp\n"
    missing = session.run("1", cwd="nowhere")
    assert missing.exception == "FileNotFoundError"
    assert session.run("1 + 1").value == 2


def test_a_context_can_be_forgotten_alone(session: Session) -> None:
    session.run("x = 1")
    session.run("x = 2", context="other")
    session.forget("other")
    assert session.run("'x' in globals()", context="other").value is False
    assert session.run("x").value == 1
    session.forget()
    assert session.run("'x' in globals(), __name__").value == (False, "__main__")
    session.forget("never there")


def test_usage_is_that_of_all_processes_and_files(session: Session) -> None:
    before = session.usage()
    session.run("data = bytearray(50_000_000); open('f', 'wb').write(bytes(3_000_000)); sum(range(3_000_000))")
    after = session.usage()
    assert after.memory > before.memory + 40_000_000
    assert after.disk >= before.disk + 3_000_000
    assert after.cpu_ms > before.cpu_ms
    assert after.disk_total > after.disk


def test_a_link_says_where_it_leads(session: Session) -> None:
    session.command("ln -s /etc/passwd link; touch file")
    assert {info.name: info.target for info in session.files.list()} == {"link": "/etc/passwd", "file": None}
    assert session.files.stat("link").target == "/etc/passwd"


def test_the_display_of_the_last_expression_is_marked(session: Session) -> None:
    code = "class A:\n    def _repr_html_(self): return '1'\ndisplay(A())\nA()"
    assert [display.is_value for display in session.run(code).displays] == [False, True]


def test_a_figure_has_its_data_only_for_who_asks(session: Session) -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    assert display.CHART not in session.run(code).displays[0].data
    assert '"type": "line"' in session.run(code, charts=True).displays[0].data[display.CHART]


async def test_a_traceback_apart_is_redacted_and_not_printed(config: Config) -> None:
    async with AsyncExecutor(config) as executor, executor.session(secrets={"KEY": "hunter2-hunter2"}) as session:
        run = session.stream("import os\nraise ValueError(os.environ['KEY'])", traceback_apart=True)
        async with run:
            while await run.next_event() is not None:
                continue
        assert "line 2" in run.traceback
        assert "hunter2" not in run.traceback
        assert run.result.stderr == ""


async def test_a_process_has_its_own_id_directory_and_size_of_terminal(config: Config) -> None:
    async with AsyncExecutor(config) as executor, executor.session() as session:
        process = await session.start("echo $$; pwd; stty size; read; stty size", cwd="/tmp", pty=True, size=(10, 20))
        output = process.stdout_stream()
        said = ""
        async with asyncio.timeout(30 * SLOW):
            while "10 20" not in said:
                said += await output.read()
        assert said.split()[:2] == [str(process.pid), "/tmp"]
        process.resize(30, 40)
        await process.write_stdin("\n")
        assert "30 40" in await output.read_all()
        for rows, columns in ((0, 1), (1, 70000)):
            with pytest.raises(InvalidRequest):
                process.resize(rows, columns)


async def test_a_file_written_in_pieces_is_whole_or_not_there(config: Config) -> None:
    async def pieces(*, breaks: bool) -> AsyncIterator[bytes]:
        for _ in range(3):
            yield bytes(700_000)
        if breaks:
            raise ConnectionError

    async with AsyncExecutor(config) as executor, executor.session() as session:
        await session.files.write("whole", pieces(breaks=False))
        with pytest.raises(ConnectionError):
            await session.files.write("torn", pieces(breaks=True))
        assert [(info.name, info.size) for info in await session.files.list()] == [("whole", 2_100_000)]


def test_home_is_another_name_of_the_working_directory(session_executor: Executor, session: Session) -> None:
    session.files.write("a", "1")
    assert session.command("cat /home/user/a; ls /home").stdout == "1user\n"
    executor = session_executor
    assert executor.run("open('/home/user/b', 'w').write('1'); open('b').read()").ok
    assert not executor.run("import os; os.rename('/home/user', '/home/other')").ok
    assert not executor.run("import os; os.mkdir('/home/more')").ok
