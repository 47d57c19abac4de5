"""try, changes, checkpoints: the real program on a real project, also at a terminal."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

Redoma = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).parents[3]
SHOP = {
    "src/shop.py": "price = 40\n\n\ndef total(n):\n    return n * price\n",
    "data/orders.csv": "orders\n1\n2\n",
    "Makefile": "clean:\n\trm -rf build data\n\tsed -i s/40/0/ src/shop.py\n",
}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    for name, text in SHOP.items():
        (tmp_path / "shop" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "shop" / name).write_text(text)
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path / "shop", check=True)
    return tmp_path / "shop"


def every_byte(place: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(place)): (path.lstat().st_mode, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }


def at_a_terminal(place: Path, *command: str, answers: list[str], early: str = "") -> str:
    """What is on the screen in the end. Each answer is typed when a question is asked; `early` is typed at once."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place)
        os.environ |= {"TERM": "dumb", "PAGER": "cat", "LINES": "60", "COLUMNS": "200"}
        program = str(Path(sys.executable).with_name("redoma"))
        os.execv(program, [program, *command])  # noqa: S606 - as a person at that terminal would
    os.write(terminal, early.encode())
    seen = ""
    while select.select([terminal], [], [], 60)[0]:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        seen += piece.decode()
        if answers and re.search(r"(\[keep\]|\[y/N\]): \Z", seen):
            os.write(terminal, f"{answers.pop(0)}\n".encode())
            seen += "\0"  # so that the same question is not taken for another
    os.close(terminal)
    os.waitpid(pid, 0)
    return seen.replace("\0", "").replace("\r", "")


def test_what_was_typed_before_the_question_answers_nothing(shop: Path) -> None:
    """Whoever pasted `apply`, or meant it for another program, has not seen the changes."""
    before = every_byte(shop)
    seen = at_a_terminal(shop, "try", "sh", "-c", "sleep 1; rm Makefile", answers=["discard"], early="apply\n")
    assert "Applied" not in seen
    assert every_byte(shop) == before


def test_the_picture_in_the_readme_is_what_happens(shop: Path) -> None:
    before = every_byte(shop)
    drawn = ElementTree.parse(ROOT / "docs" / "images" / "try.svg")  # noqa: S314 - our own
    lines = ["".join(text.itertext()) for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    recorded = [line.replace("\N{NO-BREAK SPACE}", " ").rstrip() for line in lines]
    assert recorded.pop(0) == "$ redoma try make clean"
    recorded = recorded[: next(at for at, line in enumerate(recorded) if line.startswith("$"))]
    seen = at_a_terminal(shop, "try", "make", "clean", answers=["discard"])
    assert [line.rstrip() for line in seen.splitlines() if line.strip()] == [line for line in recorded if line.strip()]
    assert every_byte(shop) == before


@pytest.mark.parametrize("answer", ["a", "ap", "APPLY"])
def test_the_beginning_of_an_answer_will_do(shop: Path, answer: str) -> None:
    seen = at_a_terminal(shop, "try", "make", "clean", answers=["s", "diff", "x", answer])
    assert "[a]pply, [c]hoose files, [s]how diff, [d]iscard or [k]eep for later? [keep]: " in seen
    assert seen.count("-price = 40\n+price = 0\n") == 3
    assert "is not one of" in seen
    undo = re.search(r"Applied 3 changes\. To take it back: redoma (changes undo \w+)\n", seen)
    assert undo is not None
    assert not (shop / "data").exists()
    at_a_terminal(shop, *undo[1].split(), answers=[])
    assert (shop / "data" / "orders.csv").exists()


def test_every_letter_of_the_question_answers_it(shop: Path) -> None:
    before = every_byte(shop)
    assert "Discarded. Your project is as it was." in at_a_terminal(shop, "try", "make", "clean", answers=["d"])
    assert "Kept as " in at_a_terminal(shop, "try", "make", "clean", answers=["k"])
    assert "Applied 0" not in at_a_terminal(shop, "try", "make", "clean", answers=["c", "n", "n", "n", "d"])
    assert every_byte(shop) == before


@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["Ctrl-C", "Ctrl-D"])
def test_leaving_the_question_keeps_the_changes_and_says_where(shop: Path, redoma_command: Redoma, key: str) -> None:
    seen = at_a_terminal(shop, "try", "make", "clean", answers=[key])
    kept = re.search(r"\nKept as (\w+)\. Next: redoma changes show", seen)
    assert kept is not None, seen
    assert "interrupted" not in seen
    assert (shop / "data").exists()
    assert redoma_command("changes", "apply", kept[1], cwd=shop).returncode == 0
    assert not (shop / "data").exists()


def test_chosen_files_are_applied_and_the_others_are_not(shop: Path) -> None:
    answers = ["choose", "n", "n", "y"]
    seen = at_a_terminal(shop, "try", "--", "make", "clean", answers=answers)
    assert "Applied 1 change." in seen
    assert (shop / "src/shop.py").read_text().startswith("price = 0")
    assert (shop / "data/orders.csv").exists()


def test_what_was_declined_below_a_chosen_directory_is_not_applied(shop: Path) -> None:
    script = "rm -r data; mkdir new; echo 1 > new/declined"
    seen = at_a_terminal(shop, "try", "--", "sh", "-c", script, answers=["choose", "y", "n", "y", "n"])
    assert "Applied 1 change." in seen
    assert (shop / "data/orders.csv").exists()
    assert os.listdir(shop / "new") == []


def test_kept_changes_are_listed_shown_applied_and_undone(shop: Path, redoma_command: Redoma) -> None:
    before = every_byte(shop)
    tried = redoma_command("try", "--json", "--", "make", "clean", cwd=shop)
    result = json.loads(tried.stdout)
    assert (tried.returncode, result["status"]) == (0, "ok")
    assert [change["path"] for change in result["effect"]["changes"]] == ["data", "data/orders.csv", "src/shop.py"]
    short = result["id"][:12]
    assert short in redoma_command("changes", "list").stdout
    assert "-price = 40" in redoma_command("changes", "show", short).stdout
    assert every_byte(shop) == before
    assert redoma_command("changes", "apply", short).returncode == 0
    assert not (shop / "data").exists()
    assert redoma_command("changes", "apply", short).returncode == 125
    assert redoma_command("changes", "undo", short).returncode == 0
    assert every_byte(shop) == before
    told = redoma_command("changes", "undo", short)
    assert (told.returncode, "Traceback" in told.stderr) == (125, False)


def test_apply_if_ok_applies_what_ended_well_and_keeps_what_did_not(shop: Path, redoma_command: Redoma) -> None:
    done = redoma_command("try", "--apply-if-ok", "--", "sh", "-c", "echo 1 > made", cwd=shop)
    assert (done.returncode, (shop / "made").read_text()) == (0, "1\n")
    failed = redoma_command("try", "--apply-if-ok", "--", "sh", "-c", "echo 1 > half; exit 3", cwd=shop)
    assert (failed.returncode, (shop / "half").exists()) == (3, False)
    assert "Kept as" in failed.stderr


def test_what_is_protected_is_shown_and_not_applied_unless_it_is_named(shop: Path, redoma_command: Redoma) -> None:
    (shop / "Makefile").write_text("all:\n\techo evil > .git/hooks/post-checkout\n\tdate +%N > fine\n")
    told = redoma_command("try", "--apply-if-ok", "--", "make", cwd=shop)
    assert "protected" in told.stderr
    assert (shop / "fine").exists()
    assert not (shop / ".git/hooks/post-checkout").exists()
    redoma_command("try", "--apply-if-ok", "--allow", ".git/hooks/*", "--", "make", cwd=shop)
    assert (shop / ".git/hooks/post-checkout").exists()


def test_what_needs_a_person_is_kept_and_not_applied_by_itself(shop: Path, redoma_command: Redoma) -> None:
    told = redoma_command("try", "--apply-if-ok", "--", "sh", "-c", "sudo true; echo fine > fine", cwd=shop)
    assert told.returncode == 126
    assert "not applied: the changes were not applied: a person has to approve" in told.stderr
    assert "Kept as" in told.stderr
    assert not (shop / "fine").exists()


def test_from_below_the_whole_project_is_tried(shop: Path, redoma_command: Redoma) -> None:
    told = redoma_command("try", "--keep", "--", "sh", "-c", "pwd; cat ../Makefile; touch here", cwd=shop / "src")
    assert told.stdout.startswith(f"{shop}/src\nclean:")
    assert "here" in told.stderr


def test_a_failed_run_in_the_project_itself_is_rolled_back(shop: Path, redoma_command: Redoma) -> None:
    before = every_byte(shop)
    script = "echo x >> Makefile; rm data/orders.csv; rmdir data; mkdir empty; exit 3"
    told = redoma_command("exec", "--backend", "native", "--workspace", "direct", "--", "sh", "-c", script, cwd=shop)
    assert (told.returncode, "rolled back" in told.stderr) == (3, True)
    assert every_byte(shop) == before
    assert not (shop / "empty").exists()
    kept = redoma_command("exec", "--backend", "native", "--workspace", "direct", "--", "touch", "new", cwd=shop)
    assert (kept.returncode, (shop / "new").exists()) == (0, True)
    assert redoma_command("checkpoints", "list").stdout == ""
    assert redoma_command("checkpoints", "restore", cwd=shop).returncode == 2
