"""An executor with a list of commands runs exactly those, and they do what they do: attacks, each seen to succeed where
the list, or what guards it, is not there."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from process_stage import configured

import redoma
from redoma import Executor, InvalidRequest, Refused
from redoma.audit.read import tail
from redoma.exec import ProcessExecutor
from redoma.models import WorkspaceKind

LISTED = "git status"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A real repository, below a directory that has room for others."""
    for name in ("repo", "elsewhere"):
        subprocess.run(["git", "init", "-q", str(tmp_path / name)], check=True)
    (tmp_path / "repo" / "inner").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "repo")
    return tmp_path


@pytest.fixture
def executor(place: Path) -> Iterator[Executor]:
    where = f"default_work_dir: {place}/repo"
    config = configured(
        place,
        f"name: git, kind: exec.native, command_whitelist: [{LISTED}, git diff, printenv], {where}",
        f"name: open, kind: exec.native, trust_repository: true, {where}",
        f"name: named, kind: exec.native, command_whitelist: [printenv], caller_env: [CHOSEN], {where}",
        f"name: none, kind: exec.native, command_whitelist: [], {where}",
        f"name: linked, kind: exec.native, command_whitelist: [{LISTED}], default_work_dir: {place}/alias",
        f"name: away, kind: exec.native, command_whitelist: [{LISTED}]",
        "name: cell, kind: exec.jail, command_whitelist: [pwd, printenv], default_work_dir: /usr",
        "name: calc, kind: exec.monty, command_whitelist: [1 + 1]",
    )
    with Executor(config) as executor:
        yield executor


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessExecutor]:
    """The same list, for what is refused before anything runs."""
    entry = f"name: git, kind: exec.native, command_whitelist: [{LISTED}, git diff, printenv]"
    with Executor(configured(tmp_path_factory.mktemp("plain"), entry)) as executor:
        yield redoma.exec.get("app:git", executor)


@pytest.fixture
def git(executor: Executor) -> ProcessExecutor:
    return redoma.exec.get("app:git", executor)


@pytest.fixture
def opened(executor: Executor) -> ProcessExecutor:
    """The same without a list."""
    return redoma.exec.get("app:open", executor)


def printed(shell: ProcessExecutor, command: str | list[str], **options: object) -> str:
    with shell.exec(command, **options) as process:  # type: ignore[arg-type]
        process.start()
        return process.stdout_stream().read_all()


def test_what_is_on_the_list_runs(git: ProcessExecutor) -> None:
    assert "On branch" in printed(git, LISTED)
    assert "On branch" in printed(git, ["git", "status"])


OFF_THE_LIST: dict[str, str | list[str]] = {
    "another command after it": "git status; id",
    "another command if it works": "git status && id",
    "another command if it fails": "git status || id",
    "piped into another": "git status | sh",
    "in the background": "git status &",
    "a substitution": "git status $(id)",
    "backquotes": "git status `id`",
    "redirected": "git status > /tmp/x",
    "a blank behind": "git status ",
    "a blank before": " git status",
    "two blanks": "git  status",
    "a tab": "git\tstatus",
    "a tab behind": "git status\t",
    "a newline behind": "git status\n",
    "a newline between": "git\nstatus",
    "another line": "git status\nid",
    "a carriage return": "git status\r",
    "a carriage return and a newline": "git status\r\nid",
    "a NUL": "git status\0",
    "a NUL and more": "git status\0; id",
    "a form feed": "git\fstatus",
    "a vertical tab": "git\vstatus",
    "a no-break space": "git\u00a0status",
    "an ogham space": "git\u1680status",
    "an en quad": "git\u2000status",
    "a thin space": "git\u2009status",
    "a narrow no-break space": "git\u202fstatus",
    "a mathematical space": "git\u205fstatus",
    "an ideographic space": "git\u3000status",
    "a zero-width space": "git \u200bstatus",
    "a zero-width joiner": "git status\u200d",
    "a byte order mark": "\ufeffgit status",
    "a line separator": "git status\u2028id",
    "a right-to-left override": "git \u202estatus",
    "a variable before": "FOO=1 git status",
    "a hostile variable before": "GIT_DIR=/tmp git status",
    "behind env": "env X=1 git status",
    "behind sh": "sh -c 'git status'",
    "quoted words": "'git' 'status'",
    "empty quotes": "git'' status",
    "double quotes": 'git "status"',
    "quoted as a whole": "'git status'",
    "a backslash": "gi\\t status",
    "a backslash and a newline": "git \\\nstatus",
    "upper case": "GIT STATUS",
    "a capital letter": "Git status",
    "a Turkish letter": "g\u0131t status",
    "a Cyrillic letter": "git st\u0430tus",
    "full-width letters": "\uff47it status",
    "a combining accent": "git status\u0301",
    "the full path": "/usr/bin/git status",
    "a relative path": "./git status",
    "a roundabout path": "/usr/bin/../bin/git status",
    "an option more": "git status -s",
    "an option before": "git -c core.fsmonitor=id status",
    "less of it": "git",
    "the beginning of it": "git stat",
    "a comment": "git status # x",
    "a glob": "git stat*",
    "words: one more": ["git", "status", "-s"],
    "words: one with all": ["git status"],
    "words: a blank behind": ["git", "status "],
    "words: an empty one": ["git", "status", ""],
    "words: an empty one before": ["", "git", "status"],
    "words: another path": ["/usr/bin/git", "status"],
    "words: a NUL": ["git", "status\0"],
    "words: behind env": ["env", "git", "status"],
    "words: upper case": ["GIT", "status"],
}


@pytest.mark.parametrize("command", OFF_THE_LIST.values(), ids=OFF_THE_LIST)
def test_what_is_not_on_the_list_to_the_character_is_refused(plain: ProcessExecutor, command: str | list[str]) -> None:
    with pytest.raises(Refused) as refusal:
        plain.exec(command)
    assert "app:git does not allow this command; it allows: git status, git diff, printenv" in str(refusal.value)
    assert "command_whitelist of app:git" in refusal.value.next
    assert refusal.value.result.status is redoma.Status.FORBIDDEN
    intent, outcome = tail(plain._executor.core.config.audit.directory, 2)
    assert intent.id == outcome.id == refusal.value.result.id
    assert (intent.kind, intent.data["decision"], intent.data["findings"][0]["rule"]) == (
        *("intent", "forbid"),
        "entry.whitelist",
    )
    assert (outcome.kind, outcome.data["status"]) == ("outcome", "forbidden")


def test_the_other_ways_in_refuse_it_too(executor: Executor) -> None:
    result = executor.command(["git", "status", "-s"], entry="app:git")
    assert (result.status, result.shell_exit) == (redoma.Status.FORBIDDEN, 126)
    assert "app:git" in (result.error or "")
    with executor.stream_command(["id"], entry="app:git") as run:
        assert list(run) == []
    assert run.result.status is redoma.Status.FORBIDDEN


def test_an_empty_list_allows_nothing(executor: Executor) -> None:
    with pytest.raises(Refused, match="it allows: none"):
        redoma.exec.get("app:none", executor).exec("true")
    with pytest.raises(InvalidRequest, match="needs an argument vector"):
        redoma.exec.get("app:none", executor).exec([])


def test_lists_hold_in_cells_and_for_montys_code(executor: Executor) -> None:
    cell, calc = redoma.exec.get("app:cell", executor), redoma.exec.get("app:calc", executor)
    assert printed(cell, "pwd") == "/usr\n"
    with pytest.raises(Refused, match="app:cell does not allow"):
        cell.exec("pwd -L")
    process = calc.exec("1 + 1")
    process.start()
    assert (process.wait(), process.result.value) == (0, 2)
    with pytest.raises(Refused, match=r"app:calc does not allow this command; it allows: 1 \+ 1"):
        calc.exec("1 +  1")


# What the caller gives beside a listed command


def hostile(place: Path) -> tuple[Path, Path]:
    """A program that leaves a mark, and the mark."""
    mark, program = place / "mark", place / "hostile"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    return program, mark


def changed(repository: Path) -> None:
    """With something to see a difference in."""
    file = repository / "file"
    file.write_text("one\n")
    own = ["git", "-C", str(repository), "-c", "user.name=x", "-c", "user.email=x"]
    subprocess.run([*own, "add", "file"], check=True)
    subprocess.run([*own, "commit", "-qm", "x"], check=True)
    file.write_text("two\n")


VARIABLES: dict[str, Callable[[Path], dict[str, str]]] = {
    "GIT_EXTERNAL_DIFF": lambda program: {"GIT_EXTERNAL_DIFF": str(program)},
    "GIT_CONFIG_COUNT": lambda program: {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "diff.external",
        "GIT_CONFIG_VALUE_0": str(program),
    },
    "HOME": lambda program: {"HOME": str(configured_home(program))},
    "XDG_CONFIG_HOME": lambda program: {"XDG_CONFIG_HOME": str(configured_home(program) / "xdg")},
    "PATH": lambda program: {"PATH": f"{impostor(program)}:/usr/bin:/bin"},
    "LD_PRELOAD": lambda program: {"LD_PRELOAD": str(library(program))},
}


def configured_home(program: Path) -> Path:
    home = program.parent / "home"
    (home / "xdg" / "git").mkdir(parents=True)
    for file in (home / ".gitconfig", home / "xdg" / "git" / "config"):
        file.write_text(f"[diff]\n\texternal = {program}\n")
    return home


def impostor(program: Path) -> Path:
    directory = program.parent / "bin"
    directory.mkdir()
    shutil.copy(program, directory / "git")
    return directory


def library(program: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make a library with")
    file = program.with_suffix(".so")
    body = f'unsetenv("LD_PRELOAD"); system("{program}");'
    source = f"#include <stdlib.h>\n__attribute__((constructor)) void x(void) {{ {body} }}\n"
    subprocess.run([compiler, "-shared", "-fPIC", "-xc", "-", "-o", str(file)], input=source, text=True, check=True)
    return file


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_of_the_caller_changes_no_listed_command(
    git: ProcessExecutor, opened: ProcessExecutor, place: Path, name: str
) -> None:
    changed(place / "repo")
    program, mark = hostile(place)
    env = VARIABLES[name](program)
    printed(opened, "git diff", env=env, policy="none")
    assert mark.exists(), "the attack does nothing even where there is no list"
    mark.unlink()
    with pytest.raises(Refused, match="could change what they do") as refusal:
        git.exec("git diff", {"env": env}, policy="none")
    assert refusal.value.next.endswith("or name it in its caller_env")
    assert not mark.exists()
    assert tail(place / "audit", 1)[0].data["status"] == "forbidden"


NO_NAME_PASSES = [
    *("GIT_DIR", "GIT_SSH_COMMAND", "GIT_PAGER", "LD_LIBRARY_PATH", "LD_AUDIT", "BASH_ENV", "ENV", "SHELLOPTS"),
    *("PAGER", "EDITOR", "VISUAL", "PYTHONPATH", "PYTHONSTARTUP", "PERL5OPT", "RUBYOPT", "NODE_OPTIONS", "IFS"),
    *("LESSOPEN", "TERMINFO", "LOCPATH", "NLSPATH", "LANG_X", "XLANG", "LC_", "lang", "TMPDIR", "PWD", "A", "_"),
]


@pytest.mark.parametrize("name", NO_NAME_PASSES)
def test_no_name_passes_that_nobody_has_thought_of(plain: ProcessExecutor, name: str) -> None:
    with pytest.raises(Refused, match=rf"and {name} could change"):
        plain.exec("printenv", env={name: "x"})
    with pytest.raises(Refused, match=rf"and {name} could change"):
        plain.exec("printenv", secrets={name: "a secret"})


def test_variables_that_only_change_the_looks_pass(git: ProcessExecutor) -> None:
    looks = {"LANG": "pt_BR.UTF-8", "LC_ALL": "C", "TZ": "America/Sao_Paulo", "COLUMNS": "80", "NO_COLOR": "1"}
    looks |= {"TERM": "xterm-256color", "LANGUAGE": "pt_BR:en"}
    assert sorted(printed(git, "printenv", env=looks).split()) == sorted(f"{key}={looks[key]}" for key in looks)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TZ", ":/tmp/x"),
        ("TZ", "/tmp/x"),
        ("TZ", "../../../tmp/x"),
        ("LANGUAGE", "../../../tmp/x"),
        ("LC_ALL", "/tmp/x"),
        ("TERM", "../x"),
        ("LANG", "C\nX=1"),
        ("COLUMNS", "%n"),
    ],
)
def test_their_values_lead_to_no_file(plain: ProcessExecutor, name: str, value: str) -> None:
    with pytest.raises(Refused, match="could change what they do"):
        plain.exec("printenv", env={name: value})


def test_an_entry_may_name_variables_that_its_callers_set(executor: Executor) -> None:
    named = redoma.exec.get("app:named", executor)
    assert printed(named, "printenv", env={"CHOSEN": "/any thing"}) == "CHOSEN=/any thing\n"
    with pytest.raises(Refused, match="and OTHER could"):
        named.exec("printenv", env={"CHOSEN": "x", "OTHER": "x"})


def test_a_directory_of_the_caller_is_inside_that_of_the_entry(
    git: ProcessExecutor, opened: ProcessExecutor, place: Path
) -> None:
    program, mark = hostile(place)
    evil = place / "elsewhere"
    subprocess.run(["git", "-C", str(evil), "config", "core.fsmonitor", str(program)], check=True)
    (place / "repo" / "link").symlink_to(evil)
    (evil / "back").symlink_to(place / "repo")
    ways = [str(evil), "../elsewhere", "link", str(place / "repo" / "link"), "/", str(place), f"{place}/repository"]
    printed(opened, LISTED, work_dir=str(evil))
    assert mark.exists(), "the attack does nothing even where there is no list"
    mark.unlink()
    for way in ways:
        with pytest.raises(Refused, match=rf"they run in {place}/repo or below it only"):
            git.exec(LISTED, work_dir=way)
    assert not mark.exists()
    for way in ("inner", str(place / "repo" / "inner"), ".", str(evil / "back")):
        assert "On branch" in printed(git, LISTED, work_dir=way)
    with pytest.raises(InvalidRequest, match="NUL"):
        git.exec(LISTED, work_dir="inner\0")


def test_a_directory_of_an_entry_may_be_a_link(executor: Executor, place: Path) -> None:
    linked = redoma.exec.get("app:linked", executor)
    assert "On branch" in printed(linked, LISTED)
    assert "On branch" in printed(linked, LISTED, work_dir="inner")
    with pytest.raises(Refused, match="or below it only"):
        linked.exec(LISTED, work_dir=str(place / "elsewhere"))


def test_a_directory_inside_is_looked_at_by_its_name(executor: Executor) -> None:
    cell = redoma.exec.get("app:cell", executor)
    assert printed(cell, "pwd", work_dir="lib/..//lib") == "/usr/lib\n"
    for way in ("/", "/usrlib", "..", "/usr/../etc", "lib/../../etc"):
        with pytest.raises(Refused, match="they run in /usr or below it only"):
            cell.exec("pwd", work_dir=way)


def test_files_of_the_caller_do_not_lie_beside_a_listed_command(executor: Executor, place: Path) -> None:
    program, mark = hostile(place)
    head = {".git/HEAD": "ref: refs/heads/main\n", ".git/objects/x": "", ".git/refs/x": ""}
    files = {**head, ".git/config": f"[core]\n\trepositoryformatversion = 0\n\tfsmonitor = {program}\n"}
    executor.command(["git", "status"], entry="app:open", files=files)
    assert mark.exists(), "the attack does nothing even where there is no list"
    mark.unlink()
    for options in ({"files": files}, {"outputs": ["*"]}):
        for entry in ("app:git", "app:away"):
            refused = executor.command(["git", "status"], entry=entry, **options)
            assert refused.status is redoma.Status.FORBIDDEN
    assert not mark.exists()


@pytest.mark.parametrize("workspace", ["overlay", "direct"])
def test_a_listed_command_does_not_run_in_a_project_of_the_caller(
    executor: Executor, place: Path, workspace: WorkspaceKind
) -> None:
    for entry, command in (("app:cell", ["pwd"]), ("app:away", LISTED.split())):
        result = executor.command(command, entry=entry, workspace=workspace, project=place / "elsewhere")
        assert (result.status, result.denial and result.denial.rule) == ("forbidden", "entry.workspace")
        assert "elsewhere" not in result.stdout


def test_a_program_beside_it_is_not_taken_for_the_listed_one(git: ProcessExecutor, place: Path) -> None:
    program, mark = hostile(place)
    shutil.copy(program, place / "repo" / "git")
    shutil.copy(program, place / "repo" / "inner" / "git")
    assert "On branch" in printed(git, LISTED)
    assert "On branch" in printed(git, LISTED, work_dir="inner")
    assert not mark.exists()


def test_what_the_owner_of_an_entry_sets_is_not_judged_by_policy(tmp_path: Path) -> None:
    with Executor(configured(tmp_path, "name: x, kind: exec.native, default_env: {GIT_EXTERNAL_DIFF: /x}")) as executor:
        shell = redoma.exec.get("app:x", executor)
        assert printed(shell, "printenv GIT_EXTERNAL_DIFF") == "/x\n"
        with pytest.raises(Refused, match="makes other programs load"):
            printed(shell, "printenv GIT_EXTERNAL_DIFF", env={"GIT_EXTERNAL_DIFF": "/y"})


def test_our_own_path_is_not_the_commands(git: ProcessExecutor, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, mark = hostile(place)
    monkeypatch.setenv("PATH", f"{impostor(program)}:{os.environ['PATH']}")
    assert "On branch" in printed(git, LISTED)
    assert not mark.exists()
