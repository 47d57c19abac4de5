"""Paths that a run must not change unnoticed: files that make other programs run things, or that grant rights.

Such a change is shown like any other, but applied only if it is named. Paths are compared as the most lenient program
would compare them, at any depth in the project. A path that doesn't exist yet is protected, too.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, Literal

from ..lib.errors import WorkspaceError
from ..lib.patterns import lazy_pattern

# Each pattern matches the path and everything below it. `*` matches any part of one name, `**` any number of names.
RULES: dict[str, str] = {
    "git runs it, or what it says": """
        .git/hooks .git/config .git/config.worktree .git/rebase-merge .git/rebase-apply .git/sequencer
        .git/modules/**/hooks .git/modules/**/config .husky .gitconfig .git/modules/**/config.worktree .config/git
        .githooks
    """,
    "Mercurial runs what it says": ".hg/hgrc .hg/hgrc-not-shared .hg/sharedpath .hgrc .config/hg .sl/config",
    "Jujutsu runs what it says": ".jj/repo/config.toml .jj/workspace-config.toml .jjconfig.toml .config/jj",
    "Subversion runs it": ".svn/hooks .subversion",
    "it leads git to another repository": """
        .git/commondir .git/gitdir .git/worktrees .git/objects/info/alternates .git/info/grafts
        .git/modules/**/commondir .gitmodules
    """,
    "it changes what git shows or runs": ".git/info/attributes .git/info/exclude .git/info/sparse-checkout",
    "a hook manager runs what it says": """
        .pre-commit-config.yaml .pre-commit-config.yml .pre-commit-hooks.yaml lefthook.* .lefthook.* .lefthook
        lefthook-local.* prek.toml .overcommit.yml hk.pkl hk.local.pkl .hk.pkl .config/hk.pkl
    """,
    "a shell runs it at its start": """
        .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .kshrc .zshrc .zshenv .zprofile .zlogin
        .zlogout .mkshrc .cshrc .tcshrc .login .logout .inputrc .config/fish .xprofile .xinitrc .xsession .xsessionrc
        .pam_environment
    """,
    "it runs when its directory is entered": """
        .envrc .direnvrc .config/direnv .autoenv* devbox.json .flox .mise*.toml mise*.toml .mise mise/config.toml
        .config/mise*
    """,
    "a program runs it at its start": """
        .vimrc .exrc .nvimrc .nvim.lua .lvimrc .dir-locals.el .dir-locals-2.el .emacs .emacs.d .gdbinit .lldbinit
        .tmux.conf .screenrc
        .pythonrc .irbrc .Rprofile .vim .nvim .config/nvim .vimrc.local .gvimrc .ideavimrc .kakrc .config/kak .pdbrc
        .pdbrc.py .ipython .pryrc .Renviron .ghci .ocamlinit .iex.exs .erlang .octaverc .psqlrc .sqliterc .guile
        .radare2rc .perldb .xonshrc .config/xonsh
    """,
    "CI runs what it says": """
        .github/workflows .github/actions .gitlab-ci.yml .gitlab-ci.yaml .gitlab .circleci Jenkinsfile Jenkinsfile.*
        azure-pipelines*.yml azure-pipelines*.yaml .azure-pipelines .azuredevops .travis.yml appveyor.yml .appveyor.yml
        bitbucket-pipelines.yml .drone.yml .drone.jsonnet .woodpecker.yml .woodpecker.yaml .woodpecker .buildkite
        .teamcity .semaphore .tekton cloudbuild.yaml cloudbuild.yml buildspec.yml .cirrus.yml .cirrus.star .build.yml
        .builds .forgejo .gitea/workflows .github/dependabot.yml .github/dependabot.yaml .zuul.d .zuul.yaml zuul.d
        zuul.yaml bitrise.yml bitrise.yaml codemagic.yaml .prow.yaml screwdriver.yaml wercker.yml .codefresh
        codefresh.yml .harness buddy.yml .scrutinizer.yml .onedev-buildspec.yml .tangled/workflows .packit.yaml
        buildspec.yaml .drone.yaml .cirrus.yaml .semaphoreci .vela.yml .vela.yaml .gitea/actions concourse.yml
    """,
    "it says who must review what": "CODEOWNERS",
    "it tells an agent what to do": """
        .claude .claude.json CLAUDE.md CLAUDE.local.md AGENTS.md AGENT.md GEMINI.md AGENTS.override.md .gemini .codex
        .cursor .cursorrules .cursorignore .windsurf .windsurfrules .clinerules .roo .roomodes .aider* .continue
        .mcp.json mcp.json .kiro .amp .goosehints .config/goose .opencode opencode.json opencode.jsonc .junie .trae
        .augment .github/copilot-instructions.md .github/instructions .github/prompts .github/agents .github/chatmodes
        .github/skills .github/hooks .agents .rules WARP.md .warp QWEN.md .qwen CRUSH.md .crush crush.json .crush.json
        GROK.md
        .kilocode .kilocodemodes .iflow IFLOW.md .openhands .openhands_instructions .factory .rovodev .cline .copilot
        .devin .tabnine .jules JULES.md .codeium .amazonq .augment-guidelines .opencode.json
    """,
    "an editor runs what it says": """
        .vscode .idea .zed .fleet *.code-workspace .devcontainer .devcontainer.json .gitpod.yml .replit .helix
        .config/helix .config/zed *.sublime-project .nova .theia .lapce
    """,
    "it is Redoma's own configuration": "redoma.yaml redoma.yml .redoma monitor.yaml",
    "it holds keys, or says whose keys count": """
        .ssh .gnupg .netrc .git-credentials .pypirc .npmrc .yarnrc .yarnrc.yml .docker/config.json .kube .aws
        .config/gcloud
    """,
    "a tool runs what it says": """
        .cargo/config .cargo/config.toml .pnpmfile.cjs .pnpmfile.mjs pnpmfile.js .yarn/plugins .yarn/releases
        bunfig.toml .bundle/config .mvn/extensions.xml .mvn/jvm.config
    """,
    "it is run on a schedule, or at login": """
        crontab .crontab cron.d cron.hourly cron.daily cron.weekly cron.monthly .config/systemd .config/autostart
        Library/LaunchAgents
    """,
}
"""Reason → patterns."""

_SYSTEM = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys", "/usr"),
    *("/var/lib", "/var/spool"),
)
"""Nothing at or below these is a project, except below `_EXCEPT`."""
_EXCEPT = ("/dev/shm", "/usr/src", "/usr/local/src")  # noqa: S108 - named, not written to
"""Exceptions to `_SYSTEM`."""
_SHARED = (
    *("/", "/home", "/media", "/mnt", "/opt", "/root", "/srv"),
    *("/tmp", "/var", "/var/cache", "/var/log", "/var/run", "/var/tmp"),  # noqa: S108 - as above
)
"""These hold projects, but are not projects themselves."""
_CELLS = ("/.project", "/.empty", "/.parts", "/workspace", "/opt/python", "/opt/venv", "/opt/redoma", "/opt/programs")
"""Paths that a cell uses for itself. A project has the same path in a cell as on the host, so it can't be here."""
_WORKTREES = lazy_pattern(r"/\.(?:claude|cursor)/worktrees/[^/]+")
"""Where agents keep working copies: not configuration, despite the name."""


def pattern(glob: str) -> str:
    """Return a glob as a regular expression."""
    text = re.escape(glob)
    for mark, means in (
        (r"\*\*/", "(?:.*/)?"),
        (r"/\*\*", "(?:/.*)?"),
        (r"\*\*", ".*"),
        (r"\*", "[^/]*"),
        (r"\?", "[^/]"),
    ):
        text = text.replace(mark, means)
    return text


def _leading(globs: Iterable[str]) -> set[str]:
    """Return the directories that lead to a protected path."""
    return {
        "/".join(parts[:length])
        for parts in (glob.split("/") for glob in globs)
        for length in range(1, len(parts))
        if "**" not in parts[:length]
    }


_GLOBS = [(why, glob.casefold()) for why, globs in RULES.items() for glob in globs.split()]
_REASONS = list(RULES)
_GROUPS = [
    f"(?P<r{number}>{'|'.join(pattern(glob) for reason, glob in _GLOBS if reason == why)})"
    for number, why in enumerate(_REASONS)
]


@cache
def _patterns() -> tuple[Any, Any]:
    """Return compiled patterns: for protected paths, and for directories that lead to one. Uses RE2, which is linear in
    the length of a path; `re` is quadratic on one that repeats `.git/modules`.
    """
    import re2

    options = re2.Options()
    options.encoding, options.dot_nl, options.log_errors = re2.Options.Encoding.LATIN1, True, False
    way = "|".join(map(re.escape, sorted(_leading(glob for _, glob in _GLOBS))))
    forms = (f"(?:.*/)?(?:{'|'.join(_GROUPS)})(?:/.*)?", f"(?:.*/)?(?:{way})")
    protected, on_the_way = (re2.compile(form.encode(), options) for form in forms)
    return protected, on_the_way


def _normalised(path: str) -> str:
    """Return a path as seen by file systems and programs that ignore case, invisible characters and trailing dots."""
    if not path.isascii():
        path = "".join(c for c in unicodedata.normalize("NFKC", path) if unicodedata.category(c) != "Cf")
    return "/".join(name.rstrip(" .") or name for name in path.casefold().split("/"))


def protected(path: str, kind: Literal["file", "directory"] = "file") -> str:
    """Return why this path is protected, so that a change of it is applied only if it is named; empty if it isn't.

    A file or a link is also protected if it has the name of a directory on the way to a protected path.
    """
    name = _normalised(path).encode("utf-8", "surrogatepass")
    is_protected, is_on_the_way = _patterns()
    if match := is_protected.fullmatch(name):
        return next(_REASONS[int(group[1:])] for group, text in match.groupdict().items() if text is not None)
    if kind != "directory" and is_on_the_way.fullmatch(name):
        return "other programs look in it for what they run, so it must stay a directory"
    return ""


def named(path: str, globs: Iterable[str]) -> bool:
    """Return whether the user has named this path, literally or by a pattern such as `.github/**`."""
    return any(re.fullmatch(pattern(glob), path, re.DOTALL) for glob in globs)


_CORE = ("HEAD", "objects", "refs")
_PARTS = (*_CORE, "commondir", "config", "config.worktree", "hooks")


def repositories(paths: Iterable[str], exists: Callable[[str], bool]) -> dict[str, str]:
    """Return the changed paths that make their directory a repository, or configure one, each with the reason.
    `exists` says whether a path exists after the changes.

    git treats any directory with certain entries as a repository, whatever its name. It runs the hooks and the
    configured commands as soon as a user (or a shell prompt) runs git inside. Changes of HEAD, objects and refs in a
    `.git` are left out: every commit makes some.
    """
    known: dict[str, bool] = {}
    hooked = {"": False}

    def is_repository(directory: str) -> bool:
        if directory not in known:
            top = f"{directory}/" if directory else ""
            heart = exists(f"{top}objects") and exists(f"{top}refs")
            known[directory] = exists(f"{top}HEAD") and (heart or exists(f"{top}commondir"))
        return known[directory]

    def is_hooked(directory: str) -> bool:
        """Return whether it is, or is in, the directory `hooks` of a repository. Each directory is looked at once."""
        todo = []
        while directory not in hooked:
            todo.append(directory)
            directory = directory.rpartition("/")[0]
        answer = hooked[directory]
        for place in reversed(todo):
            above, _, name = place.rpartition("/")
            answer = hooked[place] = answer or (name == "hooks" and is_repository(above))
        return answer

    reasons = {}
    for path in paths:
        directory, _, name = path.rpartition("/")
        if name in _CORE and f"/{directory}".endswith("/.git"):
            continue
        if (name in _PARTS and is_repository(directory)) or is_hooked(directory):
            reasons[path] = "it makes its directory a git repository, whose configuration and hooks git runs"
    return reasons


def must_be_a_project(path: str, *, home: Path | None = None, private: Iterable[Path] = ()) -> None:
    """Raise `WorkspaceError` for a directory that can't be a project: a system directory, a home, or one that contains
    a `private` directory (our own state). `path` is absolute and without links.
    """
    why = _why_no_project(path, home, [os.path.realpath(place) for place in private])
    if why:
        raise WorkspaceError(
            f"{path} can't be a project",
            why=why,
            next="name the directory of one project, below your home for instance",
        )


def _why_no_project(path: str, home: Path | None, private: list[str]) -> str:
    def holds(above: str, below: str) -> bool:
        return below == above or below.startswith(above.rstrip("/") + "/")

    if not os.path.isabs(path) or os.path.realpath(path) != path:
        return "it is not an absolute path without links"
    if any(holds(place, path) for place in _SYSTEM) and not any(holds(b, path) and b != path for b in _EXCEPT):
        return "it belongs to the system"
    if any(holds(place, path) for place in _CELLS):
        return "cells have something of their own under that name"
    if path in _SHARED:
        return "it holds much more than a project"
    if home is not None and holds(path, os.path.realpath(home)):
        return "it is, or holds, a home directory: everything of its owner"
    if any(holds(path, place) or holds(place, path) for place in private):
        return "it holds what Redoma itself remembers, or lies in it"
    if why := protected(_WORKTREES.sub("", path).strip("/")):
        return f"{why}, as a whole"
    return ""
