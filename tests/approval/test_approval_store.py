"""The database is ours alone, or is not used; what is wrong with it is said, and nothing is approved."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from approval_stage import Stage, case_of

from redoma.approval.store import SCHEMA
from redoma.lib import sqlite as store_module
from redoma.lib.errors import StoreError
from redoma.lib.sqlite import Schema, Store
from redoma.models import Status

NOBODY = 65432


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def in_a_fork(work: Callable[[], Any], *, user: int = 0) -> Any:
    """What `work` returns or raises in a child, whose limits and rights are its own."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer: Any = None
        try:
            if user:
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
            answer = work()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        finally:
            os.write(tell, json.dumps(answer).encode())
            os._exit(0)
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        answer = json.loads(pipe.read())
    os.waitpid(pid, 0)
    return answer


def use(path: Path) -> str:
    with Store(path, SCHEMA).writing() as db:
        return str(db.execute("SELECT count(*) FROM asks").fetchone()[0])


async def test_it_is_readable_by_nobody_else(stage: Stage) -> None:
    before = os.umask(0)
    try:
        await stage.pending(case_of())
        with stage.ledger.store.reading():
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in stage.path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"redoma.db": 0o600, "redoma.db-wal": 0o600, "redoma.db-shm": 0o600}
    assert stat.S_IMODE(stage.path.parent.stat().st_mode) == 0o700


async def test_a_file_that_others_could_read_is_closed_to_them(stage: Stage) -> None:
    await stage.pending(case_of())
    stage.path.chmod(0o644)
    stage.ledger.entries("open")
    assert stat.S_IMODE(stage.path.stat().st_mode) == 0o600


def _linked(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere"))


def _hard_linked(path: Path) -> None:
    path.with_name("elsewhere").touch(0o600)
    path.hardlink_to(path.with_name("elsewhere"))


def _pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


def _writable(path: Path) -> None:
    path.touch()
    path.chmod(0o666)


def _open_directory(path: Path) -> None:
    use(path)
    path.parent.chmod(0o777)


def _linked_directory(path: Path) -> None:
    use(path)
    path.parent.rename(path.parent.with_name("real"))
    path.parent.symlink_to("real")


def _foreign_program(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE asks (id)")
    db.close()
    path.chmod(0o600)


def _newer(path: Path) -> None:
    use(path)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()


def _garbage(path: Path) -> None:
    path.write_bytes(os.urandom(8192))
    path.chmod(0o600)


def _cut(path: Path) -> None:
    use(path)
    os.truncate(path, path.stat().st_size // 2 + 100)


def _overwritten(path: Path) -> None:
    use(path)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * (size - 4096))


def _without_tables(path: Path) -> None:
    use(path)
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE asks")
    db.close()


BROKEN: dict[Callable[[Path], None], str] = {
    _linked: "not a plain file",
    _hard_linked: "not a plain file",
    _pipe: "not a plain file",
    _writable: "others may write to it",
    _open_directory: "others may write to it",
    _linked_directory: "can't be used",
    _foreign_program: "a database of another program",
    _newer: "written by a newer Redoma",
    _garbage: "it is damaged",
    _cut: "it is damaged",
    _overwritten: "it is damaged",
    _without_tables: "it is damaged",
}


@pytest.mark.parametrize("breaking", BROKEN, ids=lambda function: function.__name__.strip("_"))
async def test_what_is_not_a_whole_database_of_ours_is_not_used(stage: Stage, breaking: Callable[[Path], None]) -> None:
    stage.path.parent.mkdir(0o700)
    breaking(stage.path)
    for approver in (None, stage.approving):
        with pytest.raises(StoreError, match=BROKEN[breaking]) as raised:
            await stage.gate(approver).ask(case_of())
        assert raised.value.next
    assert "approval.used" not in stage.kinds
    assert not stage.path.with_name("elsewhere").exists() or not stage.path.with_name("elsewhere").stat().st_size


async def test_a_database_of_another_user_is_not_used(stage: Stage) -> None:
    if os.getuid():
        pytest.skip("only root can give a file to somebody else")
    await stage.pending(case_of())
    os.chown(stage.path, NOBODY, NOBODY)
    with pytest.raises(StoreError, match=f"it belongs to user {NOBODY}"):
        await stage.gate().ask(case_of())


async def test_a_database_that_somebody_holds_on_to_is_an_error_and_approves_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of()
    id = await stage.approved(case)  # noqa: A001
    monkeypatch.setattr(store_module, "_BUSY_SECONDS", 0.01)
    holder = sqlite3.connect(stage.path, isolation_level=None)
    try:
        holder.execute("BEGIN IMMEDIATE")
        for asking in (stage.gate().ask(case), stage.gate().redeem(id, case)):
            with pytest.raises(StoreError, match="another process has held it"):
                await asking
    finally:
        holder.close()
    assert (await stage.gate().redeem(id, case)).status is None


async def test_a_directory_that_can_not_be_written_is_an_error(stage: Stage) -> None:
    await stage.pending(case_of())
    directory = stage.path.parent
    if not os.getuid():
        for each in (directory, stage.path):
            os.chown(each, NOBODY, NOBODY)
        for above in directory.parents:
            if above.stat().st_mode & 0o001:
                break
            above.chmod(0o755)
    directory.chmod(0o500)
    try:
        said = in_a_fork(lambda: use(stage.path), user=0 if os.getuid() else NOBODY)
    finally:
        directory.chmod(0o700)
    assert said.startswith("StoreError: the database ")
    assert "Next: give this user write permission" in said


async def test_a_full_disk_is_an_error_and_the_answer_does_not_count(stage: Stage) -> None:
    id = await stage.pending(case_of())  # noqa: A001

    def answer() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        stage.ledger.answer(stage.yes(stage.ledger.load(id).ask))

    said = in_a_fork(answer)
    assert said.startswith("StoreError: the database ")
    assert stage.ledger.load(id).state == "open"
    assert (await stage.gate().redeem(id, case_of())).status is Status.PENDING


def _fail(_: object) -> None:
    raise ZeroDivisionError


def test_an_error_takes_the_whole_change_back(stage: Stage) -> None:
    with pytest.raises(ZeroDivisionError), stage.ledger.store.writing() as db:
        _fail(db.execute("DELETE FROM keys"))
    assert len(stage.ledger.key()) == 32


def later(*statements: str) -> Schema:
    """The schema of a Redoma to come."""
    return msgspec.structs.replace(SCHEMA, migrations=(*SCHEMA.migrations, statements))


def test_an_older_database_is_brought_up_to_date(stage: Stage) -> None:
    use(stage.path)
    with Store(stage.path, later("ALTER TABLE asks ADD extra TEXT")).reading() as db:
        assert db.execute("SELECT extra FROM asks").fetchall() == []
        assert db.execute("PRAGMA user_version").fetchone()[0] == 2


def test_a_migration_that_fails_leaves_the_old_one(stage: Stage) -> None:
    use(stage.path)
    newer = Store(stage.path, later("ALTER TABLE asks ADD extra TEXT", "nonsense"))
    with pytest.raises(StoreError), newer.reading():
        pass
    assert use(stage.path) == "0"


def test_what_is_committed_survives_a_power_cut(stage: Stage) -> None:
    """An approval that was used and is unused again could be used twice."""
    with stage.ledger.store.writing() as db:
        assert db.execute("PRAGMA synchronous").fetchone()[0] == 2
        assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
