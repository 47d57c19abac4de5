"""The documents say what is true: their links lead somewhere, and their examples work."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from redoma.config import check

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_the_example_of_a_configuration_is_a_valid_one(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "redoma.yaml").write_text(example)
    assert check(tmp_path / "redoma.yaml") == []


def test_the_commands_of_the_readme_print_what_it_says(
    redoma_command: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """Every `$ redoma …` line that is followed by output, except where it ends in an ellipsis."""
    text = (ROOT / "README.md").read_text()
    shown = re.findall(r"^    \$ redoma (.+)\n((?:    (?!\$).+\n)+)", text, re.MULTILINE)
    first = re.findall(r"^    scripts/redoma (.+)\n", text, re.MULTILINE)
    assert len(shown) >= 2
    for line, output in shown:
        expected = re.sub(r"^    ", "", output, flags=re.MULTILINE)
        if "…" not in expected:
            assert redoma_command(*shlex.split(line)).stdout == expected
    assert redoma_command(*shlex.split(first[0])).stdout == "hello from the sandbox\n42\n"
