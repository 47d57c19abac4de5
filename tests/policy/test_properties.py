"""What holds of every verdict, whatever the request."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redoma.models import Decision, Evaluation, Language, Request
from redoma.policy import PACKS, Policy, Rule, evaluate, load
from redoma.policy.evaluate import MAX_FINDINGS, UNREADABLE

QUICK = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])

WORDS = r"""
    rm -rf / ~ * $x ${x:-rm} $( ) ` ' " $' \ ; && || | & > >> <<EOF EOF <<< <( { } {a,b} (( )) [[ ]] if then fi do done
    case in esac eval sudo curl bash -c xargs find -exec {} \; env x=1 # while function f() python3 trap alias git push
    import os . system ( exec getattr , = lambda : def class A f'{ }' @ __import__ [ ] 'os' 'rm-rf/' subprocess run
    shell=True from return await async for not -1 == os.system("rm") import_module é
"""
BLANKS = ("\n", " ", "\t", "\r", "\0", "\udcff", "\u202e", "\ufeff", "\nEOF\n", "# coding: utf-7\n", "import os\n")
# Pieces that mean something to one of the readers: random characters alone hardly ever get past the first word.
PIECES = st.sampled_from([*WORDS.split(), *BLANKS])
SOURCES = st.one_of(
    st.lists(PIECES, max_size=25).map("".join),
    st.lists(PIECES, max_size=25).map(" ".join),
    st.text(st.characters(codec=None, exclude_categories=()), max_size=60),
    st.binary(max_size=60).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
)
LANGUAGES: st.SearchStrategy[Language] = st.sampled_from(["python", "bash"])
ARGV = st.lists(
    st.one_of(PIECES, st.text(max_size=10)).map(lambda word: word.replace("\0", "")), min_size=1, max_size=8
)


def judge(policy: Policy, code: str, language: Language) -> Evaluation:
    return evaluate(policy, Request(code=code, language=language))


@QUICK
@given(SOURCES, LANGUAGES, st.sampled_from(PACKS))
def test_evaluation_never_crashes_and_is_deterministic(code: str, language: Language, pack: str) -> None:
    policy = load(pack)
    verdict = judge(policy, code, language)
    assert verdict == judge(Policy(name=pack, rules=policy.rules), code, language)
    assert all(finding.rule != UNREADABLE for finding in verdict.findings), verdict
    assert len(verdict.findings) <= MAX_FINDINGS


@QUICK
@given(ARGV, st.sampled_from(PACKS))
def test_an_argument_vector_never_crashes_the_evaluation(argv: list[str], pack: str) -> None:
    if not argv[0]:
        argv[0] = "ls"
    verdict = evaluate(load(pack), Request(argv=tuple(argv), language="command"))
    assert all(finding.rule != UNREADABLE for finding in verdict.findings), verdict


@QUICK
@given(SOURCES, LANGUAGES)
def test_a_place_is_inside_the_source_and_its_text_is_short_and_printable(code: str, language: Language) -> None:
    lines = code.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for finding in judge(load("core"), code, language).findings:
        assert 0 <= finding.line <= len(lines)
        assert finding.column >= 0
        assert len(finding.text) <= 80
        assert finding.text.isprintable()


RULES = st.builds(
    Rule,
    id=st.uuids().map(str),
    decision=st.sampled_from(Decision),
    reason=st.just("because"),
    command=st.lists(st.sampled_from(["rm", "*", "git push", "e*"]), max_size=2).map(tuple),
    args=st.lists(st.sampled_from(["/", "*", "$", ""]), max_size=2).map(tuple),
    calls=st.lists(st.sampled_from(["os.*", "*", "eval"]), max_size=2).map(tuple),
    traits=st.lists(st.sampled_from(["shell.operator", "python.syntax-error"]), max_size=2).map(tuple),
    longer_than=st.integers(0, 20),
)


@QUICK
@given(SOURCES, LANGUAGES, st.lists(RULES, max_size=3, unique_by=lambda rule: rule.id), RULES)
def test_adding_a_rule_never_weakens_a_verdict(code: str, language: Language, some: list[Rule], more: Rule) -> None:
    before = judge(Policy(name="p", rules=tuple(some)), code, language)
    after = judge(Policy(name="p", rules=(*some, more)), code, language)
    assert after.decision >= before.decision


@QUICK
@given(SOURCES, LANGUAGES)
def test_a_stronger_pack_never_gives_a_weaker_verdict(code: str, language: Language) -> None:
    decisions = [judge(load(pack), code, language).decision for pack in PACKS]
    assert decisions == sorted(decisions)


@QUICK
@given(st.text(st.sampled_from("abc xyz rm sudo -rf / eval curl"), max_size=60))
def test_what_is_only_quoted_or_commented_is_never_a_finding(text: str) -> None:
    for code, language in ((f"echo '{text}'", "bash"), (f"# {text}", "bash"), (f"print({text!r})", "python")):
        verdict = evaluate(load("standard"), Request(code=code, language=language))
        assert verdict.findings == ()


N = 50_000
HOSTILE_BASH = {
    "substitutions": "$(" * N,
    "closed_substitutions": "$(" * 5_000 + ")" * 5_000,
    "parentheses": "(" * N,
    "braces": "{a," * 3_000 + "}" * 3_000,
    "open_quotes": "'" * (N + 1),
    "open_lists": "a&&" * N,
    "commands": "rm -rf x\n" * 20_000,
    "words": "echo " + "a " * N,
    "one_word": "a" * 200_000,
    "here_documents": "cat <<A\n" * 5_000,
    "arrays": "a=(" * 5_000,
    "conditions": "if true; then " * 10_000,
    "cases": "case x in " * 5_000,
    "functions": "f(){ " * 5_000,
    "parameters": "${a:-" * 5_000 + "}" * 5_000,
    "doubling": "a0=rm\n" + "".join(f"a{i + 1}=$a{i}$a{i}\n" for i in range(60)) + "$a60",
    "globs": "rm -rf /" + "*a" * N,
    "climbing": "rm -rf " + "/a/.." * 40_000,
    "redirections": "> a " * 10_000,
    "a_megabyte": "echo x\n" * 150_000,
    "open_pipes": "a|" * N,
}

# In a process of its own: a parser that overflows its stack or eats the memory would take the tests with it.
JUDGE_ALL = """
import json, resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from redoma.models import Request
from redoma.policy import evaluate, load
for name, code in json.load(sys.stdin).items():
    started = time.process_time()
    verdict = evaluate(load("core"), Request(code=code, language="bash"))
    seconds = time.process_time() - started
    print(json.dumps([name, str(verdict.decision), seconds, [f.rule for f in verdict.findings]]), flush=True)
"""


@pytest.fixture(scope="module")
def hostile_verdicts() -> dict[str, tuple[str, float, list[str]]]:
    done = subprocess.run(
        [sys.executable, "-c", JUDGE_ALL],
        input=json.dumps(HOSTILE_BASH),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return {
        name: (decision, seconds, rules) for name, decision, seconds, rules in map(json.loads, done.stdout.splitlines())
    }


@pytest.mark.parametrize("name", HOSTILE_BASH)
def test_hostile_bash_is_judged_in_bounded_time_and_memory(
    name: str, hostile_verdicts: dict[str, tuple[str, float, list[str]]]
) -> None:
    assert name in hostile_verdicts, "the process that judged it died, here or before"
    decision, seconds, rules = hostile_verdicts[name]
    assert decision == "forbid"
    assert seconds < 10
    assert UNREADABLE not in rules
