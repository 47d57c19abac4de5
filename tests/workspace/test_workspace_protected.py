"""What is never changed by the way."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from workspace_stage import Stage, snapshot

from redoma.lib.errors import WorkspaceError
from redoma.workspace.protected import must_be_a_project, named, protected, repositories

PROTECTED = [
    ".git/hooks/pre-commit",
    ".git/hooks",
    ".git/config",
    ".git/config.worktree",
    "sub/module/.git/hooks/post-checkout",
    ".git/commondir",
    ".git/modules/a/b/hooks/x",
    ".git/modules/a/config",
    ".git/info/attributes",
    ".git/rebase-merge/git-rebase-todo",
    ".gitmodules",
    ".git/objects/info/alternates",
    ".git",
    ".GIT/Hooks/x",
    ".git./config",
    "home/.bashrc",
    ".zshrc",
    ".profile",
    ".envrc",
    "a/b/.envrc",
    ".github/workflows/ci.yml",
    ".github/workflows",
    ".gitlab-ci.yml",
    ".circleci/config.yml",
    "Jenkinsfile",
    "azure-pipelines.yml",
    "azure-pipelines-2.yml",
    ".claude/settings.json",
    ".claude",
    ".claude/new/deep",
    "CLAUDE.md",
    "docs/AGENTS.md",
    ".cursor/rules/x.mdc",
    ".mcp.json",
    ".vscode/tasks.json",
    ".vscode",
    ".idea/workspace.xml",
    "redoma.yaml",
    "sub/redoma.yaml",
    ".pre-commit-config.yaml",
    ".husky/pre-push",
    ".ssh/authorized_keys",
    ".gnupg/gpg.conf",
    "etc/cron.d/job",
    "crontab",
    ".config/fish/config.fish",
    ".github",
    ".devcontainer/devcontainer.json",
    "x.code-workspace",
    ".git\u200c/config",
    ".\N{FULLWIDTH LATIN SMALL LETTER G}it/config",
    "claude.MD",
    ".config/systemd/user/x.service",
    *(".hg/hgrc", "a/.helix/config.toml", ".pdbrc", ".mise.local.toml", "mise.production.toml", ".pnpmfile.cjs"),
    *(".jj/repo/config.toml", ".vim/plugin/x.vim", ".zuul.d/jobs.yaml", "zuul.yaml", "bitrise.yml", "WARP.md"),
    *("QWEN.md", "monitor.yaml", ".githooks/pre-push", ".qwen/settings.json", ".ghci", ".yarn/plugins/x.cjs"),
    *(".config/nvim/init.lua", "x.sublime-project", ".mvn/extensions.xml", ".kilocode/rules", "CRUSH.md"),
    *("hk.pkl", ".amazonq/rules/x.md", ".augment-guidelines", ".opencode.json", ".autoenv.zsh", ".mvn/jvm.config"),
]

FREE = [
    "README.md",
    "src/main.py",
    ".git/HEAD",
    ".git/index",
    ".git/refs/heads/main",
    ".git/objects/ab/cdef",
    ".gitignore",
    ".gitattributes",
    "Makefile",
    ".github/ISSUE_TEMPLATE.md",
    "docs/claude.txt",
    "bashrc",
    "src/.bashrc.d/x",
    "git/hooks/pre-commit",
    ".git2/config",
    "package.json",
    ".github/FUNDING.yml",
    ".environment",
    "workflows/ci.yml",
    "myredoma.yaml",
    "config",
    "hooks/x",
    ".git/COMMIT_EDITMSG",
    *(".jj/repo/store/x", ".hg/store/x", "src/vim.py", "monitor/rules.yaml", ".tool-versions", "mise/README.md"),
]


def test_what_others_run_or_obey_is_protected_and_nothing_else() -> None:
    assert [path for path in PROTECTED if not protected(path)] == []
    assert [path for path in FREE if protected(path)] == []


def test_a_directory_on_the_way_may_come_but_nothing_else_in_its_place() -> None:
    for path in (".git", ".github", "a/.config", ".git/modules", ".git/info"):
        assert not protected(path, "directory")
        assert protected(path)
    assert not protected(".git/refs")


def test_naming_lifts_exactly_what_is_named() -> None:
    assert named(".github/workflows/ci.yml", [".github/**"])
    assert named(".claude", [".claude/**"])
    assert named("a/b/CLAUDE.md", ["**/CLAUDE.md"])
    assert named("CLAUDE.md", ["**/CLAUDE.md"])
    assert not named("a/CLAUDE.md", ["CLAUDE.md"])
    assert not named(".git/hooks/x", [".git/*"])
    assert not named(".git/config", [])
    assert not named("xgit/config", [".git/config"])


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_what_is_protected_is_left_and_told_until_it_is_named(stage: Stage) -> None:
    stage.write("CLAUDE.md", "be careful")

    def run(ran: Path) -> None:
        (ran / ".github/workflows").mkdir(parents=True)
        (ran / ".github/workflows/ci.yml").write_text("steal")
        (ran / ".claude").mkdir()
        (ran / ".claude/settings.json").write_text("{}")
        (ran / "CLAUDE.md").unlink()
        (ran / "file").write_text("x")

    kept = stage.kept(run, "it")
    assert {change.path for change in kept.effect.changes if not change.protected} == {".github", "file"}
    kept = stage.changes.apply("it")
    assert kept.state == "partly"
    assert set(kept.left) == {
        *(".github/workflows", ".github/workflows/ci.yml", ".claude", ".claude/settings.json", "CLAUDE.md")
    }
    assert kept.left["CLAUDE.md"] == "it tells an agent what to do"
    assert set(snapshot(stage.project)) == {".github", "file", "CLAUDE.md"}
    with pytest.raises(WorkspaceError, match="nothing to apply"):
        stage.changes.apply("it")
    with pytest.raises(WorkspaceError, match=r"CLAUDE\.md is protected.*--allow CLAUDE\.md"):
        stage.changes.apply("it", paths=["CLAUDE.md"])
    kept = stage.changes.apply("it", named=[".claude/settings.json"])
    assert (stage.project / ".claude/settings.json").exists()  # with the directory that it needs
    assert set(kept.left) == {".github/workflows", ".github/workflows/ci.yml", "CLAUDE.md"}
    assert stage.changes.apply("it", named=["**"]).state == "applied"
    stage.changes.undo("it")
    assert set(snapshot(stage.project)) == {"CLAUDE.md"}


def test_a_tree_that_holds_something_protected_stays(stage: Stage) -> None:
    stage.write("d/.git/config", "c")
    stage.write("d/.git/HEAD", "h")
    stage.write("d/file", "f")
    kept = stage.kept(lambda ran: shutil.rmtree(ran / "d"), "it")
    kept = stage.changes.apply("it")
    assert set(snapshot(stage.project)) == {"d", "d/.git", "d/.git/config"}
    assert set(kept.left) == {"d", "d/.git", "d/.git/config"}
    assert "is left, which was in it" in kept.left["d"]


def test_a_renamed_directory_is_no_way_around(stage: Stage) -> None:
    stage.write("harmless/hooks/pre-commit", "evil")
    stage.write("x/.git/config", "mine")

    def run(ran: Path) -> None:
        (ran / "harmless").rename(ran / ".git")
        (ran / "x").rename(ran / "y")

    before = snapshot(stage.project)
    stage.kept(run, "it")
    kept = stage.changes.apply("it")
    assert {".git/hooks/pre-commit", "y/.git/config"} <= set(kept.left)
    after = snapshot(stage.project)
    assert {path: what for path, what in after.items() if what[0] == "file"} == {
        path: what for path, what in before.items() if what[0] == "file"
    }


@pytest.mark.parametrize("name", [".git", ".github", ".github/workflows", ".vscode", "sub/.git"])
def test_a_link_in_the_place_of_a_directory_is_no_way_around(stage: Stage, name: str) -> None:
    stage.write(f"{name}/workflows/x", "y")
    stage.write("evil/hooks/x", "y")

    def run(ran: Path) -> None:
        shutil.rmtree(ran / name)
        (ran / name).symlink_to("/tmp/evil")

    kept = stage.kept(run, "it")
    assert next(change for change in kept.effect.changes if change.path == name).protected


def test_a_repository_under_another_name_is_no_way_around(stage: Stage) -> None:
    """git takes any directory for a repository that looks like one, and runs what its configuration says."""

    def run(ran: Path) -> None:
        for name in ("objects", "refs", "hooks"):
            (ran / "docs" / name).mkdir(parents=True)
        (ran / "docs/HEAD").write_text("ref: refs/heads/main")
        (ran / "docs/config").write_text("[core]\nfsmonitor = evil")
        (ran / "docs/hooks/post-checkout").write_text("evil")
        (ran / "docs/index.html").write_text("fine")
        (ran / "app").mkdir()
        (ran / "app/config").write_text("an ordinary one")

    stage.kept(run, "it")
    kept = stage.changes.apply("it")
    assert set(kept.left) == {
        *("docs/HEAD", "docs/config", "docs/hooks", "docs/hooks/post-checkout", "docs/objects", "docs/refs")
    }
    assert (stage.project / "app/config").exists()
    assert (stage.project / "docs/index.html").exists()


@pytest.mark.parametrize("top", ["hooks", "src/hooks/useAuth", "hooks/hooks"])
def test_nor_is_one_below_a_directory_called_hooks(stage: Stage, top: str) -> None:
    def run(ran: Path) -> None:
        for name in ("objects", "refs", "hooks"):
            (ran / top / name).mkdir(parents=True)
        (ran / top / "HEAD").write_text("ref: refs/heads/main")
        (ran / top / "config").write_text("[core]\nfsmonitor = evil")
        (ran / top / "hooks/post-checkout").write_text("evil")

    stage.kept(run, "it")
    left = set(stage.changes.apply("it").left)
    assert {f"{top}/{name}" for name in ("HEAD", "config", "hooks", "hooks/post-checkout", "objects", "refs")} <= left


def test_a_repository_made_in_two_steps_is_none_either(stage: Stage) -> None:
    stage.write("docs/config", "[core]\nfsmonitor = evil")  # harmless, when it came

    def run(ran: Path) -> None:
        (ran / "docs/objects").mkdir()
        (ran / "docs/refs/heads").mkdir(parents=True)
        (ran / "docs/HEAD").write_text("ref: refs/heads/main")

    stage.kept(run, "it")
    with pytest.raises(WorkspaceError, match="makes its directory a git repository"):
        stage.changes.apply("it")


LED_TO = {
    "a hook": (".git/hooks/pre-commit", "../../scripts/check.sh", "scripts/check.sh"),
    "an agent's orders": ("CLAUDE.md", "docs/guide.md", "docs/guide.md"),
    "workflows": (".github/workflows", "../ci", "ci/release.yml"),
    "a directory on the way": (".github", "meta", "meta/workflows/x.yml"),
    "by way of another link": ("AGENTS.md", "notes", "docs/guide.md"),
    "something that isn't there yet": (".vscode", "editor", "editor/tasks.json"),
    "an absolute one": (".envrc", "{project}/env/rc", "env/rc"),
    "the hooks of a repository under another name": ("bare/hooks", "../scripts", "scripts/check.sh"),
}


@pytest.mark.parametrize(("link", "target", "path"), LED_TO.values(), ids=LED_TO)
def test_what_a_protected_link_leads_to_is_protected(stage: Stage, link: str, target: str, path: str) -> None:
    for name in ("scripts/check.sh", "docs/guide.md", "ci/release.yml", "meta/workflows/x.yml", "env/rc"):
        stage.write(name, "old")
    for name in ("HEAD", "objects/x", "refs/x"):
        stage.write(f"bare/{name}", "old")
    (stage.project / "notes").symlink_to("docs/guide.md")
    (stage.project / link).parent.mkdir(parents=True, exist_ok=True)
    (stage.project / link).symlink_to(target.format(project=stage.project))

    def run(ran: Path) -> None:
        (ran / path).parent.mkdir(exist_ok=True)
        (ran / path).write_text("evil")
        (ran / "scripts/other.txt").write_text("fine")
        (ran / "meta/other.txt").write_text("fine")

    kept = stage.kept(run, "it")
    about = {change.path: change.protected for change in kept.effect.changes}
    assert about[path].startswith(link)
    assert "leads to it: " in about[path]
    assert about["meta/other.txt"] == ""
    assert bool(about["scripts/other.txt"]) == link.startswith("bare")
    kept = stage.changes.apply("it")
    assert path in kept.left
    assert not (stage.project / path).exists() or (stage.project / path).read_text() == "old"


@pytest.mark.parametrize(
    ("links", "changed"),
    [
        ({"CLAUDE.md": "one", "one": "docs/two", "docs/two": "guide.md"}, "docs/two"),
        ({"CLAUDE.md": "latest/guide.md", "latest": "docs"}, "latest"),
        ({".git/hooks": "../tools", "tools": "scripts"}, "tools"),
        ({"tools": "scripts"}, "tools"),  # core.hooksPath
        (
            {f"l{number}": "docs/guide.md" for number in range(99)} | {"zed/AGENTS.md": "../docs/guide.md"},
            "docs/guide.md",
        ),
    ],
    ids=["a link between", "a directory between", "hooks", "what git's configuration names", "one of a hundred"],
)
def test_so_is_every_link_on_the_way(stage: Stage, links: dict[str, str], changed: str) -> None:
    for name in ("docs/guide.md", "scripts/pre-commit", "evil/guide.md"):
        stage.write(name, "old")
    if len(links) == 1:
        stage.write(".git/config", "[core]\n\thooksPath = tools\n")
    for link, target in links.items():
        (stage.project / link).parent.mkdir(parents=True, exist_ok=True)
        (stage.project / link).symlink_to(target)

    def run(ran: Path) -> None:
        (ran / changed).unlink()
        (ran / changed).symlink_to("evil")

    kept = stage.kept(run, "it")
    assert all(change.protected for change in kept.effect.changes)
    with pytest.raises(WorkspaceError):
        stage.changes.apply("it")


def test_links_that_lead_in_circles_hold_nobody_up(stage: Stage) -> None:
    for number in range(20):
        (stage.project / f"l{number}").symlink_to(".")
        (stage.project / f"c{number}").symlink_to(f"c{number + 1}" if number < 19 else "c0")
    (stage.project / "out").symlink_to("/")
    kept = stage.kept(lambda ran: (ran / "file").write_text("x"), "it")
    assert [change.protected for change in kept.effect.changes] == [""]


CONFIGURED = {
    "hooks": ("[core]\n\thooksPath = tools/hooks", "tools/hooks/pre-commit"),
    "hooks in quotes": ('[CORE] HooksPath="tools/hooks" ; comment', "tools/hooks/pre-commit"),
    "an include": ("[include]\n path = ../shared.cfg", "shared.cfg"),
    "what an include says": ("[include]\n path = ../there.cfg", "tools/hooks/pre-commit"),
    "a monitor": ("[core]\nfsmonitor = tools/watch --fast", "tools/watch"),
    "a filter": ('[filter "x"]\nclean = tools/clean %f', "tools/clean"),
    "an alias": ("[alias]\nst = !tools/st", "tools/st"),
}


@pytest.mark.parametrize(("config", "path"), CONFIGURED.values(), ids=CONFIGURED)
@pytest.mark.parametrize("sub", ["", "vendor/lib"])
def test_what_the_configuration_of_git_leads_to_is_protected(stage: Stage, config: str, path: str, sub: str) -> None:
    stage.write(os.path.join(sub, ".git/config"), f"{config}\n")
    stage.write(os.path.join(sub, "there.cfg"), "[core]\nhooksPath = tools/hooks\n")

    def run(ran: Path) -> None:
        for name in (path, "src/main.c"):
            (ran / sub / name).parent.mkdir(parents=True, exist_ok=True)
            (ran / sub / name).write_text("evil")

    about = {change.path: change.protected for change in stage.kept(run, "it").effect.changes}
    assert "git" in about[os.path.join(sub, path)]
    assert about[os.path.join(sub, "src/main.c")] == ""


def test_also_that_of_a_repository_the_project_lies_in(stage: Stage) -> None:
    git = stage.project.parent / ".git"
    git.mkdir()
    (git / "config").write_text(f"[core]\nhooksPath = {stage.project.name}/hooks\n")
    kept = stage.kept(lambda ran: (ran / "hooks").mkdir(), "it")
    assert "hooks are in it" in kept.effect.changes[0].protected


ENTERED = {
    "source_env": ("source_env lib/env.sh", "lib/env.sh"),
    "one that is not there yet": ("source_env_if_exists .envrc.local", ".envrc.local"),
    "source": ("export A=1; source ./lib/env.sh", "lib/env.sh"),
    "a dot": ('[ -f lib/env.sh ] && . "lib/env.sh"', "lib/env.sh"),
    "by its whole path": ('source "$PWD/lib/env.sh"', "lib/env.sh"),
    "by expand_path": ('source "$(expand_path lib/env.sh)"', "lib/env.sh"),
    "dotenv": ("dotenv", ".env"),
    "dotenv with a name": ("dotenv_if_exists settings.env", "settings.env"),
    "source_up": ("source_up lib/env.sh", "lib/env.sh"),
    "a program": ("./tools/setup --quick", "tools/setup"),
    "a program whose output counts": ('eval "$(./tools/setup)"', "tools/setup"),
    "a program after another": ("if true; then bash tools/setup.sh; fi", "tools/setup.sh"),
    "what is sourced there": ("source_env there.sh", "tools/further.sh"),
    "what a loop sources": ('for f in conf/*.sh; do source "$f"; done', "conf/new.sh"),
    "on two lines": ("source_env \\\n  lib/env.sh", "lib/env.sh"),
    "a directory": ("source_env lib", "lib/.envrc"),
}


@pytest.mark.parametrize(("text", "path"), ENTERED.values(), ids=ENTERED)
@pytest.mark.parametrize("sub", ["", "vendor/lib"])
def test_what_an_envrc_sources_or_runs_is_protected(stage: Stage, text: str, path: str, sub: str) -> None:
    stage.write(os.path.join(sub, ".envrc"), f"# a comment with lib/other.sh\n{text}\nwatch_file src/main.c\n")
    stage.write(os.path.join(sub, "there.sh"), "PATH_add bin\n. ./tools/further.sh\n")

    def run(ran: Path) -> None:
        for name in (path, "src/main.c", "lib/other.sh", "bin/x"):
            (ran / sub / name).parent.mkdir(parents=True, exist_ok=True)
            (ran / sub / name).write_text("evil")

    about = {change.path: change.protected for change in stage.kept(run, "it").effect.changes}
    assert "when its directory is entered" in about[os.path.join(sub, path)]
    if path != "lib/.envrc":  # source_env of a directory protects all of it
        assert {about[os.path.join(sub, name)] for name in ("src/main.c", "lib/other.sh", "bin/x")} == {""}


def test_an_envrc_above_the_project_counts_too(stage: Stage) -> None:
    (stage.project.parent / ".envrc").write_text(f"source_env {stage.project.name}/env.sh\n")
    kept = stage.kept(lambda ran: (ran / "env.sh").write_text("x"), "it")
    assert "when its directory is entered" in kept.effect.changes[0].protected


@pytest.mark.parametrize(
    "text", ["source_env .envrc\n" * 20_000, '"' * 200_001, "$(" * 100_000, "source_env a\0b\n", "`" * 99_999]
)
def test_a_strange_envrc_holds_nobody_up(stage: Stage, text: str) -> None:
    stage.write(".envrc", text)
    began = time.process_time()
    kept = stage.kept(lambda ran: (ran / "file").write_text("x"), "it")
    assert [change.protected for change in kept.effect.changes] == [""]
    assert time.process_time() - began < 10


def test_a_repository_without_a_configuration_has_hooks_too(stage: Stage) -> None:
    stage.write("docs/hooks/post-checkout", "evil")  # harmless, when it came

    def run(ran: Path) -> None:
        (ran / "docs/objects").mkdir()
        (ran / "docs/refs/heads").mkdir(parents=True)
        (ran / "docs/HEAD").write_text("ref: refs/heads/main")

    stage.kept(run, "it")
    with pytest.raises(WorkspaceError, match="makes its directory a git repository"):
        stage.changes.apply("it")


def test_a_branch_is_checked_out_without_a_word_about_it(stage: Stage) -> None:
    for name in ("HEAD", "refs/heads/main", "objects/pack/.keep", "config"):
        stage.write(f".git/{name}", "old")

    def run(ran: Path) -> None:
        (ran / ".git/HEAD").write_text("ref: refs/heads/feature")
        (ran / ".git/refs/heads/feature").write_text("new")
        (ran / ".git/config").write_text("[core]\nfsmonitor = evil")

    about = {change.path: change.protected for change in stage.kept(run, "it").effect.changes}
    assert about[".git/config"], "its configuration is protected as ever"
    assert (about[".git/HEAD"], about[".git/refs/heads/feature"]) == ("", "")


def test_the_work_grows_with_the_paths_and_not_with_their_square() -> None:
    """Deep below directories called `hooks`, and below what looks like modules of git."""
    start = time.process_time()
    deep = "/".join(["hooks"] * 250)
    assert repositories([f"{deep}/{number}" for number in range(20_000)], lambda path: False) == {}
    modules = "/".join([".git/modules"] * 120)
    assert not any(protected(f"{modules}/{number}") for number in range(2_000))
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/etc",
        "/etc/nginx",
        "/usr",
        "/usr/lib/python3",
        "/bin",
        "/dev",
        "/proc/self",
        "/home",
        "/tmp",
        "/var",
        "/var/lib/x",
        "/root",
        "/run/user/1000/x",
        "/sys/x",
        "/workspace",
        "/workspace/x",
        *(f"/opt/{name}/x" for name in ("python", "venv", "redoma", "programs")),
    ],
)
def test_a_directory_of_the_system_is_no_project(path: str) -> None:
    with pytest.raises(WorkspaceError, match="can't be a project"):
        must_be_a_project(path)


@pytest.mark.parametrize("path", ["/opt/pythons", "/opt/app", "/dev/shm/x", "/workspaces/x", "/srv/run"])
def test_what_only_looks_like_one_is_a_project(path: str) -> None:
    must_be_a_project(path)


def test_nor_is_a_home_or_what_holds_it_or_our_own_state(tmp_path: Path) -> None:
    top = Path(os.path.realpath(tmp_path))
    home, state = top / "home", top / "home/project/.state/redoma"
    project = home / "project"
    for place in (state, home / ".ssh", project / ".git", home / "code/.claude/worktrees/one", home / "link"):
        place.mkdir(parents=True)
    must_be_a_project(str(project), home=home)
    must_be_a_project(str(home / "code/.claude/worktrees/one"), home=home)
    for path, why in (
        (home, "a home directory"),
        (top, "a home directory"),
        (project, "what Redoma itself remembers"),
        (state / "changes", "what Redoma itself remembers"),
        (home / ".ssh", "keys"),
        (project / ".git", "must stay a directory"),
        (home / "code/.claude", "an agent"),
    ):
        with pytest.raises(WorkspaceError, match=why):
            must_be_a_project(str(path), home=home, private=[state])
    (top / "elsewhere").symlink_to(project)
    with pytest.raises(WorkspaceError, match="without links"):
        must_be_a_project(str(top / "elsewhere"))
