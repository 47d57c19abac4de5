"""A listed Git command in a repository that somebody else wrote runs nothing of theirs: each attack is seen to succeed
where the executor trusts the repository."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from process_stage import configured

from redoma import Executor, Result
from redoma.errors import BackendError
from redoma.models import Request
from redoma.version_control import protected

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
)


class Place:
    def __init__(self, directory: Path) -> None:
        self.repository, self.mark = directory / "repo", directory / MARK
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
        os.utime(self.repository / "f.txt", (1, 1))
        with Executor(self.config) as executor:
            result = executor.command(command, entry=f"app:{entry}")
        return self.mark.exists(), result


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
    for kept, expected in (({}, True), (asyncio.run(protected(request, listed=True)).env, False)):
        place.mark.unlink(missing_ok=True)
        place.git("reset", "-q", "--hard")
        subprocess.run(command, cwd=place.repository, env=env | kept, capture_output=True, timeout=20)
        assert place.mark.exists() is expected


@pytest.mark.parametrize("key", ["remote.near.uploadpack", "remote.near.receivepack", "remote.near.vcs"])
async def test_what_can_not_be_overridden_is_refused(place: Place, key: str) -> None:
    place.git("config", key, place.evil)
    request = Request(argv=("git", "log", "-p"), language="command", backend="native", cwd=str(place.repository))
    with pytest.raises(BackendError, match=key):
        await protected(request, listed=True)


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
    place.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(tmp_path / "near.git"), "module")
    place.commit("module")
    for key in ("core.fsmonitor", "filter.mine.clean"):
        place.git("config", key, place.evil, cwd=place.repository / "module")
    (place.repository / "module" / "f.txt").write_text("dirty\n")
    assert place.ran("git status", "trusting")[0]
    ran, result = place.ran("git status", "guarded")
    assert (ran, result.ok) == (False, True)


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
