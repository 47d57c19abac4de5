"""A session over a project: what it changes can be looked at, applied and dropped at any time, on the path of every
other effect; and the project itself is touched by nothing else."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import redoma
from redoma import ApprovalError, BackendError, Config, Conflict, Executor, InvalidRequest, Session, WorkspaceError
from redoma.approval import Ask, Callback
from redoma.backends.jail import changes
from redoma.config import AuditConfig, PolicyConfig
from redoma.models import Approval, Decision, Effect, Limits
from redoma.workspace.kept import Kept


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    (place / "sub").mkdir(parents=True)
    (place / "a.txt").write_text("one\n")
    (place / "gone.txt").write_text("going\n")
    (place / "sub/b.txt").write_text("b\n")
    return place


@pytest.fixture
def asked() -> list[Ask]:
    return []


@pytest.fixture
def executor(tmp_path: Path, asked: list[Ask]) -> Iterator[Executor]:
    def decide(ask: Ask) -> Approval:
        asked.append(ask)
        decision = "approved" if len(asked) > 1 else "denied"
        return ask.answer(decision, approver="ana", reason="looked at it", at=datetime.now(UTC))  # type: ignore[arg-type]

    config = Config(
        audit=AuditConfig(directory=tmp_path / "audit"),
        state=tmp_path / "state",
        policy=PolicyConfig(decisions={"privilege.raise": Decision.PROMPT}),
    )
    with Executor(config, approver=Callback(decide)) as made:
        yield made


@pytest.fixture
def over(executor: Executor, project: Path) -> Iterator[Session]:
    with executor.session(project=project, workspace="overlay") as session:
        yield session


def told(effect: Effect) -> list[tuple[str, str]]:
    return [(change.path, change.kind) for change in effect.changes]


_CHANGE = "import os\nopen('a.txt', 'a').write('two\\n'); os.unlink('gone.txt'); open('new.txt', 'w').write('n')"
_CHANGED = [("a.txt", "modified"), ("gone.txt", "deleted"), ("new.txt", "added")]


def test_changes_are_seen_applied_and_gone_on_from(over: Session, executor: Executor, project: Path) -> None:
    assert told(over.changes()) == []
    assert over.run(_CHANGE).ok
    assert told(over.changes()) == _CHANGED
    assert "+two" in over.changes().changes[0].diff
    assert sorted(os.listdir(project)) == ["a.txt", "gone.txt", "sub"]
    kept = over.apply()
    assert (kept.state, kept.applied) == ("applied", ("a.txt", "gone.txt", "new.txt"))
    assert (project / "a.txt").read_text() == "one\ntwo\n"
    assert told(over.changes()) == []
    over.bash("echo three >> a.txt")
    assert (told(over.changes()), over.changes().conflicts) == ([("a.txt", "modified")], {})
    assert over.apply().state == "applied"
    assert (project / "a.txt").read_text() == "one\ntwo\nthree\n"
    with pytest.raises(WorkspaceError, match="nothing to apply"):
        over.apply()
    lines = (executor.core.config.audit.directory).glob("*.jsonl")
    records = [json.loads(line) for file in lines for line in file.read_text().splitlines()]
    effect = next(each for each in records if each["kind"] == "session.effect")
    assert effect["data"]["session"] == over.id
    assert [each["kind"] for each in records if each["id"] == kept.id] == ["session.effect", "apply", "applied"]


def test_what_is_dropped_is_dropped_and_variables_stay(over: Session, project: Path) -> None:
    over.run(_CHANGE + "; x = 41; open('/tmp/kept', 'w').write('k')")
    over.discard()
    assert told(over.changes()) == []
    assert over.run("x + 1, open('/tmp/kept').read(), sorted(os.listdir())").value == (
        42,
        "k",
        ["a.txt", "gone.txt", "sub"],
    )
    assert over.run("open('a.txt').read()").value == "one\n"
    over.run("r, w = os.pipe(); open('a.txt', 'w').write('again')")
    with pytest.raises(BackendError, match="pipe"):
        over.discard()
    assert told(over.changes()) == [("a.txt", "modified")]


def test_copies_begin_with_the_changes_and_have_their_own_from_then_on(over: Session, project: Path) -> None:
    over.run(_CHANGE + "; import shutil; shutil.rmtree('sub'); os.mkdir('sub'); os.symlink('../a.txt', 'sub/link')")
    over.run("open('tool', 'w').write('x'); os.chmod('tool', 0o755); os.link('tool', 'tool2'); os.mkdir('d', 0o700)")
    parent = told(over.changes())
    one, other = over.fork(2)
    with one, other:
        assert told(one.changes()) == told(other.changes()) == parent
        assert one.changes().digest == over.changes().digest
        one.run("open('only-one', 'w').write('1'); os.unlink('new.txt')")
        assert ("only-one", "added") in told(one.changes())
        assert told(other.changes()) == parent
        assert one.apply(paths=["only-one"], by_hand=True).applied == ("only-one",)
        assert (project / "only-one").exists()
    assert told(over.changes()) == parent


def test_the_winner_s_effect_is_kept_for_approval(over: Session, executor: Executor, project: Path) -> None:
    over.run("import sys; sys.path.insert(0, '.'); cases = [(2, 4), (3, 9)]")
    bodies = ("x + 2", "x * x", "1 / 0")
    candidates = [f"open('solution.py', 'w').write('def f(x):\\n    return {body}\\n')" for body in bodies]
    test = "import solution\ndef right(a, b):\n    try: return solution.f(a) == b\n    except Exception: return False\n"
    best = redoma.best_of(
        over, candidates, score=lambda copy, _: copy.run(test + "sum(right(*case) for case in cases)").value
    )
    assert (best.index, best.scores) == (1, (1, 2, 0))
    assert best.session is not None
    best.session.close()
    assert best.kept is not None
    assert best.kept.state == "kept"
    assert told(over.changes()) == []
    assert not (project / "solution.py").exists()
    assert executor.apply(best.kept.id, paths=["solution.py"]).applied == ("solution.py",)
    assert "x * x" in (project / "solution.py").read_text()


def test_if_the_winner_s_effect_can_t_be_kept_no_copy_is_left(over: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    async def keep(_: redoma.AsyncSession) -> Kept:
        raise BackendError("nothing can be kept")

    monkeypatch.setattr(redoma.AsyncSession, "keep", keep)
    copies: list[Session] = []

    def score(copy: Session, _: object) -> float:
        copies.append(copy)
        return 1.0

    with pytest.raises(BackendError, match="nothing can be kept"):
        redoma.best_of(over, ["1", "2"], score=score)
    assert [copy.core.alive for copy in copies] == [False, False]


async def test_nor_is_one_left_on_an_event_loop(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def keep(_: redoma.AsyncSession) -> Kept:
        raise BackendError("nothing can be kept")

    monkeypatch.setattr(redoma.AsyncSession, "keep", keep)
    copies: list[redoma.AsyncSession] = []

    def score(copy: redoma.AsyncSession, _: object) -> float:
        copies.append(copy)
        return 1.0

    config = Config(audit=AuditConfig(directory=tmp_path / "audit"), state=tmp_path / "state")
    async with redoma.AsyncExecutor(config) as executor:
        async with executor.session(project=project, workspace="overlay") as session:
            with pytest.raises(BackendError, match="nothing can be kept"):
                await redoma.abest_of(session, ["1", "2"], score=score)
            assert [copy.alive for copy in copies] == [False, False]


def test_what_policy_asks_about_any_run_a_person_is_asked_when_it_is_applied(
    over: Session, project: Path, asked: list[Ask]
) -> None:
    over.run("open('a.txt', 'w').write('harmless')")
    over.command("sudo true; echo more >> new.txt")
    over.run("open('b.txt', 'w').write('harmless')")
    assert asked == []
    with pytest.raises(ApprovalError, match="not applied"):
        over.apply()
    assert (project / "a.txt").read_text() == "one\n"
    assert "sudo" in asked[0].request.text
    assert over.apply().state == "applied"
    assert len(asked) == 2
    assert (project / "a.txt").read_text() == "harmless"


def test_the_same_script_with_other_variables_is_another_run(over: Session, project: Path, asked: list[Ask]) -> None:
    """Policy reads variables, too: a harmless one must not hide what was run before."""
    over.bash("$DO; echo more >> new.txt", env={"DO": "sudo true"})
    over.bash("$DO; echo more >> new.txt", env={"DO": "true"})
    assert asked == []
    with pytest.raises(ApprovalError, match="not applied"):
        over.apply()
    assert asked[0].request.env == {"DO": "sudo true"}
    assert not (project / "new.txt").exists()


def test_a_run_that_was_refused_made_no_effect(over: Session, executor: Executor, project: Path) -> None:
    with executor.session(project=project, workspace="overlay", policy="strict") as strict:
        assert strict.run("import ctypes; open('a.txt', 'w')").status in ("forbidden", "denied")
        assert strict.run("x = 1").ok
        assert told(strict.changes()) == []


def test_what_no_run_has_made_needs_a_person(over: Session, project: Path) -> None:
    over.files.write("a.txt", "written from here")
    with pytest.raises(ApprovalError, match="can't be judged"):
        over.apply()
    assert over.apply(by_hand=True).state == "applied"
    assert (project / "a.txt").read_text() == "written from here"


def test_what_somebody_else_changed_is_a_conflict_and_protected_paths_are_left(over: Session, project: Path) -> None:
    over.run(
        "import os; open('a.txt', 'w').write('mine'); os.makedirs('.git/hooks'); open('.git/hooks/x', 'w').write('x')"
    )
    (project / "a.txt").write_text("by somebody else")
    assert over.changes().conflicts
    with pytest.raises(Conflict):
        over.apply(by_hand=True)
    assert (project / "a.txt").read_text() == "by somebody else"
    assert over.apply(paths=[".git"], by_hand=True).applied in ((), (".git",), (".git", ".git/hooks"))
    assert not (project / ".git/hooks/x").exists()


def test_a_session_without_a_project_has_no_changes(session: Session, executor: Executor, project: Path) -> None:
    for call in (session.changes, session.apply, session.discard, session.keep):
        with pytest.raises(InvalidRequest, match="no project"):
            call()
    with pytest.raises(InvalidRequest, match="direct"):
        executor.session(project=project, workspace="direct")


# --- what code that lives can do to whoever looks ---

_FLICKER = """
import os
while True:
    for step in (
        lambda: os.symlink({secret!r}, 'next'), lambda: os.rename('next', 'target'),
        lambda: open('plain', 'w').write('x') and os.chmod('plain', 0), lambda: os.rename('plain', 'target'),
        lambda: os.mkdir('deep'), lambda: os.rename('deep', 'moved'), lambda: os.symlink('/', 'deep'),
        lambda: os.unlink('deep'), lambda: os.rmdir('moved'),
    ):
        try: step()
        except OSError: pass
"""


def test_looking_while_everything_moves_touches_nothing_else(over: Session, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden " * 10)
    secret.chmod(0o111)
    over.files.write("flicker.py", _FLICKER.format(secret=str(secret)))
    process = over.start(["python3", "flicker.py"])
    for _ in range(40):
        assert "hidden" not in repr(over.changes())
    process.close()
    assert stat.S_IMODE(secret.stat().st_mode) == 0o111
    assert over.run("1").value == 1


@pytest.mark.parametrize("name", ["chmod", "open"])
def test_what_was_found_is_what_is_read_though_its_name_is_another_s_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    layer, stage, secret = tmp_path / "layer", tmp_path / "stage", tmp_path / "secret"
    layer.mkdir()
    stage.mkdir()
    (layer / "file").write_text("its own")
    (layer / "file").chmod(0)
    secret.write_text("of the host")
    secret.chmod(0o111)
    real: Callable[..., object] = getattr(os, name)

    def swapped(path: object, *args: object, **options: object) -> object:
        if path == "file" or str(path).startswith("/proc/self/fd/"):
            (layer / "file").unlink(missing_ok=True)
            (layer / "file").symlink_to(secret)
        return real(path, *args, **options)

    number = os.open(layer, os.O_RDONLY)
    monkeypatch.setattr(os, name, swapped)
    try:
        entries = changes.read_changes(number, str(stage), disk=Limits().disk)
    finally:
        monkeypatch.undo()
        os.close(number)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o111
    assert all((stage / entry.blob).read_text() == "its own" for entry in entries if entry.blob)
    # By its name, as it was done where nothing was alive any more, it would have been the host's file:
    directory = os.open(layer, os.O_RDONLY)
    os.chmod("file", 0o511, dir_fd=directory)  # noqa: S103
    os.close(directory)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o511
