"""Reading a script ends, soon and without an error, whatever the script is."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_sitter import Node

from redoma.models import Decision, Request
from redoma.policy import evaluate, load
from redoma.policy.executed import executed_by
from redoma.policy.facts import MAX_NAME, Command, Trait
from redoma.policy.shell import facts_of_argv, facts_of_script, reader
from redoma.policy.shell.interpreters import _remembered_language, interpreter

N = 10_000

HOSTILE = {
    "substitutions": "$(" * N + "ls" + ")" * N,
    "quoted substitutions": '"$(' * N + "ls" + ')"' * N,
    "unclosed substitutions": "$(" * N,
    "unclosed quotes": '"$(' * N,
    "subshells": "( " * N + "ls" + " )" * N,
    "groups": "{ " * N + "ls" + ";}" * N,
    "arithmetic": "((" * N,
    "defaults": "${x:-" * N + "}" * N,
    "backquotes": "`" * N,
    "loops": "for x in a b; do " * N + "ls" + "; done" * N,
    "conditions": "if " * N + "ls" + "; then :; fi" * N,
    "lists": " && ".join(["ls"] * N),
    "pipes": " | ".join(["ls"] * N),
    "braces": "echo " + "{a,b}" * N,
    "nested braces": "{a," * N + "}" * N,
    "here-documents": "cat <<A\n" * N,
    "here-documents on one line": "cat " + "<<A " * N + "\n",
    "wrappers": "sudo " * N + "ls",
    "evals": "eval " * N + "ls",
    "doubling": "x=ab\n" + "x=$x$x\n" * N + "$x",
    "functions": "\n".join(f"f{i}() {{ f{i - 1}; }}" for i in range(N)),
    "choices": "echo " + "${a:-b}" * N,
    "empty quotes": "''" * N,
    "find": "find " + "/a " * 1000 + "-exec ls {} ; " * 1000,
    "open pipes": "a|" * 50_000,
    "open arrays": "a=b a=(" * 5_000,
    "open loops": "for " * 30_000,
    "a megabyte": "echo hello\n" * 100_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_script_is_read_in_bounded_time(name: str) -> None:
    start = time.process_time()
    facts = facts_of_script(HOSTILE[name])
    # Two orders of magnitude above what these take alone on an idle machine would still be no hang.
    assert time.process_time() - start < 20
    assert len(facts) < 20_000


def test_a_hostile_argument_vector_is_read_in_bounded_time() -> None:
    for argv in (("sudo",) * N, ("bash", "-c") * N, ("x" * 2_000_000,), ("xargs",) * N):
        assert facts_of_argv(argv)


def test_what_is_not_read_is_said() -> None:
    for name in ("a megabyte", "lists", "substitutions"):
        found = {fact.name for fact in facts_of_script(HOSTILE[name]) if isinstance(fact, Trait)}
        assert found & {"source.too-large", "source.too-deep"}, name


_PIECES = (
    "rm -rf / $x ${x} ${x:-y} $(ls) `ls` ' \" \\ ; & && || | ( ) { } < > << <<EOF EOF <<< <( >( $(( )) [[ ]] # ! "
    "if then fi for in do done while case esac function f() x=y x+=(z) {a,b} {1..3} * ? ~ $' $\" \0 \udc80 é"
)
_SHELL = st.lists(st.sampled_from([*_PIECES.split(" "), "\n", " ", "\t", "\r", "\\\n"]), max_size=40).map("".join)


@settings(max_examples=300, deadline=None)
@given(_SHELL | st.text(max_size=60))
def test_no_script_makes_reading_fail_and_reading_is_deterministic(source: str) -> None:
    assert facts_of_script(source) == facts_of_script(source)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(["sudo", "env", "bash", "-c", "xargs", "find", "-exec", ";", "{}", "--"]) | _SHELL, max_size=8
    )
)
def test_no_argument_vector_makes_reading_fail(argv: list[str]) -> None:
    assert facts_of_argv(tuple(argv)) == facts_of_argv(tuple(argv))


def test_nothing_is_remembered_of_a_name_of_a_length_that_no_program_has() -> None:
    policy = load("standard")
    name, remembered = "x" * (MAX_NAME + 1), _remembered_language.cache_info().currsize
    evaluate(policy, Request(code=f"{name} a", language="bash"))
    assert _remembered_language.cache_info().currsize == remembered
    assert not any(key[0] == name for key in policy.matcher._about)
    assert interpreter("python3." + "1" * MAX_NAME) == "python"  # it is judged all the same


def test_the_parser_is_never_given_a_character_that_it_may_fault_on(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whether it does depends on where the process has its memory, so what it is given is looked at instead.
    given_to_it: list[bytes] = []

    def parse(data: bytes) -> Node:
        given_to_it.append(data)
        return real(data)

    real = reader.parse
    monkeypatch.setattr(reader, "parse", parse)
    found = facts_of_script("cat <<EOF\n$(ls)x{\U0010fffd\nEOF\nbash -c 'x{\U000bd3b8'; echo a{\U0001f600 é; rm x")
    assert len(given_to_it) > 2
    assert all(max(data.decode()) <= "\uffff" for data in given_to_it)
    assert [(fact.line, fact.column) for fact in found if isinstance(fact, Command) and fact.name == "rm"] == [(4, 28)]


def evals(count: int, levels: int) -> str:
    """A short script that runs a text which runs a text …, each of them many times."""
    texts = ["x0=ls", *(f"x{i}='" + f'eval "$x{i - 1}";' * count + "'" for i in range(1, levels + 1))]
    return "\n".join([*texts, f'eval "$x{levels}"'])


def many(unit: str, size: int = 120_000) -> str:
    return "".join(unit.replace("#", str(at)).replace("@", str(at + 1)) for at in range(size // (len(unit) + 3)))


COSTLY = {
    "texts that run texts": evals(190, 5),
    "aliases": many("alias a#=a@\n"),
    "aliases on one line": "alias " + many("a#=b ", 100_000),
    "variables of variables": "v0=x\n" + many("v@=$v#/x; cat $v@\n"),
    "branches with many variables": many("v#=1\n", 60_000) + many("while x; do ls $v#; done\n", 60_000),
    "exports": "export " + many("A#=b ", 100_000),
    "assignments before commands": many("env A#=1 ", 100_000) + "ls",
    "searches": "find . " + "-exec ls " * 10_000,
    "growing values": "v=x\n" + "v+=x; cat $v\n" * 8_000,
}


@pytest.mark.parametrize("name", COSTLY)
def test_what_is_too_costly_to_read_is_given_up_and_said(name: str) -> None:
    start = time.process_time()
    verdict = evaluate(load("standard"), Request(code=COSTLY[name], language="bash"))
    assert time.process_time() - start < 20  # a second or two alone on an idle machine; they took up to hours
    if name.startswith(("texts", "branches", "aliases")):
        assert verdict.decision is not Decision.ALLOW
        assert any(finding.rule.startswith("source.too-") for finding in verdict.findings)


PYTHON = {
    "aliases": "import os\na0 = os.system\n" + many("a@ = a#\n", 250_000),
    "names with two values": many("a@ = a#\na@ = b#\n", 200_000),
    "one name for all": many("a = b#\nb# = a\na()\n", 200_000),
    "names of functions": many("def f#():\n  open = 1\n  open()\n", 120_000),
}


@pytest.mark.parametrize("name", PYTHON)
def test_python_that_is_all_names_is_read_in_bounded_time(name: str) -> None:
    start = time.process_time()
    evaluate(load("standard"), Request(code=PYTHON[name]))
    assert time.process_time() - start < 20


@pytest.mark.parametrize("links", [10, 70, 1000])
def test_however_long_a_chain_of_aliases_is_its_beginning_is_known(links: int) -> None:
    chain = "".join(f"a{i + 1} = a{i}\n" for i in range(links))
    code = f"import os\na0 = os.system\n{chain}a{links}('rm -rf /')\n"
    assert evaluate(load("standard"), Request(code=code)).decision is Decision.FORBID


@pytest.mark.parametrize(
    "code",
    [
        "n=" + "$a1" * 12_000 + "!; echo $((n))",
        "n=" + "$((1))" * 2_000 + "x; echo $((n))",
        "a0=$(cat f); " + "".join(f"a{i + 1}=$a{i};" for i in range(4_000)) + "echo $((a3999))",
        "echo " + "${a:" * 2_000 + "1" + "}" * 2_000,
        "n=$(cat f); [[ " + "a" * 50_000 + " -gt $n ]]",
    ],
    ids=["references", "sums", "chain", "nested", "operand"],
)
def test_arithmetic_that_is_made_to_take_long_is_soon_known_to_be_on_data(code: str) -> None:
    started = time.process_time()
    assert executed_by(code, "bash").unbound
    assert time.process_time() - started < 10


WITH_ARGUMENTS = {
    "an unknown directory": 'cd "$1"\n' + "rm x\n" * 4000,
    "unknown words": "rm " + "$x " * 4000,
    "all arguments again and again": "echo " + '"$@" ' * 4000,
}


@pytest.mark.parametrize("name", WITH_ARGUMENTS)
def test_a_script_with_many_arguments_is_read_in_bounded_time(name: str) -> None:
    start = time.process_time()
    facts = facts_of_script(WITH_ARGUMENTS[name], args=[f"a{number}" for number in range(2000)])
    assert time.process_time() - start < 10
    assert len(facts) < 50_000
    assert "source.too-deep" in {fact.name for fact in facts if isinstance(fact, Trait)}


def test_many_calls_that_depend_on_no_argument_are_read() -> None:
    facts = facts_of_script("".join(f"set -- a{number}\nf a{number}\n" for number in range(300)))
    assert not any(isinstance(fact, Trait) and fact.name == "source.too-deep" for fact in facts)
    calls = "".join(f"f a{number}\n" for number in range(300))
    assert facts_of_script(f'f() {{ rm "$1"; }}\n{calls}', args=["x"])
