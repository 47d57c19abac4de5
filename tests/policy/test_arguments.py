"""What a script or a program is given is a part of what it does: its arguments, and its variables."""

from __future__ import annotations

import time
from typing import Any

import pytest

from redoma.models import Decision, Language, Request
from redoma.models.reach import EFFECT, HOST, NOTHING
from redoma.policy import evaluate, load
from redoma.policy.executed import executes

ALLOW, PROMPT, FORBID = Decision.ALLOW, Decision.PROMPT, Decision.FORBID
STANDARD = load("standard")


def decide(code: str, *args: str, language: Language = "bash", reach: Any = HOST, **more: Any) -> Decision:
    return evaluate(STANDARD, Request(code=code, argv=args, language=language, **more), reach=reach).decision


def rules(code: str, *args: str, language: Language = "bash", **more: Any) -> set[str]:
    found = evaluate(STANDARD, Request(code=code, argv=args, language=language, **more), reach=HOST).findings
    return {finding.rule for finding in found}


# --- arguments of Bash ---

SCRIPTS = [
    ('rm "$@"', "-rf /srv/x/victim"),
    ('rm "${@}"', "-rf /srv/x/victim"),
    ("rm $*", "-rf /srv/x/victim"),
    ("rm $1 $2", "-rf build"),
    ("rm ${1} ${2}", "-rf build"),
    ('rm "-$1" build', "rf"),
    ('rm "${@:2}"', "x -rf build"),
    ('rm "${@:1:2}"', "-rf build"),
    ("rm ${1#x} ${2%y}", "-rf build"),
    ('a=("$@"); rm "${a[@]}"', "-rf build"),
    ('a=("$@"); rm "${a[0]}" "${a[1]}"', "-rf build"),
    ("x=$1 y=$2; rm $x $y", "-rf build"),
    ('echo x > "$1"', "/srv/x"),
    ('echo x >> "$1/etc"', "/srv"),
    ('> "$1"', "/srv/x"),
    ('{ echo x; } > "$1"', "/srv/x"),
    ('tee "$1" < a', "/srv/x"),
    ('find "$@"', ". -delete"),
    ('tar "$@"', "-xf a.tar --to-command=./x"),
    ('sed "$@"', "1e f"),
    ('git "$@"', "reset --hard"),
    ('git "$1" "$2"', "reset --hard"),
    ('env "$@"', "rm -rf build"),
    ('for x; do rm -r "$x"; done', "build"),
    ('for x in "$@"; do echo > "$x"; done', "a b c d e f g h i /srv/x"),
    ('while [ $# -gt 0 ]; do echo > "$1"; shift; done', "a b /srv/x"),
    ('shift; rm "$@"', "x -rf build"),
    ('f() { rm "$@"; }; f "$@"', "-rf build"),
    ('f() { local t="$1"; echo > "$t"; }; f "$@"', "/srv/x"),
    ('main() { clean "$@"; }\nclean() { shift; rm "$@"; }\nmain "$@"', "x -rf build"),
    ("eval 'rm \"$@\"'", "-rf build"),
    ("trap 'rm \"$@\"' EXIT", "-rf build"),
    ('bash -c \'rm "$@"\' x "$@"', "-rf build"),
    ('while getopts o: x; do echo > "$OPTARG"; done', "-o /srv/x"),
    ('"$@"', "rm -rf build"),
    ('cat "$1" > /dev/null', "/root/.ssh/id_rsa"),
    ('cat < "$1"', "/root/.ssh/id_rsa"),
    ('while [ $# -gt 0 ]; do case "$1" in -o) out="$2"; shift 2;; esac; done; echo > "$out"', "-o /srv/x"),
    ('if [ -n "$1" ]; then out=$1; fi; echo > "$out"', "/srv/x"),
    ('[ -n "$1" ] && out=$1; echo > "$out"', "/srv/x"),
    ('read x <<< "$1"; echo > "$x"', "/srv/x"),
    ('printf -v x %s "$1"; echo > "$x"', "/srv/x"),
    ('x=$(realpath "$1"); echo > "$x"', "/srv/x"),
    ('f() { out=$1; }; f "$@"; echo > "$out"', "/srv/x"),
    ('cd "$1"; echo > x', "/srv"),
    ('python3 -c \'import sys; open(sys.argv[1], "w")\' "$@"', "/srv/x"),
]


@pytest.mark.parametrize(("code", "args"), SCRIPTS)
def test_the_arguments_of_a_script_are_read(code: str, args: str) -> None:
    assert decide(code, *args.split()) > ALLOW
    assert decide(code, *args.split(), reach=EFFECT) > ALLOW


@pytest.mark.parametrize(("code", "args"), SCRIPTS)
def test_they_are_weighed_by_reach_like_the_rest(code: str, args: str) -> None:
    assert decide(code, *args.split(), reach=NOTHING) is ALLOW


@pytest.mark.parametrize(
    ("code", "args"),
    [
        ('rm "$1"', "a.txt"),
        ('rm "$@"', "a.txt b.txt"),
        ('echo "$1"; rm "$2"', "-rf a.txt"),
        ('cp "$1" "$2"', "/srv/data.csv out.csv"),
        ('grep "$1" *.py | sort > "$2"', "-rf out.txt"),
        ('while [ $# -gt 0 ]; do wc -l "$1"; shift; done', "a /srv/b"),
        ('log() { echo "$@"; }; log rm -rf /; cat "$1"', "notes.txt"),
        ('walk() { for i in "$1"/*; do walk "$i"; done; }; walk "$1"', "src"),
        ('set -euo pipefail; ls "$1"', "src"),
    ],
)
def test_harmless_arguments_pass(code: str, args: str) -> None:
    assert decide(code, *args.split()) is ALLOW


def test_what_is_blocked_as_a_literal_is_blocked_as_an_argument() -> None:
    assert decide("rm $1 $2", "-rf", "/", reach=NOTHING) is FORBID
    assert decide('rm -rf "$2"; ls "$1"', "/", "build") is PROMPT  # each where it belongs


@pytest.mark.parametrize(
    "code",
    [
        'f() { rm "$@"; }; f -rf build',
        "f() { rm $1 $2; }; f -rf build",
        'f() { echo x > "$1"; }; f /srv/x',
        'g() { f -rf "$1"; }; f() { rm "$@"; }; g build',
        'set -- -rf build; rm "$@"',
        "bash -c 'set -- -rf build; rm \"$@\"' x a b",
        "bash -c 'shift; \"$@\"' x ls rm -rf build",
        "bash -c 'trap shift DEBUG; shift; \"$@\"' x ls rm -rf build",
        "f() { eval 'rm \"$@\"'; }; f -rf build",
        "bash -s -- -rf build <<'E'\nrm \"$@\"\nE",
        "python3 -c 'import sys; open(sys.argv[1], \"w\")' /srv/x",
        "python3 - /srv/x <<'E'\nimport sys\nopen(sys.argv[1], 'w')\nE",
    ],
)
def test_so_are_those_of_functions_and_of_set(code: str) -> None:
    assert decide(code) > ALLOW


def test_an_argument_makes_no_unknown_command_a_known_one() -> None:
    assert "shell.dynamic-command" in rules('"$@"', "ls")
    assert "remove.unknown" in rules('rm -rf "$1"', "build")


def test_functions_that_call_each_other_without_end_are_read_in_bounds() -> None:
    code = 'f() { g x "$@"; g y "$@"; }\ng() { f x "$@"; f y "$@"; rm "$@"; }\nf a'
    assert decide(code) is not None
    many = "\n".join(f'f{n}() {{ f{n + 1} "$@"; }}' for n in range(30)) + '\nf30() { rm "$@"; }\nf0 "$@"'
    assert decide(many, "-rf", "build") > ALLOW


def test_many_commands_with_many_arguments_are_read_in_bounds() -> None:
    code = "\n".join(f'x{n}=$(f); wc "$x{n}" "$1"' for n in range(300))
    begin = time.process_time()
    decide(code, *(f"a{n}" for n in range(300)))
    assert time.process_time() - begin < 20


# --- variables of the request ---


@pytest.mark.parametrize(
    "code", ["rm $X", 'eval "rm $X"', "f() { rm $X; }; f", "bash -c 'rm $X'", 'y="$X"; rm $y', "rm ${X}"]
)
def test_the_variables_of_a_request_are_read(code: str) -> None:
    assert decide(code, env={"X": "-rf build"}) > ALLOW
    if "eval" not in code:
        assert decide(code, env={"X": "a.txt"}) is ALLOW


def test_a_script_may_set_them_anew() -> None:
    assert decide("X=a.txt; rm $X", env={"X": "-rf build"}) is ALLOW
    assert decide("X=a.txt; bash -c 'rm $X'", env={"X": "-rf build"}) is ALLOW


def test_they_are_read_in_a_command_too() -> None:
    request = Request(argv=("bash", "-c", "rm $X"), language="command", env={"X": "-rf build"})
    assert evaluate(STANDARD, request, reach=HOST).decision > ALLOW


# --- Python ---


@pytest.mark.parametrize(
    ("code", "args"),
    [
        ("import sys, shutil\nshutil.rmtree(sys.argv[1])", "build"),
        ("import sys\nopen(sys.argv[1], 'w')", "/srv/x"),
        ("from sys import argv\nopen(argv[1], 'w')", "/srv/x"),
        ("import sys\nfor path in sys.argv[1:]:\n    open(path, 'w')", "a /srv/x"),
        ("import sys\n_, a, b = sys.argv\nopen(b, 'w')", "a /srv/x"),
        ("import sys\ndef main(args):\n    open(args[0], 'w')\nmain(sys.argv[1:])", "/srv/x"),
        ("import sys\nopen(f'{sys.argv[1]}/x', 'w')", "/srv"),
        ("import sys\nopen('out/' + sys.argv[1], 'w')", "../../x"),
        ("import sys, pathlib\n(pathlib.Path('out') / sys.argv[1]).write_text('')", "/srv/x"),
        ("import argparse\na = argparse.ArgumentParser().parse_args()\nopen(a.out, 'w')", "/srv/x"),
        ("import sys, shutil\nshutil.copy('a', sys.argv[1])", "/srv/x"),
        ("import sys, os\nos.symlink(sys.argv[1], 'x')\nopen('x', 'w')", "/srv/x"),
        ("import sys, os\nos.chmod(sys.argv[1], 0o644)", "/srv/x"),
        ("import sys, subprocess\nsubprocess.run(sys.argv[1:])", "ls"),
        ("import sys, subprocess\nsubprocess.run(['rm', *sys.argv[1:]])", "-rf build"),
        ("import sys, subprocess\nsubprocess.run(['rm', sys.argv[1], sys.argv[2]])", "-rf build"),
        ("import sys, subprocess\nsubprocess.run(['rm'] + sys.argv[1:])", "-rf build"),
        ("import sys, subprocess\nsubprocess.run(['git', sys.argv[1], sys.argv[2]])", "reset --hard"),
        ("import sys, runpy\nrunpy.run_path(sys.argv[1])", "x.py"),
        ("import sys, pandas as pd\npd.read_csv(sys.argv[1])", "https://example.org/a.csv"),
    ],
)
def test_the_arguments_of_a_program_are_read(code: str, args: str) -> None:
    assert decide(code, *args.split(), language="python") > ALLOW


@pytest.mark.parametrize(
    ("code", "args"),
    [
        ("import sys\nopen(sys.argv[1], 'w')", "out.txt"),
        ("import sys\nprint(open(sys.argv[1]).read())", "/srv/x"),
        ("import sys\nopen('out.txt', 'w').write(sys.argv[1])", "/srv/x"),
        ("import sys, subprocess\nsubprocess.run(['grep', sys.argv[1], 'a.txt'])", "-rf"),
        ("print(1)", "-rf /"),
    ],
)
def test_harmless_arguments_of_a_program_pass(code: str, args: str) -> None:
    assert decide(code, *args.split(), language="python") is ALLOW


def test_so_are_the_variables_that_a_program_names() -> None:
    code = "import os\nopen(os.environ['OUT'], 'w')"
    assert decide(code, language="python", env={"OUT": "/srv/x"}) > ALLOW
    assert decide(code, language="python", env={"OUT": "out.txt", "OTHER": "/srv/x"}) is ALLOW
    for code in ("subprocess.run('rm $X', shell=True)", "subprocess.run(['bash', '-c', 'rm $X'])"):
        assert "remove.recursive" in rules(f"import subprocess\n{code}", language="python", env={"X": "-rf build"})


# --- files that are run ---


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ('bash "$1"', "bash"),
        ('source "$1"', "bash"),
        ('. "$1"', "bash"),
        ('f() { bash "$1"; }; f "$@"', "bash"),
        ("$1", "bash"),
        ("import sys, runpy\nrunpy.run_path(sys.argv[1])", "python"),
        ("import sys, subprocess\nsubprocess.run(['bash', sys.argv[1]])", "python"),
    ],
)
def test_a_file_that_an_argument_names_keeps_it_from_being_pinned(code: str, language: Language) -> None:
    assert executes(Request(code=code, argv=("./x.sh",), language=language)).unbound


@pytest.mark.parametrize("code", ["bash $X", "source ./$X", "./$X"])
def test_a_file_that_a_variable_names_is_bound(code: str) -> None:
    found = executes(Request(code=code, env={"X": "x.sh"}, language="bash"))
    assert any(file.path.endswith("x.sh") for file in found.files)
