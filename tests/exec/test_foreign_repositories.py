"""A listed Git command in a repository that somebody else wrote runs nothing of theirs: each attack is seen to succeed
where the executor trusts the repository."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from process_stage import configured

from redoma import Executor, Result
from redoma.lib.errors import BackendError
from redoma.models import Language, Request, Status
from redoma.pipeline.foreign_repositories import protected
from redoma.policy import Reading

MARK = "ran-on-the-host"
LISTED = (
    "git status",
    "git diff",
    "git show --textconv HEAD:f.txt",
    "git blame f.txt",
    "git commit -qm x --allow-empty",
    "git st",
    "git -C . status",
    "sh -c 'cd inner && git status'",
    "git checkout -q other",
    "git add f.txt",
    "git add -u",
    "git rm -q module",
    "git log -p",
    "git log -p --submodule=diff",
    "git diff --submodule=diff",
    "git status --ignore-submodules=none",
    "git archive --format=tar.gz HEAD",
    "git -C nowhere status",
    "sh -c 'cd $PLACE && git status'",
    "sh -c 'git checkout -q other && git status'",
    "git fetch -q git://localhost:1/x",
)


class Place:
    def __init__(self, directory: Path) -> None:
        self.repository, self.mark, self.times = directory / "repo", directory / MARK, 0
        self.evil = f"touch {self.mark}; cat"
        self.git("init", "-q", "-b", "main", str(self.repository), cwd=directory)
        for key, value in (("user.name", "a"), ("user.email", "a@example.org")):
            self.git("config", key, value)
        (self.repository / "inner").mkdir()
        (self.repository / "inner" / "g.txt").write_text("one\n")
        (self.repository / "f.txt").write_text("one\n")
        (self.repository / ".gitattributes").write_text("*.txt diff=mine filter=mine merge=mine\n")
        self.commit("first")
        self.git("checkout", "-q", "-b", "other")
        (self.repository / "f.txt").write_text("other\n")
        self.commit("other")
        self.git("checkout", "-q", "main")
        (self.repository / "f.txt").write_text("main\n")
        self.commit("second")
        self.git("clone", "-q", "--bare", str(self.repository), str(directory / "near.git"), cwd=directory)
        self.git("remote", "add", "near", str(directory / "near.git"))
        self.git("remote", "add", "far", "ssh://localhost/nowhere")
        where = f"default_work_dir: {self.repository}"
        commands = ", ".join('"' + each + '"' for each in LISTED)
        self.config = configured(
            directory,
            f"name: guarded, kind: exec.native, command_whitelist: [{commands}], {where}",
            f"name: trusting, kind: exec.native, command_whitelist: [{commands}], trust_repository: true, {where}",
            f"name: open, kind: exec.native, {where}",
        )

    def git(self, *words: str, cwd: Path | None = None) -> None:
        subprocess.run(["git", *words], check=True, cwd=cwd or self.repository, capture_output=True)

    def commit(self, message: str) -> None:
        self.git("add", "-A")
        self.git("commit", "-qm", message)

    def ran(self, command: str, entry: str) -> tuple[bool, Result]:
        """Whether something of the repository's ran, and the result."""
        self.mark.unlink(missing_ok=True)
        (self.repository / "f.txt").write_text("changed\n")
        self.touch(self.repository / "inner" / "g.txt")
        with Executor(self.config) as executor:
            result = executor.command(command, entry=f"app:{entry}")
        return self.mark.exists(), result

    def touch(self, file: Path) -> None:
        """Give it another time than the index has: Git has to read it, through its filter."""
        self.times += 1
        os.utime(file, (self.times, self.times))

    def add_module(self, source: Path) -> Path:
        self.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(source), "module")
        self.commit("module")
        return self.repository / "module"

    def foreign(self, name: str) -> Path:
        """A repository below this one, with a filter that a look at it runs."""
        inner = self.repository / name
        self.git("init", "-q", str(inner))
        (inner / ".gitattributes").write_text("* filter=own-of-it\n")
        (inner / "a.txt").write_text("one\n")
        self.git("add", "-A", cwd=inner)
        self.git("-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "x", cwd=inner)
        self.git("config", "filter.own-of-it.clean", self.evil, cwd=inner)
        return inner


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(
    ("key", "command"),
    [
        ("core.fsmonitor", "git status"),
        ("core.fsmonitor", "git -C . status"),
        ("core.fsmonitor", "git diff"),
        ("filter.mine.clean", "git status"),
        ("filter.mine.clean", "sh -c 'cd inner && git status'"),
        ("filter.mine.process", "git status"),
        ("filter.mine.clean", "git add f.txt"),
        ("diff.mine.textconv", "git diff"),
        ("diff.mine.textconv", "git show --textconv HEAD:f.txt"),
        ("diff.mine.textconv", "git blame f.txt"),
        ("diff.mine.command", "git diff"),
        ("diff.external", "git diff"),
        ("alias.st", "git st"),
    ],
)
def test_what_a_repository_configures_does_not_run(place: Place, key: str, command: str) -> None:
    place.git("config", key, ("!" if key.startswith("alias") else "") + place.evil)
    assert place.ran(command, "trusting")[0], "the attack itself does not work"
    ran, result = place.ran(command, "guarded")
    assert not ran
    if key.split(".")[0] in ("filter", "diff") or "status" in command:
        assert result.ok, result.stderr  # and what it was listed for still works


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("core.sshCommand", "fetch -q far"),
        ("protocol.ext.allow", "fetch -q evil"),
        ("diff.external", "log -p --ext-diff"),
        ("merge.mine.driver", "merge -q -m x other"),
        ("core.editor", "commit --allow-empty"),
        ("trailer.x.cmd", "commit --allow-empty -m x --trailer x:y"),
    ],
)
def test_nor_does_it_where_policy_would_ask(place: Place, key: str, words: str) -> None:
    """What it would run is seen with Git itself: a person is asked about most of these."""
    place.git("remote", "add", "evil", f"ext::sh -c touch% {place.mark}")
    place.git("config", key, "always" if key.startswith("protocol") else place.evil)
    command = ("git", *words.split())
    request = Request(argv=command, language="command", backend="native", cwd=str(place.repository))
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    for kept, expected in (({}, True), (asyncio.run(protected(Reading(request), listed=True)).env, False)):
        place.mark.unlink(missing_ok=True)
        place.git("reset", "-q", "--hard")
        subprocess.run(command, cwd=place.repository, env=env | kept, capture_output=True, timeout=120)
        assert place.mark.exists() is expected


@pytest.mark.parametrize("key", ["remote.near.uploadpack", "remote.near.receivepack", "remote.near.vcs"])
async def test_what_can_not_be_overridden_is_refused(place: Place, key: str) -> None:
    place.git("config", key, place.evil)
    request = Request(argv=("git", "log", "-p"), language="command", backend="native", cwd=str(place.repository))
    with pytest.raises(BackendError, match=key):
        await protected(Reading(request), listed=True)


@pytest.mark.parametrize(
    ("hook", "command"), [("pre-commit", "git commit -qm x --allow-empty"), ("post-checkout", "git checkout -q other")]
)
def test_hooks_do_not_run(place: Place, hook: str, command: str) -> None:
    path = place.repository / ".git" / "hooks" / hook
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\ntouch {place.mark}\n")
    path.chmod(0o755)
    place.git("stash") if "checkout" in command else None
    with Executor(place.config) as executor:
        for entry, expected in (("app:guarded", False), ("app:trusting", True)):
            place.mark.unlink(missing_ok=True)
            place.git("checkout", "-q", "-f", "main")
            place.mark.unlink(missing_ok=True)
            executor.command(command, entry=entry)
            assert place.mark.exists() is expected


def test_settings_in_an_included_file_of_the_repository_do_not_run(place: Place) -> None:
    (place.repository / "more.ini").write_text(f'[diff "mine"]\n\ttextconv = "{place.evil}"\n')
    place.git("config", "include.path", "../more.ini")
    assert place.ran("git diff", "trusting")[0]
    ran, result = place.ran("git diff", "guarded")
    assert (ran, "+changed" in result.stdout) == (False, True)


def test_a_submodule_s_settings_do_not_run(place: Place, tmp_path: Path) -> None:
    place.add_module(tmp_path / "near.git")
    for key in ("core.fsmonitor", "filter.mine.clean"):
        place.git("config", key, place.evil, cwd=place.repository / "module")
    (place.repository / "module" / "f.txt").write_text("dirty\n")
    assert place.ran("git status", "trusting")[0]
    ran, result = place.ran("git status", "guarded")
    assert (ran, result.ok) == (False, True)


@pytest.mark.parametrize(
    "command", ["git status", "git diff", "git add -u", "git rm -q module", "git status --ignore-submodules=none"]
)
def test_nor_does_a_submodule_s_filter_where_git_is_told_to_look_into_it(
    place: Place, tmp_path: Path, command: str
) -> None:
    module = place.add_module(tmp_path / "near.git")
    place.git("config", "-f", ".gitmodules", "submodule.module.ignore", "none")
    place.commit("look into it")
    (module / ".gitattributes").write_text("* filter=own-of-it\n")
    place.git("config", "filter.own-of-it.clean", place.evil, cwd=module)
    for entry, expected in (("trusting", True), ("guarded", False)):
        place.touch(module / "f.txt")
        ran, result = place.ran(command, entry)
        assert ran is expected, result.stderr
    assert result.ok or command.startswith("git rm"), result.error


@pytest.mark.parametrize("command", ["git diff", "git log -p", "git diff --submodule=diff"])
def test_nor_does_a_submodule_s_external_diff(place: Place, tmp_path: Path, command: str) -> None:
    module = place.add_module(tmp_path / "near.git")
    place.git("config", "diff.submodule", "diff")
    place.git("config", "diff.external", f"touch {place.mark} #", cwd=module)
    place.git("checkout", "-q", "HEAD~1", cwd=module)
    if "log" in command:
        place.commit("moved")
    assert place.ran(command, "trusting")[0]
    ran, result = place.ran(command, "guarded")
    assert (ran, result.ok) == (False, True), result.error


def test_nor_does_that_of_one_that_only_history_knows(place: Place, tmp_path: Path) -> None:
    module = place.add_module(tmp_path / "near.git")
    place.git("config", "diff.external", f"touch {place.mark} #", cwd=module)
    place.git("checkout", "-q", "HEAD~1", cwd=module)
    place.commit("moved")
    place.git("rm", "-q", "--cached", "module")
    place.git("commit", "-qm", "gone")
    assert place.ran("git log -p --submodule=diff", "trusting")[0]
    ran, result = place.ran("git log -p --submodule=diff", "guarded")
    assert (ran, result.ok) == (False, True), result.error


def test_a_checkout_does_not_run_the_filter_of_a_repository_that_becomes_a_submodule(place: Place) -> None:
    inner = place.foreign("module")
    place.git("checkout", "-q", "other")
    (place.repository / ".gitmodules").write_text('[submodule "m"]\n\tpath = module\n\turl = x\n\tignore = none\n')
    place.commit("a submodule")
    place.git("checkout", "-q", "-f", "main")
    for entry, expected in (("trusting", True), ("guarded", False)):
        place.git("reset", "-q", "--hard")
        place.git("checkout", "-q", "main")
        place.mark.unlink(missing_ok=True)
        place.touch(inner / "a.txt")
        with Executor(place.config) as executor:
            result = executor.command("sh -c 'git checkout -q other && git status'", entry=f"app:{entry}")
        assert result.ok, result.error or result.stderr
        assert place.mark.exists() is expected


def test_an_archive_is_not_packed_by_a_program_of_the_repository_s(place: Place) -> None:
    place.git("config", "tar.tar.gz.command", f"touch {place.mark}; cat #")
    command = "git archive --format=tar.gz HEAD"
    assert place.ran(command, "trusting")[0]
    ran, result = place.ran(command, "guarded")
    assert (ran, result.ok) == (False, True)


def test_nor_is_a_proxy_of_the_repository_s_run(place: Place) -> None:
    place.git("config", "core.gitProxy", str(place.mark.with_name("proxy")))
    (place.mark.with_name("proxy")).write_text(f"#!/bin/sh\ntouch {place.mark}\n")
    (place.mark.with_name("proxy")).chmod(0o755)
    request = Request(argv=("git", "fetch", "-q", "git://localhost:1/x"), language="command", cwd=str(place.repository))
    for kept, expected in (({}, True), (asyncio.run(protected(Reading(request), listed=True)).env, False)):
        place.mark.unlink(missing_ok=True)
        env = {"PATH": "/usr/bin:/bin", **kept}
        subprocess.run(request.argv, cwd=place.repository, env=env, capture_output=True, timeout=120)
        assert place.mark.exists() is expected


def test_files_that_a_configuration_includes_must_not_change_under_git(place: Place) -> None:
    place.git("config", "include.path", "../more.ini")
    _, result = place.ran("git add f.txt", "guarded")
    assert "includes other files" in (result.error or "")
    assert place.ran("git status", "guarded")[1].ok


@pytest.mark.parametrize(
    "script",
    [
        'for d in r*; do git -C "$d" status; done',
        "for d in r*; do (cd $d && git status); done",
        "find . -name .git -execdir git -C .. status ';' -execdir git status ';'",
        "ls -d r1 | xargs -I{} git -C {} status",
        "ls -d r1 | xargs -I{} sh -c 'cd {}; git status'",
        "find . -name r1 -exec git -C {} status ';'",
        "find . -name r1 -exec sh -c 'cd {} && git status' ';'",
        "mkdir -p d; ln -sfn ../r1 d/d; for i in 1 2; do cd d; git status; done",
        "GIT_DIR=r1/.git GIT_WORK_TREE=r1 git status",
        "export GIT_DIR=$PWD/r1/.git GIT_WORK_TREE=$PWD/r1; git status",
        "cd $(ls -d r1); git status",
        'X="-C $(ls -d r1)"; git $X status',
        "cd r1; env -u GIT_CONFIG_COUNT git status",
        "cd r1; env -i PATH=/usr/bin:/bin git status",
        "cd r1; unset GIT_CONFIG_COUNT; git status",
        "CDPATH=$PWD/far; cd r1; git status",
    ],
)
def test_git_that_looks_is_not_run_where_the_repository_can_not_be_told(place: Place, script: str) -> None:
    inner = place.foreign("r1")
    _in_script(place, script, "bash", place.foreign("far/r1") if "far" in script else inner)


@pytest.mark.parametrize(
    "script",
    [
        'subprocess.run(["git", "status"], cwd="PLACE/r1")',
        'os.chdir("r1"); subprocess.run(["git", "status"])',
        'subprocess.run(["git", "-C", "r1", "status"], env={"PATH": "/usr/bin:/bin"})',
        'subprocess.run(["git", "status"], **{"cwd": "r1"})',
        'subprocess.run(["git", "status"], -1, None, None, None, None, None, True, False, "r1")',
        'subprocess.run(["git", "status"], env={**os.environ, "GIT_DIR": "r1/.git", "GIT_WORK_TREE": "r1"})',
    ],
)
def test_nor_from_python(place: Place, script: str) -> None:
    code = "import os, subprocess\n" + script.replace("PLACE", str(place.repository))
    _in_script(place, code, "python", place.foreign("r1"))


def _in_script(place: Place, script: str, language: Language, inner: Path) -> None:
    """The attack works without us, and git is not run with us."""
    place.touch(inner / "a.txt")
    program = "bash" if language == "bash" else sys.executable
    subprocess.run([program, "-c", script], cwd=place.repository, capture_output=True, timeout=120)
    assert place.mark.exists(), "the attack itself does not work"
    place.mark.unlink()
    place.touch(inner / "a.txt")
    with Executor(place.config) as executor:
        result = executor.run(script, language, backend="native", cwd=str(place.repository))
    assert not place.mark.exists()
    assert result.status is not Status.OK
    if result.status is not Status.DENIED:  # by the policy, which asks about some of these anyway
        assert "git was not run" in (result.error or "")
        assert "trust_repository" in (result.error or "")


@pytest.mark.parametrize("many", [9, 300])
def test_every_repository_of_a_script_is_looked_at_or_none_is_entered(place: Place, many: int) -> None:
    names = [f"r{number}" for number in range(many)]
    last = place.foreign(names[-1])
    for name in names[:-1]:
        (place.repository / name).mkdir()
    place.touch(last / "a.txt")
    script = "\n".join(f"git -C {name} status" for name in names)
    with Executor(place.config) as executor:
        result = executor.run(script, "bash", backend="native", cwd=str(place.repository))
    assert not place.mark.exists()
    assert result.ok is (many == 9), result.error


def test_a_repository_that_the_request_brings_along_is_not_obeyed(place: Place) -> None:
    files = {
        ".git/config": f'[core]\n\trepositoryformatversion = 0\n[diff "x"]\n\ttextconv = "{place.evil}"\n',
        ".git/HEAD": "ref: refs/heads/main\n",
        ".git/objects/x": "",
        ".git/refs/x": "",
        ".gitattributes": "* diff=x\n",
        "a": "one\n",
    }
    with Executor(place.config) as executor:
        result = executor.command(["git", "diff", "--no-index", "/dev/null", "a"], backend="native", files=files)
        assert (place.mark.exists(), result.ok) == (False, False)
        assert ".git/config" in (result.error or "")
        plain = executor.command(
            ["git", "diff", "--no-index", "/dev/null", "a"], backend="native", files={"a": "one\n"}
        )
        assert "+one" in plain.stdout


@pytest.mark.parametrize("command", ["git -C nowhere status", "sh -c 'cd $PLACE && git status'"])
def test_nor_is_a_listed_command_run_in_a_repository_that_can_not_be_read(place: Place, command: str) -> None:
    _, result = place.ran(command, "guarded")
    assert "git was not run" in (result.error or "")


@pytest.mark.parametrize(
    "script",
    [
        "git status",
        "git -C inner status && git log -1 --format=%H -- '*.txt'",
        "cd inner && git diff --stat | cat",
        "timeout 20 git status; git branch; git config user.name",
        'git ls-files | while read f; do git log -1 --format=%s -- "$f"; done',
        "git ls-files -z | xargs -0 git blame -s HEAD --",
        "bash -c 'cd inner; git status'",
        "cd ../other & git status",
        "cd inner && git -C deep status",
        "if git diff --quiet; then echo same; fi; GIT_PAGER=cat git show --stat",
    ],
)
def test_ordinary_looks_run_and_run_nothing(place: Place, script: str) -> None:
    place.git("config", "filter.mine.clean", place.evil)
    place.touch(place.repository / "inner" / "g.txt")
    (place.repository.parent / "other").mkdir()
    (place.repository / "inner" / "deep").mkdir()
    with Executor(place.config) as executor:
        result = executor.run(script, "bash", backend="native", cwd=str(place.repository))
    assert result.error is None
    assert not place.mark.exists()


def test_what_only_looks_is_kept_to_itself_without_a_list_too(place: Place) -> None:
    place.git("config", "core.fsmonitor", place.evil)
    assert not place.ran("git status", "open")[0]
    assert not place.ran("git -C inner log -n 1", "open")[0]
    with Executor(place.config) as executor:
        place.mark.unlink(missing_ok=True)
        executor.run("git status && git diff --stat", "bash", backend="native", cwd=str(place.repository))
        assert not place.mark.exists()


def test_what_the_owner_sets_wins(place: Place, tmp_path: Path) -> None:
    env = "{GIT_CONFIG_COUNT: '1', GIT_CONFIG_KEY_0: diff.mine.textconv, GIT_CONFIG_VALUE_0: tr a-z A-Z <}"
    where = f"default_work_dir: {place.repository}"
    entry = f"name: own, kind: exec.native, command_whitelist: [git diff], default_env: {env}, {where}"
    place.config = configured(tmp_path, entry)
    place.git("config", "diff.mine.textconv", place.evil)
    ran, result = place.ran("git diff", "own")
    assert (ran, "+CHANGED" in result.stdout) == (False, True)


def test_a_repository_that_configures_too_much_is_refused(place: Place) -> None:
    with open(place.repository / ".git" / "config", "a") as config:
        config.writelines(f'[filter "x{number}"]\n\tclean = cat\n' for number in range(1500))
    _, result = place.ran("git status", "guarded")
    assert not result.ok
    assert "trust_repository" in (result.error or "")
    assert place.ran("git status", "trusting")[1].ok


def test_to_look_at_a_repository_says_nothing(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    request = Request(argv=("git", "status"), language="command", cwd=str(place.repository))
    for _ in range(20):
        asyncio.run(protected(Reading(request), listed=True))
    assert not caplog.records
