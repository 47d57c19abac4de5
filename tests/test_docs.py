"""The documents say what is true: their links lead somewhere, their examples work, and each promise has its test."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import redoma
from redoma import AsyncExecutor, Config, Executor, Limits, Status
from redoma.backends.jail import JailBackend
from redoma.backends.jail.compiled import step_names
from redoma.backends.jail.configuration import LAYERS
from redoma.backends.jail.kernels import BY_KERNEL
from redoma.config import AuditConfig, NativeEntry, check
from redoma.config import load as load_config
from redoma.monitor.file import load
from redoma.pipeline import sync

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_heading_finds_it(document: Path) -> None:
    for file, heading in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", document.read_text()):
        text = (document.parent / file if file else document).read_text()
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        assert heading in [re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings]


def test_every_page_is_on_the_site() -> None:
    shown = set(re.findall(r"([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")}
    decisions = {page for page in pages if page.startswith("decisions/0")}  # the list of decisions leads to these
    assert pages - decisions == shown - {"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}


def test_the_api_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    shown = set(re.findall(r"^::: redoma\.(\w+)$", page, re.MULTILINE))
    errors = {name for name in redoma.__all__ if _is_error(getattr(redoma, name))}  # these have a page of their own
    modules = {"approval", "metrics", "scripts"}  # each has a guide
    assert shown == {*redoma.__all__, "map"} - errors - modules


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert (built.returncode, built.stderr) == (0, "")
    loads = re.compile(r"<(?:script|img|link)[^>]*?(?:src|href)=[\"']?https?://")
    assert [page for page in tmp_path.rglob("*.html") if loads.search(page.read_text())] == []


def test_the_example_of_a_configuration_is_a_valid_one(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "redoma.yaml").write_text(example)
    assert check(tmp_path / "redoma.yaml") == []


def test_the_examples_of_a_monitor_are_valid_ones(tmp_path: Path) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "monitor.md").read_text(), re.DOTALL)
    shell = NativeEntry(name="shell", command_whitelist=("mailq",))
    config = Config(audit=AuditConfig(directory=tmp_path), entries={"ops:shell": shell})
    names = []
    for number, example in enumerate(examples):
        file = tmp_path / f"{number}.yaml"
        file.write_text(example)
        names.append({check.name for check in load(file, config).checks})
    assert names[0] > {"root_disk", "web", "errors", "memory"}
    assert names[1] > {"fine", "loops"}


def test_the_table_of_kernels_is_the_one_that_doctor_goes_by() -> None:
    section = (ROOT / "docs" / "kernels.md").read_text().split("\n## ")[1]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    heads, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert heads == ["since Linux", "what", "for whom", "without it"]
    assert rows == [[each.version, each.what, each.whom, each.without] for each in BY_KERNEL]


# --- the README ---


def test_the_commands_of_the_readme_print_what_it_says(
    redoma_command: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """Every `$` line, in one directory, one after the other. An ellipsis stands for anything."""
    text = (ROOT / "README.md").read_text()
    first = re.findall(r"^    scripts/redoma (.+)\n", text, re.MULTILINE)
    assert redoma_command(*shlex.split(first[0])).stdout == "hello from the sandbox\n42\n"
    typed = re.findall(r"^    \$ (.+)\n((?:    (?!\$ ).+\n)*)", text, re.MULTILINE)
    assert len(typed) >= 12
    place = tmp_path / "here"
    place.mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    state = str(tmp_path / "state")
    for line, output in typed:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=place,
            env={**os.environ, "PATH": path, "XDG_STATE_HOME": state},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        expected = re.escape(re.sub(r"^    ", "", output, flags=re.MULTILINE)).replace("…", "(?s:.*)")
        assert re.fullmatch(expected, done.stdout), (line, done.stdout)


def test_the_readme_needs_nothing_that_a_fresh_debian_lacks() -> None:
    text = (ROOT / "README.md").read_text()
    assert not re.findall(r"numpy|\bbc\b|pip install", text)
    assert len(text.splitlines()) <= 150


def test_the_python_of_the_readme_gives_what_it_says(monkeypatch: pytest.MonkeyPatch, config: Config) -> None:
    assert _python_of("README.md", monkeypatch, config) >= 4


def test_the_python_of_the_page_on_the_library_gives_what_it_says(
    monkeypatch: pytest.MonkeyPatch, config: Config, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _python_of("docs/library.md", monkeypatch, config) >= 8


def test_the_python_of_the_page_on_sessions_gives_what_it_says(monkeypatch: pytest.MonkeyPatch, config: Config) -> None:
    assert _python_of("docs/sessions.md", monkeypatch, config) >= 4


def test_the_python_of_the_page_on_the_core_gives_what_it_says(monkeypatch: pytest.MonkeyPatch, config: Config) -> None:
    assert _python_of("docs/core.md", monkeypatch, config) >= 12


def test_the_example_of_the_log_of_the_core_is_a_valid_one(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "core.md").read_text(), re.DOTALL)
    (tmp_path / "redoma.yaml").write_text(example)
    assert load_config(tmp_path / "redoma.yaml").log.core == tmp_path / "logs" / "core.log"


# --- coming from other systems ---


@pytest.mark.usefixtures("engine")
def test_the_examples_for_people_from_other_systems_run_as_printed(
    monkeypatch: pytest.MonkeyPatch, redoma_command: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """In a directory with the files that they name, with the page's own `redoma.yaml` as the user's. What is shown of
    other tools is marked `py` or `text`, and is not run."""
    text = (ROOT / "docs" / "coming-from.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    own = Path.home() / ".config" / "redoma" / "redoma.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(example)
    Path("data.csv").write_text("1\n2\n3\n")
    Path("sum.py").write_text("print(sum(map(int, open('data.csv'))))\n")
    for line, output in _shown(text):
        done = redoma_command(*shlex.split(line))
        assert (done.stdout, done.returncode) == (output, 0), line
    assert len(_shown(text)) >= 4
    assert _python_of("docs/coming-from.md", monkeypatch, load_config()) >= 25


def _shown(text: str) -> list[tuple[str, str]]:
    """Every `$ redoma …` line with its output."""
    found = re.findall(r"^    \$ redoma (.+)\n((?:    (?!\$).+\n)+)", text, re.MULTILINE)
    return [(line, re.sub(r"^    ", "", output, flags=re.MULTILINE)) for line, output in found]


def _python_of(document: str, monkeypatch: pytest.MonkeyPatch, config: Config) -> int:
    """Every block as one program. A line `expression   # value` is compared where the value is one that can be read.
    How many were."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    # What they say takes milliseconds, but not on a machine that is busy with other tests.
    blocks = [re.sub(r'(timeout=|"time": )5\b', r"\g<1>50", block) for block in blocks]
    known: dict[str, Any] = {}
    with Executor(config) as shared:  # what `redoma.run` uses: its cells are not to outlive the test
        monkeypatch.setattr(sync, "_default", (os.getpid(), shared))
        return sum(_compare(block, known) for block in blocks)


def _compare(block: str, known: dict[str, Any]) -> int:
    """Run it statement by statement; how many of them said what they give."""
    lines, compared = block.splitlines(), 0
    for statement in ast.parse(block).body:
        last = lines[(statement.end_lineno or 1) - 1]
        said = last[statement.end_col_offset or 0 :].strip().removeprefix("#").strip()
        if isinstance(statement, ast.Expr) and (expected := _read(said, known)) is not None:
            found = eval(compile(ast.Expression(statement.value), "README.md", "eval"), known)  # noqa: S307 - ours
            assert found == expected[0], ast.unparse(statement)
            compared += 1
        else:
            exec(compile(ast.Module([statement], []), "README.md", "exec"), known)  # noqa: S102 - ours
    return compared


def _read(said: str, known: dict[str, Any]) -> tuple[Any] | None:
    """A value as a comment shows it. Prose is none, nor is what ends in an ellipsis."""
    try:
        return (eval(said, known),)  # noqa: S307 - ours
    except (SyntaxError, NameError):
        return None


# --- the threat model ---


class Promise(NamedTuple):
    text: str
    layers: frozenset[str]
    tests: list[str]


def promises(document: str = "threat-model.md") -> Iterator[Promise]:
    """Every row of a table whose columns are promise, layer and test."""
    inside = False
    for line in (ROOT / "docs" / document).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("|") else []
        if cells == ["promise", "layer", "test"] or not cells:
            inside = bool(cells)
        elif inside and not line.startswith("|---"):
            text, layers, tests = cells
            assert re.fullmatch(r"`[^`]+`(; `[^`]+`)*", tests), f"not a list of tests: {tests}"
            yield Promise(text, frozenset(re.findall(r"`(.+?)`", layers)), re.findall(r"`(.+?)`", tests))


def attacks() -> dict[str, Any]:
    found: dict[str, Any] = importlib.import_module("jail_suite").ATTACKS
    return found


@pytest.fixture(autouse=True)
def _attacks_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests" / "attacks")


@pytest.mark.parametrize("document", ["threat-model.md", "containers.md", "service.md"])
def test_every_promise_names_tests_that_exist(document: str) -> None:
    containers = importlib.import_module("container_suite").applicable("runc")
    known = {"threat-model.md": attacks(), "containers.md": containers}.get(document, {})
    missing, seen = [], 0
    for seen, promise in enumerate(promises(document), 1):  # noqa: B007 - how many there were
        for test in promise.tests:
            file, function, name = test.partition("::")
            if not function:
                missing += [] if test in known else [test]
            elif not re.search(rf"^(async )?def {re.escape(name)}\(", (ROOT / file).read_text(), re.MULTILINE):
                missing.append(test)
    assert missing == []
    assert seen > 5


def test_every_promise_names_what_its_attacks_succeed_without() -> None:
    """An attack is seen to succeed with layers left out or limits raised: these are what stops it in the jail."""
    known, unnamed = attacks(), []
    for promise in promises():
        for test in promise.tests:
            if test in known:
                control = known[test].control
                layers = {SEEN_TO_BE_MISSING.get(step, step) for step in control.without} | set(control.limits)
                unnamed += [(test, layer) for layer in layers - promise.layers]
    assert unnamed == []


def test_every_layer_has_a_promise_and_no_promise_names_another() -> None:
    named = frozenset[str]().union(*(promise.layers for promise in promises()))
    assert set(LAYERS) - named == set()
    beside = {"collect", "protocol", "hosts"}  # the last is the proxy of a run that names hosts
    assert named - {*LAYERS, *step_names(), *Limits.__struct_fields__, *beside} == set()


SEEN_TO_BE_MISSING = {
    **{name: name for name in ("user", "net", "ipc", "uts", "cgroup", "capabilities", "seccomp", "landlock")},
    **{"proc": "proc", "names": "names", "descriptors": "descriptors", "memory-of-init": "init"},
    **{"user-namespaces": "user-namespaces", "locks": "locks"},
}
"""Steps of making a cell that can be left out, and the layer that is then found to be missing."""
NO_CELL_WITHOUT = ("private", "no_new_privs", "session")
NO_LAYER = ("terminals", "loopback", "lifeline")
"""Conveniences of a cell, and its end when the zygote dies: no layer is missing without them."""


def test_every_step_is_a_layer_a_need_or_a_convenience() -> None:
    assert sorted(step_names()) == sorted([*SEEN_TO_BE_MISSING, *NO_CELL_WITHOUT, *NO_LAYER])


@pytest.mark.parametrize("step", NO_CELL_WITHOUT)
async def test_no_cell_can_be_made_without(step: str, config: Config) -> None:
    async with AsyncExecutor(config, backends=[JailBackend(minimum=1, without=[step])]) as executor:
        result = await executor.run("6 * 7", backend="jail")
    assert (result.status, result.value) == (Status.FAILED, None)


@pytest.mark.parametrize("step", SEEN_TO_BE_MISSING)
async def test_a_layer_that_is_not_found_fails_the_run_unless_it_was_done_without(step: str, config: Config) -> None:
    layer = SEEN_TO_BE_MISSING[step]
    if layer in JailBackend().capabilities().isolation.missing:
        pytest.skip(f"no cell has {layer} on this kernel, so it is not asked for")
    async with AsyncExecutor(config, backends=[JailBackend(minimum=1, without=[step])]) as executor:
        strict = await executor.run("6 * 7", backend="jail")
        named = await executor.run("6 * 7", backend="jail", require=[layer])
        # Without its own /proc a cell's init takes the host's processes for the cell's.
        limits = Limits(cpu=1e9, memory=1 << 50, processes=1 << 20)
        lax = await executor.run("6 * 7", backend="jail", require=["filesystem"], limits=limits, policy="none")
    assert (strict.status, strict.value, named.status) == (Status.FAILED, None, Status.FAILED)
    assert f"the isolation layer {layer!r} is not available here" in (strict.error or "")
    assert (lax.status, lax.value) == (Status.OK, 42)
    assert layer in lax.isolation.missing
