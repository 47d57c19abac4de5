"""Environments: made in a cell, kept by content, and there for runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from package_index import PackageIndex, wheel

from redoma import AsyncSession, Config, EnvironmentProblem, Executor, InvalidRequest, Status
from redoma.config import AuditConfig
from redoma.environments import Environment, Store, this_python

GREETS = "import greeting; greeting.word"


@pytest.fixture(scope="module")
def greetings(jail: Executor, index: PackageIndex) -> Environment:
    """One environment for the tests that only use it: an install takes seconds."""
    return jail.create_environment("greetings", ["greeting"])


def store(executor: Executor) -> Store:
    assert executor.core.config.state is not None
    return Store(executor.core.config.state / "environments")


def everything(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")} if directory.exists() else set()


# --- making one ---


def test_what_was_installed_is_on_record_with_its_hashes(greetings: Environment, index: PackageIndex) -> None:
    import hashlib

    (package,) = greetings.packages
    assert (package.name, package.version) == ("greeting", "1.0")
    assert package.sha256 == hashlib.sha256(index.files["greeting-1.0-py3-none-any.whl"]).hexdigest()
    assert greetings.files >= 5
    assert greetings.hosts == ("127.0.0.1",)


def test_the_install_is_a_run_on_record_that_reached_the_index_alone(
    jail: Executor, greetings: Environment, index: PackageIndex
) -> None:
    records = [json.loads(line) for path in jail.core.config.audit.directory.glob("*.jsonl")
               for line in path.read_text().splitlines()]  # fmt: skip
    told = [record for record in records if "install packages for greetings" in json.dumps(record)]
    assert told, "the intent says what it was for"
    run = told[0].get("id") or told[0].get("run")
    outcome = next(record for record in records if run in json.dumps(record) and "outcome" in json.dumps(record))
    text = json.dumps(outcome)
    assert f'"port": {index.port}' in text
    assert {method for method, _ in index.seen} == {"GET"}


def test_the_same_packages_are_the_same_files_and_preloaded_ones_are_there_when_a_run_begins(
    jail: Executor, greetings: Environment
) -> None:
    warm = jail.create_environment("warm", ["greeting==1.0"], preload=["greeting"])
    assert warm.digest == greetings.digest
    assert len([*store(jail).content.iterdir()]) == 1
    loaded = "import sys; 'greeting' in sys.modules"
    assert jail.run(loaded, environment="warm").value is True
    assert jail.run(loaded, environment="greetings").value is False
    store(jail).remove("warm")
    assert jail.run(GREETS, environment="greetings").value == "hello", "the files are still another name's"


def test_a_preloaded_module_is_told_of_the_fork_and_its_variables_are_not_the_runs(
    jail: Executor, index: PackageIndex
) -> None:
    text = (
        "import os\nchildren = []\nos.environ['LEFT_BY_A_MODULE'] = 'yes'\n"
        "os.register_at_fork(after_in_child=lambda: children.append(os.getpid()))\n"
    )
    index.add(wheel("forking", "1.0", {"forking.py": text}))
    jail.create_environment("forking", ["forking"], preload=["forking"])
    code = "import os, forking; [forking.children[-1:] == [os.getpid()], os.environ.get('LEFT_BY_A_MODULE')]"
    assert jail.run(code, environment="forking").value == [True, None]
    assert jail.run(code, environment="forking", env={"A": "b"}).value == [True, None]


def test_files_are_read_only_and_of_this_user(jail: Executor, greetings: Environment) -> None:
    top = store(jail).path(greetings.digest)
    found = [path for path in top.rglob("*") if path.is_file()]
    assert found
    assert all(path.stat().st_mode & 0o222 == 0 and path.stat().st_uid == os.geteuid() for path in found)
    assert not any(path.is_symlink() for path in top.rglob("*"))


def test_creating_it_again_installs_nothing_and_other_packages_are_refused(
    jail: Executor, greetings: Environment, index: PackageIndex
) -> None:
    before = len(index.seen)
    assert jail.create_environment("greetings", ["greeting"]) == greetings
    with pytest.raises(InvalidRequest, match="there is an environment greetings already"):
        jail.create_environment("greetings", ["other"])
    assert len(index.seen) == before


def test_a_package_that_there_is_not_is_told_and_nothing_is_left(jail: Executor, index: PackageIndex) -> None:
    before = everything(store(jail).content)
    with pytest.raises(EnvironmentProblem, match="there is no package greting"):
        jail.create_environment("wrong", ["greting"])
    assert everything(store(jail).content) == before
    assert not [name for name in os.listdir(store(jail).directory) if name.startswith("new-")]
    with pytest.raises(InvalidRequest, match="there is no environment 'wrong'"):
        jail.run("1", environment="wrong")


def test_an_index_that_can_not_be_reached_is_told(
    jail: Executor, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    with socket.socket() as taken:  # bound and not listening: nobody else gets the port
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{taken.getsockname()[1]}/simple/")
        monkeypatch.setenv("PIP_RETRIES", "0")
        with pytest.raises(EnvironmentProblem, match="the package index can't be reached"):
            jail.create_environment("unreached", ["greeting"])


def test_a_disk_that_is_full_leaves_nothing_half_done(
    jail: Executor, index: PackageIndex, greetings: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    from redoma.environments import install

    monkeypatch.setattr(install, "LIMITS", msgspec.structs.replace(install.LIMITS, files=5))
    before = everything(store(jail).content)
    with pytest.raises(EnvironmentProblem, match="can't be installed"):
        jail.create_environment("full", ["greeting"])
    assert everything(store(jail).content) == before
    assert store(jail).get("full") is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("git+https://example.org/x", "URL"),
        ("./here", "path"),
        ("x @ file:///etc/passwd", "URL"),
        ("--index-url=http://x", "options"),
        ("-r other.txt", "options"),
        ("-e .", "options"),
        ("a b", "requirement"),
        ("a\nb", "line"),
        ("", "requirement"),
    ],
)
def test_what_is_no_name_of_a_package_is_refused_before_anything_runs(jail: Executor, given: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        jail.create_environment("x", [given])


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a\0b", "x" * 65, "a.lock"])
def test_what_is_no_name_of_an_environment_is_refused(jail: Executor, name: str) -> None:
    with pytest.raises(InvalidRequest, match="can't be called"):
        jail.create_environment(name, ["greeting"])


def test_a_requirements_file_is_read_with_what_it_includes(tmp_path: Path) -> None:
    from redoma.environments.requirements import from_file

    hashed = "--hash=sha256:" + "a" * 64
    (tmp_path / "base.txt").write_text("six  # a comment\n")
    (tmp_path / "requirements.txt").write_text(
        f"-r base.txt\n\nnumpy>=1.2,<3 \\\n    {hashed}\n--pre\nb[c]; os_name=='x'\n"
    )
    assert from_file(tmp_path / "requirements.txt") == ("six", f"numpy>=1.2,<3 {hashed}", "--pre", "b[c]; os_name=='x'")
    (tmp_path / "base.txt").write_text("-r requirements.txt\n")
    with pytest.raises(InvalidRequest, match="include each other"):
        from_file(tmp_path / "requirements.txt")


def test_a_project_file_gives_its_dependencies(tmp_path: Path) -> None:
    from redoma.environments.requirements import from_file

    file = tmp_path / "pyproject.toml"
    file.write_text('[project]\nname = "x"\ndependencies = ["six", "numpy>1"]\n')
    assert from_file(file) == ("six", "numpy>1")
    file.write_text('[project]\ndynamic = ["dependencies"]\n')
    with pytest.raises(InvalidRequest, match="dynamic"):
        from_file(file)


def test_hashes_that_do_not_fit_are_refused(jail: Executor, index: PackageIndex) -> None:
    with pytest.raises(EnvironmentProblem, match="can't be installed"):
        jail.create_environment("hashed", ["greeting==1.0 --hash=sha256:" + "0" * 64])
    assert store(jail).get("hashed") is None


# --- using one ---


def test_a_run_finds_its_packages_and_no_others(jail: Executor, greetings: Environment) -> None:
    result = jail.run(GREETS, environment="greetings")
    assert result.value == "hello", result.stderr
    assert jail.run("import msgspec", environment="greetings").exception == "ModuleNotFoundError"
    assert jail.run(GREETS).exception == "ModuleNotFoundError", "the control: without the environment"


def test_other_interpreters_and_programs_of_the_environment_are_found(jail: Executor, greetings: Environment) -> None:
    inner = "import greeting, sys; print(greeting.word, sys.prefix)"
    assert jail.command(["python", "-c", inner], environment="greetings").stdout == "hello /opt/venv\n"
    result = jail.run("greet; command -v greet", "bash", environment="greetings")
    assert result.stdout.endswith("/opt/environment/bin/greet\n"), result.stderr


def test_a_cell_can_not_change_its_packages(jail: Executor, greetings: Environment) -> None:
    code = """
import greeting, os
for path in (greeting.__file__, os.path.dirname(greeting.__file__) + "/new.py", "/opt/environment/x"):
    try:
        open(path, "w")
        print("written")
    except OSError as error:
        print("refused")
"""
    assert jail.run(code, environment="greetings").stdout.split() == ["refused"] * 3
    assert jail.run(GREETS, environment="greetings").value == "hello"


def test_the_result_of_an_approval_is_bound_to_the_content(jail: Executor, greetings: Environment) -> None:
    from redoma.policy import fingerprint

    prepared = jail.core.prepare_code("1", "python", {"environment": "greetings"}).request
    assert prepared.uses is not None
    assert prepared.uses.digest == greetings.digest
    plain = jail.core.prepare_code("1", "python", {}).request
    assert fingerprint(prepared) != fingerprint(plain)


@pytest.mark.parametrize("backend", ["monty", "native", "lean"])
def test_a_backend_without_environments_is_not_used(jail: Executor, greetings: Environment, backend: str) -> None:
    result = jail.run("1", environment="greetings", backend=backend, policy="none")
    assert result.status is Status.FAILED
    assert "packages of an environment" in (result.error or "") or "not available" in (result.error or "")


async def test_a_session_has_the_packages(jail: Executor, greetings: Environment) -> None:
    async with AsyncSession(jail.core, environment="greetings") as session:
        await session.run("import greeting")
        assert (await session.run("greeting.word")).value == "hello"
    with pytest.raises(InvalidRequest, match="a session installs nothing"):
        AsyncSession(jail.core, packages=["unknown-package"])


def test_runs_keep_the_files_that_they_began_with(jail: Executor, index: PackageIndex) -> None:
    """Also when the name stands for newer ones by now, or for nothing. They are removed when nobody has them."""
    index.add(wheel("moving", "1.0", {"moving.py": "version = 1\n"}))
    code = "import moving; moving.version"
    first = jail.create_environment("moving", ["moving"])
    with jail.stream(f"print(1, flush=True); input(); {code}".replace("input()", "import time; time.sleep(1)"),
                     environment="moving") as run:  # fmt: skip
        next(iter(run))
        assert store(jail).remove("moving") is False
        with pytest.raises(InvalidRequest, match="there is no environment 'moving'"):
            jail.run(code, environment="moving")
        for _ in run:
            continue
        assert run.result.value == 1, run.result.stderr
    index.add(wheel("moving", "2.0", {"moving.py": "version = 2\n"}))
    jail.create_environment("moving", ["moving"])
    assert jail.run(code, environment="moving").value == 2
    assert store(jail).path(first.digest).exists(), "its zygote is kept warm"


def test_files_that_nobody_has_are_removed(index: PackageIndex, tmp_path: Path) -> None:
    own = Store(tmp_path)
    with own.changing("x"), own.new() as new:
        (new.stage / "0").write_text("x = 1")
        new.file("lib/x.py", "0", "ab" * 32, 5, executable=False)
        record = Environment(name="x", requirements=("x",), python=this_python(), digest=new.keep())
        own.put(record)
    assert own.find("x") == record
    assert own.path(record.digest).joinpath("lib/x.py").read_text() == "x = 1"
    assert own.remove("x")
    assert not [*own.content.iterdir()]


def test_what_a_killed_process_left_is_swept_and_was_never_an_environment(tmp_path: Path) -> None:
    own = Store(tmp_path)
    with own.changing("x"):
        (tmp_path / "new-dead" / "root").mkdir(parents=True)
    assert own.all() == []
    own.tidy()
    assert not (tmp_path / "new-dead").exists()


def test_two_who_create_the_same_at_once_install_it_once(index: PackageIndex, tmp_path: Path) -> None:
    """In two processes: a lock is what they have in common."""
    code = """
import sys
from pathlib import Path
from redoma import Config, Executor
from redoma.config import AuditConfig
state = Path(sys.argv[1])
with Executor(Config(audit=AuditConfig(directory=state / sys.argv[2]), state=state)) as executor:
    print(executor.create_environment("both", ["greeting"]).digest)
"""
    before = [path for _, path in index.seen].count("/files/greeting-1.0-py3-none-any.whl")
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name], stdout=subprocess.PIPE, text=True)
        for name in ("one", "two")
    ]
    answers = {process.communicate(timeout=300)[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(answers) == 1
    assert [path for _, path in index.seen].count("/files/greeting-1.0-py3-none-any.whl") == before + 1


# --- packages on a request ---


def test_packages_of_a_request_are_asked_about_installed_once_and_then_there(
    index: PackageIndex, tmp_path: Path
) -> None:
    settings = Config(audit=AuditConfig(directory=tmp_path / "audit"), state=tmp_path / "state")
    with Executor(settings) as executor:
        denied = executor.run(GREETS, packages=["greeting"])
        assert denied.status is Status.DENIED
        assert [finding.rule for finding in denied.evaluation.findings] == ["packages.install"]
        assert not (tmp_path / "state" / "environments" / "content").exists(), "nothing was installed"
        assert executor.run(GREETS, packages=["greeting"], policy="none").value == "hello"
        before = len(index.seen)
        again = executor.run(GREETS, packages=["greeting"])
        assert (again.value, again.evaluation.findings) == ("hello", ()), "it installs nothing, so nobody is asked"
        assert len(index.seen) == before


def test_a_run_whose_packages_can_not_be_installed_fails_and_says_why(jail: Executor, index: PackageIndex) -> None:
    result = jail.run("1", packages=["greting"], policy="none")
    assert result.status is Status.FAILED
    assert "there is no package greting" in (result.error or "")


def test_an_environment_and_packages_are_not_given_together(jail: Executor, greetings: Environment) -> None:
    with pytest.raises(InvalidRequest, match="an environment and packages"):
        jail.run("1", environment="greetings", packages=["greeting"])


# --- the command line ---


def test_the_command_line_makes_lists_shows_and_removes(
    redoma: Callable[..., tuple[int, str, str]], index: PackageIndex
) -> None:
    status, out, err = redoma("env", "create", "mine", "greeting")
    assert status == 0, err
    assert "greeting 1.0" in out
    assert "mine" in redoma("env", "list")[1]
    shown = json.loads(redoma("env", "show", "mine", "--json")[1])
    assert shown["packages"][0]["name"] == "greeting"
    assert redoma("run", "--environment", "mine", GREETS)[1] == "'hello'\n"
    assert redoma("env", "remove", "mine")[0] == 0
    status, _, err = redoma("env", "show", "mine")
    assert status == 2
    assert "there is no environment 'mine'" in err
