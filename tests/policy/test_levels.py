"""Levels: which of L1 to L4 a request is, and that nothing gets a lower one by disguise."""

from __future__ import annotations

import shlex

import pytest
from corpus_evasions import EVASIONS
from corpus_programs import PYTHON

from redoma.models import Decision, Level, Limits, Request
from redoma.models.reach import HOST, NOTHING
from redoma.policy import Leveled, evaluate, level_of, load

STANDARD, NONE = load("standard"), load("none")


def of_bash(code: str, pack: str = "standard") -> Leveled:
    request = Request(code=code, language="bash")
    return level_of(request, evaluate(load(pack), request))


def of_command(line: str, **more: object) -> Leveled:
    request = Request(argv=tuple(shlex.split(line)), language="command", **more)  # type: ignore[arg-type]
    return level_of(request, evaluate(STANDARD, request, reach=NOTHING))


LOOKING = [
    "ls -la",
    "/bin/ls -l",
    "cat README.md",
    "grep -rn 'def main' src --include='*.py'",
    "head -n 5 a.txt",
    "wc -l a.txt",
    "find . -type f -name '*.py' -newer a",
    "sort -n a.txt",
    "stat a.txt",
    "du -sh .",
    "sed -n '10,25p' a.txt",
    "sed 's/a/b/g;2d' a.txt",
    "date +%F",
    "date -d yesterday +%F",
    "env ls",
    "env LANG=C ls",
    "timeout 5 grep x a.txt",
    "timeout -k 1 5 cat a.txt",
    "nice -n 5 ls",
    "command -v git",
    "echo 'rm -rf /'",
]


@pytest.mark.parametrize("line", LOOKING)
def test_a_command_that_only_looks_is_l1_as_words_and_as_a_script(line: str) -> None:
    assert of_command(line).level is Level.L1
    assert of_bash(line).level is Level.L1


@pytest.mark.parametrize(
    "script",
    [
        "ls | grep x | sort -u | head",
        "cd src && ls",
        'for f in *.txt; do wc -l "$f"; done',
        "if [ -f a ]; then cat a; fi",
        "cat a 2>/dev/null || echo none >&2",
        'x=$(pwd); echo "$x"',
        "diff <(sort a) <(sort b)",
        'show() { cat "$1"; }\nls',
        "",
    ],
)
def test_a_script_that_only_looks_is_l1(script: str) -> None:
    assert of_bash(script).level is Level.L1


NOT_LOOKING = [
    # other programs under a harmless name
    "./ls",
    "bin/ls",
    "/tmp/cat a",
    "~/ls",
    "../../usr/bin/../../tmp/ls",
    # an option makes it write, or run something
    "find . -delete",
    "find . -exec cat {} +",
    "find . -fprint out",
    "find . -name x -okdir cat {} +",
    "sort -o out in",
    "sort -uo out in",
    "sort --outp=out in",
    "sort --compress-program=./x in",
    "tree -o out",
    "file -C -m magic",
    "date -s 2020-01-01",
    "date 01010101",
    "shuf --outpu out a",
    "sed -i s/a/b/ a",
    "sed -ni.bak p a",
    "sed --in-place=.bak p a",
    "sed -n 'w out' a",
    "sed 's/a/b/w out' a",
    "sed '1e id' a",
    "sed 's/x/id/e' a",
    "sed -f script a",
    "sed -e p -f script a",
    "sed 'p\nw out' a",
    "uniq a out",
    # programs that run others
    "xargs cat",
    "awk '{print}' a",
    "bash -c ls",
    "sh script.sh",
    "python3 -c 'print(1)'",
    "env -S 'rm a'",
    "env --split='rm a'",
    "env --split-string 'rm a'",
    "timeout 5 ./ls",
    "nice ./ls",
    "time -o out ls",
    "stdbuf -oL ./ls",
    "rg --pre ./x y",
    "mapfile -C ./x a",
    "jobs -x rm a",
    "diff3 --diff-program=./x a b c",
    "ldd ./x",
    "xxd -ps a out",
    "make",
    "tar -xf a.tar",
    "split --filter=id a",
    "unknown-program",
    "\u217cs",  # a Roman numeral
    # tools that write
    "tee out",
    "touch a",
    "cp a b",
    "git status",
]


@pytest.mark.parametrize("line", NOT_LOOKING)
def test_what_does_more_than_look_is_not_l1(line: str) -> None:
    assert of_command(line).level is not Level.L1
    assert of_bash(line).level in (Level.L3, Level.L4)


@pytest.mark.parametrize(
    "script",
    [
        "ls > out",
        "ls >> out",
        "> out",
        "cat a | tee out",
        "sort *",  # a file may be called `-oout`
        'sort "$x"',
        "find . $more",
        "find *",
        "sed p $f",
        "sed p *",
        "$cmd",
        "eval ls",
        "source a",
        ". ./a",
        "exec ls",
        "alias ls=rm; ls",
        "hash -p ./x ls; ls",
        "enable -f ./x.so ls",
        "trap 'rm a' EXIT",
        "f() { rm a; }; ls",
        "ls $(rm a)",
        "echo $((a[$(rm a)]))",
        "cat <<X\n$(rm a)\nX",
        "PATH=.:$PATH ls",
        "LD_PRELOAD=./x.so ls",
        "coproc rm a",
        "if true; then ls",
        "ls &>out",
        "cat < a > out",
        "cp ls x; ./x",
        "command -p rm a",
        "builtin eval rm a",
    ],
)
def test_a_script_that_does_more_than_look_is_not_l1_under_any_pack(script: str) -> None:
    assert of_bash(script).level in (Level.L3, Level.L4)
    assert of_bash(script, "none").level is Level.L3


@pytest.mark.parametrize(
    "line",
    ["mkdir -p a/b", "touch a", "cp a b", "mv a b", "rm -rf build", "ln -s a b", "chmod +x run.sh", "tee out",
     "sed -i s/a/b/ a", "uniq a out", "dd if=a of=b", "gzip a", "git status", "git commit -m x", "git --no-pager log",
     "cp a /tmp/b", "git diff"],
)  # fmt: skip
def test_a_known_tool_that_writes_in_its_workspace_is_l2(line: str) -> None:
    assert of_command(line).level is Level.L2


@pytest.mark.parametrize(
    "line",
    ["cp a ../b", "cp a /home/ana/b", "touch ~/a", "cp --target-d=/srv a", "mv a /srv/b", "git -C /srv status",
     "git -c a.b=c log", "git --exec-path=. status", "git rebase -x id", "git diff --outp=/srv/x", "tee /srv/x"],
)  # fmt: skip
def test_a_tool_that_writes_elsewhere_or_is_told_to_do_more_is_not_l2(line: str) -> None:
    assert of_command(line).level in (Level.L3, Level.L4)


def test_the_workspace_is_the_directory_that_a_request_works_in_or_its_project() -> None:
    assert of_command("touch /srv/app/a").level is Level.L3
    assert of_command("touch /srv/app/a", cwd="/srv/app").level is Level.L2
    assert of_command("touch /srv/app/a", workspace="overlay", project="/srv/app").level is Level.L2
    assert of_command("touch /srv/apple", cwd="/srv/app").level is Level.L3
    assert of_command("touch /srv/app/../a", cwd="/srv/app").level is Level.L3


@pytest.mark.parametrize("name", PYTHON)
def test_python_is_never_below_l3(name: str) -> None:
    request = Request(code=PYTHON[name])
    assert level_of(request, evaluate(STANDARD, request, reach=NOTHING)).level is Level.L3
    assert level_of(request, evaluate(NONE, request)).level is Level.L3


def test_lua_is_l3() -> None:
    request = Request(code="print(1)", language="lua")
    assert level_of(request, evaluate(STANDARD, request)).level is Level.L3


@pytest.mark.parametrize("name", EVASIONS)
def test_an_evasion_is_l4_and_even_without_policy_never_below_l3(name: str) -> None:
    assert of_bash(EVASIONS[name]).level is Level.L4
    assert of_bash(EVASIONS[name], "none").level is Level.L3


@pytest.mark.parametrize("line", ["sudo ls", "pip install x", "curl https://x.org", "rm -rf /", "touch /etc/a"])
def test_what_a_person_has_to_be_asked_about_is_l4_and_names_the_rule(line: str) -> None:
    request = Request(argv=tuple(shlex.split(line)), language="command")
    leveled = level_of(request, evaluate(STANDARD, request, reach=HOST))
    assert leveled.level is Level.L4
    assert "[" in leveled.why[0]


def test_a_rule_that_is_decided_to_allow_makes_nothing_l4() -> None:
    request = Request(argv=("curl", "https://x.org"), language="command")
    lax = load("standard", decisions={"network.download": Decision.ALLOW})
    assert level_of(request, evaluate(lax, request)).level is Level.L3


def test_a_variable_that_makes_programs_load_something_is_not_l1() -> None:
    request = Request(argv=("ls",), language="command", env={"LD_PRELOAD": "./x.so"})
    assert level_of(request, evaluate(NONE, request)).level is Level.L3


def test_input_that_a_program_takes_for_code_is_not_l1() -> None:
    request = Request(argv=("bash",), language="command", stdin=b"rm a")
    assert level_of(request, evaluate(NONE, request)).level is Level.L3


def test_more_than_a_minute_is_l4() -> None:
    request = Request(argv=("ls",), language="command", limits=Limits(time=61))
    assert level_of(request, evaluate(STANDARD, request)).level is Level.L4


def test_every_level_says_why_in_a_few_sentences() -> None:
    for line in (*LOOKING, *NOT_LOOKING, "sudo ls; curl x; pip install x; rm -rf /; su; nc a 1; ssh b"):
        assert 1 <= len(of_bash(line).why) <= 5


def test_a_reader_that_fails_makes_nothing_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    from redoma.policy import shell

    def fail(argv: object) -> None:
        raise RecursionError

    request = Request(argv=("ls",), language="command")
    evaluation = evaluate(NONE, request)
    monkeypatch.setattr(shell, "facts_of_argv", fail)
    assert level_of(request, evaluation).level is Level.L3


@pytest.mark.parametrize(
    "line",
    [
        "zstdcat -o b a.zst",
        "zstdcat --rm a.zst",
        "zstdcat --output-dir-flat d a.zst",
        "file -z a",
        "file -Zb a",
        "file -m magic a",
        "file --comp a",
        "getconf -v ../../../x/evil PATH",
        "tree -P -- -o b a",
        "file -F -- -C a",
    ],
)
def test_what_looks_by_habit_is_not_l1_with_an_option_that_does_more(line: str) -> None:
    assert of_command(line).level is not Level.L1
    assert of_bash(line).level is not Level.L1


@pytest.mark.parametrize(
    "line", ["zstdcat a.zst", "file -b a", "getconf PAGE_SIZE", "sort -- -o", "sort --key=1 -- -o"]
)
def test_and_is_l1_without(line: str) -> None:
    assert of_command(line).level is Level.L1


@pytest.mark.parametrize(
    "script",
    [
        "declare -n r=$1; r=/x/evilbin; ls",
        "f() { local -gn r=x; ls; }",
        "typeset -n r; r=x; ls",
        "declare -i n; n=$x; ls",
        'export "$x"; ls',
        "f() { builtin local PATH; ls; }",
    ],
)
def test_a_script_that_may_set_any_variable_is_not_l1(script: str) -> None:
    assert of_bash(script).level >= Level.L3
