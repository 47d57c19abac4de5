"""Changes outside the paths that were declared are told; those inside are not."""

from __future__ import annotations

import pytest

from redoma.models import Change, Version
from redoma.workspace.effects import unexpected

FILE = Version(kind="file", mode=0o644, size=1, sha256="00")
DIRECTORY = Version(kind="directory", mode=0o755)


def added(path: str, version: Version = FILE) -> Change:
    return Change(path=path, after=version)


@pytest.mark.parametrize(
    ("path", "declared", "expected"),
    [
        ("build/a.o", ["build/**"], True),
        ("build/x/y/a.o", ["build/**"], True),
        ("src/a.c", ["build/**"], False),
        ("builder/a.o", ["build/**"], False),
        ("x/build/a.o", ["build/**"], False),
        ("x/build/a.o", ["**/build/**"], True),
        ("a.log", ["*.log"], True),
        ("x/a.log", ["*.log"], False),
        ("x/a.log", ["**/*.log"], True),
        (".env", ["*"], True),
        ("a", [], False),
        ("a", ["./a"], False),
        ("a", ["/a"], False),
        ("caf\udce9", ["caf?"], True),
        ("a", ["b", "a"], True),
    ],
)
def test_a_change_is_expected_where_it_was_declared(path: str, declared: list[str], expected: bool) -> None:
    for change in (added(path), Change(path=path, before=FILE), Change(path=path, before=FILE, after=DIRECTORY)):
        assert (unexpected([change], declared) == ()) is expected


def test_what_was_moved_is_declared_at_both_ends() -> None:
    moved = Change(path="build/a", old_path="src/a", before=FILE, after=FILE)
    assert unexpected([moved], ["build/**"]) == (moved,)
    assert unexpected([moved], ["src/**"]) == (moved,)
    assert unexpected([moved], ["build/**", "src/*"]) == ()


def test_a_new_directory_may_lead_to_what_was_declared_and_only_a_new_one() -> None:
    assert unexpected([added("out", DIRECTORY), added("out/x", DIRECTORY)], ["out/x/*.csv"]) == ()
    assert unexpected([added("other", DIRECTORY)], ["out/x/*.csv"]) == (added("other", DIRECTORY),)
    assert unexpected([added("out/x/y", DIRECTORY)], ["out/x/*.csv"]) == (added("out/x/y", DIRECTORY),)
    gone = Change(path="out", before=DIRECTORY)
    assert unexpected([gone], ["out/x/*.csv"]) == (gone,)
    assert unexpected([gone], ["out/**"]) == ()
    mode = Change(path="out", before=DIRECTORY, after=Version(kind="directory", mode=0o777))
    assert unexpected([mode], ["out/x/*.csv"]) == (mode,)
    a_file = added("out")
    assert unexpected([a_file], ["out/x/*.csv"]) == (a_file,)


def test_the_order_stays() -> None:
    changes = [added("c"), added("build/x"), added("a"), added("b")]
    assert [change.path for change in unexpected(changes, ["build/**"])] == ["c", "a", "b"]
