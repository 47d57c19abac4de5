"""Rules as data: what loads, what is refused, and how a rule's fields are matched."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from pace import least_cpu
from redoma.lib.errors import PolicyError
from redoma.models import Decision, Evaluation, Language, Request
from redoma.policy import PACKS, Policy, Rule, evaluate, load
from redoma.policy.evaluate import MAX_FINDINGS, UNREADABLE


def rule(**fields: object) -> Rule:
    given = {"id": "mine.rule", "decision": "forbid", "reason": "because", **fields}
    return msgspec.convert(given, Rule)


def judge(fields: dict[str, object], code: str, language: Language = "bash") -> Evaluation:
    return evaluate(Policy(name="test", rules=(rule(**fields),)), Request(code=code, language=language))


def matches(fields: dict[str, object], code: str, language: Language = "bash") -> bool:
    return bool(judge(fields, code, language).findings)


# -- loading ------------------------------------------------------------------------------------------------------


def test_an_unknown_pack_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(PolicyError, match=r"'standrad'.*did you mean 'standard'"):
        load("standrad")


def test_a_decision_about_an_unknown_rule_is_refused_with_the_nearest_id() -> None:
    with pytest.raises(PolicyError, match=r"'privilege\.rise'.*did you mean 'privilege\.raise'"):
        load("standard", decisions={"privilege.rise": Decision.ALLOW})


def test_a_decision_changes_the_rule_it_names_and_no_other() -> None:
    loosened = load("standard", decisions={"privilege.raise": Decision.ALLOW})
    changed = [new.id for old, new in zip(load("standard").rules, loosened.rules, strict=True) if old != new]
    assert changed == ["privilege.raise"]
    verdict = evaluate(loosened, Request(code="sudo ls", language="bash"))
    assert verdict.decision is Decision.ALLOW
    assert [finding.rule for finding in verdict.findings] == ["privilege.raise"]  # still on record


def test_a_rule_that_looks_for_nothing_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"'mine\.rule' matches nothing"):
        load("none", [rule()])


def test_a_rule_with_the_id_of_another_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"'privilege\.raise' is there twice"):
        load("standard", [rule(id="privilege.raise", command=["sudo"])])
    with pytest.raises(PolicyError, match="there twice"):
        load("none", [rule(command=["a"]), rule(command=["b"])])


def test_an_unknown_trait_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(PolicyError, match=r"'shell\.fork-bom'.*did you mean 'shell\.fork-bomb'"):
        load("none", [rule(traits=["shell.fork-bom"])])
    with pytest.raises(PolicyError, match=r"did you mean 'python\.encoding'"):
        load("none", [rule(traits=["python.encodings"])])


@pytest.mark.parametrize("field", ["pattern", "unless"])
def test_an_expression_that_is_not_re2_is_refused_by_name_and_field(field: str) -> None:
    with pytest.raises(PolicyError, match=rf"'mine\.rule' has a `{field}`"):
        load("none", [rule(command=["x"], **{field: "(?=a)b"})])


@pytest.mark.parametrize("field", ["command", "args", "writes", "imports", "calls", "attributes"])
def test_a_broken_glob_is_refused_by_rule_and_field_when_it_is_loaded(field: str) -> None:
    with pytest.raises(PolicyError, match=rf"'mine\.rule' has a glob in `{field}`.*\[z-a\]"):
        load("none", [rule(**{field: ["[z-a]"]})])


def test_a_broken_glob_in_the_source_is_judged_like_any_path() -> None:
    assert UNREADABLE not in [finding.rule for finding in judge({"args": ["/etc"]}, "cat /[z-a]").findings]
    assert matches({"args": ["/etc"]}, "cat /[z-a]")


def test_a_path_in_command_is_refused_since_names_are_base_names() -> None:
    with pytest.raises(PolicyError, match=r"'mine\.rule' has a path in `command`.*base name.*'rm'"):
        load("none", [rule(command=["/bin/rm"])])
    load("none", [rule(command=["git push origin/*"])])


def test_a_rule_that_allows_is_refused_and_pointed_to_decisions() -> None:
    with pytest.raises(PolicyError, match=r"'mine\.rule' decides `allow`.*`decisions`"):
        load("none", [rule(command=["rm"], decision="allow")])


@pytest.mark.parametrize("reason", ["", "  "])
def test_an_empty_reason_is_refused(reason: str) -> None:
    with pytest.raises(PolicyError, match=r"'mine\.rule' has an empty reason"):
        load("none", [rule(command=["rm"], reason=reason)])


def test_an_example_that_is_missed_names_the_rule_and_the_example() -> None:
    with pytest.raises(PolicyError, match=r"'mine\.rule' disagrees with its own example 'ls -l'.*doesn't find it"):
        load("none", [rule(command=["rm"], match=["rm x", "ls -l"])])


def test_a_counter_example_that_is_found_names_the_rule_and_the_example() -> None:
    with pytest.raises(PolicyError, match=r"'mine\.rule' disagrees with its own example 'rm y'.*the rule finds it"):
        load("none", [rule(command=["rm"], not_match=["ls", "rm y"])])


@pytest.mark.parametrize(
    "fields",
    [
        {"id": ""},
        {"id": "two words"},
        {"command": [" "]},
        {"calls": [""]},
        {"longer_than": -1},
        {"reason": "\udcff", "command": ["x"]},
    ],
)
def test_a_rule_that_could_not_work_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(PolicyError):
        load("none", [rule(**({"command": ["x"]} if "id" in fields else {}), **fields)])


def test_an_unknown_field_is_refused_when_a_rule_is_read_from_data() -> None:
    with pytest.raises(msgspec.ValidationError, match="comand"):
        rule(comand=["rm"])


def test_every_pack_loads_and_has_a_digest_of_its_own() -> None:
    digests = {load(pack).digest for pack in PACKS}
    assert len(digests) == len(PACKS)
    assert all(len(digest) == 64 for digest in digests)


def test_the_digest_depends_on_the_content_and_on_nothing_else() -> None:
    mine = [rule(command=["x"])]
    assert load("standard", mine).digest == load("standard", [rule(command=["x"])]).digest
    assert load("standard", mine).digest != load("standard").digest
    assert load("standard", [rule(command=["x"], decision="prompt")]).digest != load("standard", mine).digest


def test_the_pack_none_judges_nothing_but_still_says_which_policy_it_was() -> None:
    verdict = evaluate(load("none"), Request(code="rm -rf /", language="bash"))
    assert (verdict.policy, verdict.findings, verdict.decision) == ("none", (), Decision.ALLOW)
    assert verdict.digest == load("none").digest


def test_user_rules_work_on_top_of_the_pack_none() -> None:
    policy = load("none", [rule(command=["terraform"], match=["terraform apply"])])
    assert evaluate(policy, Request(code="terraform apply", language="bash")).decision is Decision.FORBID


# -- fields -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "code", "expected"),
    [
        ("rm", "rm x", True),
        ("rm", "/bin/rm x", True),
        ("rm", "rmdir x", False),
        ("rm", "echo rm", False),
        ("git push", "git push", True),
        ("git push", "git -C dir --no-pager push origin", True),
        ("git push", "git commit -m push", False),
        ("git push", "git stash push", False),
        ("aws s3 rm", "aws --profile prod s3 rm s3://x", True),
        ("aws s3 rm", "aws --profile s3 s3 rm s3://x", True),
        ("aws s3 rm", "aws s3 --region=x ls rm", False),
        ("mkfs*", "mkfs.ext4 x", True),
        ("python* -*m pip*", "python3.12 -I -m pip install x", True),
        ("python* -*m pip*", "python3 script.py -m pip", False),
    ],
)
def test_command_matches_the_name_and_its_first_words(entry: str, code: str, expected: bool) -> None:
    assert matches({"command": [entry]}, code) is expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("rm -rf x", True),
        ("rm -fr x", True),
        ("rm -r -f x", True),
        ("rm x -fR", True),
        ("rm --recursive --force x", True),
        ("rm --recur --for x", True),
        ("rm -vrif x", True),
        ("rm -r x", False),
        ("rm -f x", False),
        ("rm -- -rf", False),
        ("rm rf", False),
        ('rm -"$x" y', True),
    ],
)
def test_flags_must_all_be_there_in_any_spelling(code: str, expected: bool) -> None:
    assert matches({"command": ["rm"], "flags": ["-r|-R|--recursive", "-f|--force"]}, code) is expected


@pytest.mark.parametrize("code", ["terraform apply -auto-approve", "terraform apply -auto-approve=true"])
def test_a_flag_is_found_with_and_without_a_value(code: str) -> None:
    assert matches({"command": ["terraform"], "flags": ["-auto-approve"]}, code)


@pytest.mark.parametrize("code", ["cp a secrets/", "mv x/a secrets/", "cp -t secrets a b", "install a ./secrets//"])
def test_what_is_copied_into_a_directory_is_a_write_in_it(code: str) -> None:
    assert matches({"writes": ["secrets/a"]}, code)
    assert not matches({"writes": ["secrets/z"]}, code)


@pytest.mark.parametrize(
    ("glob", "code", "expected"),
    [
        ("/etc", "cat /etc", True),
        ("/etc", "cat /etc/", True),
        ("/etc", "cat //etc/.", True),
        ("/etc", "cat /tmp/../etc", True),
        ("/etc", "cat /proc/self/root/etc", True),
        ("/etc", "cat /e?c", True),
        ("/etc", "cat /e*", True),
        ("/etc", "cat etc", False),
        ("/etc/*", "cat --file=/etc/x", True),
        ("PROD*", "cat production", True),
        ("$", 'cat "$x"', True),
        ("$/x", 'cat "$d/x"', True),
        ("$", "cat x", False),
        ("[!a]*", "cat b", True),
        ("[!a]*", "cat a", False),
        ("[!/]*", "cat b", True),
        ("", "cat -v", True),
        ("", "cat -v x", False),
    ],
)
def test_args_are_globs_over_words_and_tidied_paths(glob: str, code: str, expected: bool) -> None:
    assert matches({"command": ["cat"], "args": [glob]}, code) is expected


@pytest.mark.parametrize("code", ["echo x > out/a", "echo x | tee out/a", "cp a out/a", "echo x >> ./out//a"])
def test_writes_sees_redirections_and_targets_alike(code: str) -> None:
    assert matches({"writes": ["out/*"]}, code)
    assert not matches({"writes": ["other/*"]}, code)


def test_unless_excuses_only_what_fits_as_a_whole() -> None:
    fields: dict[str, object] = {"command": ["curl"], "unless": r"(-s )?http://localhost(/\S*)?"}
    assert not matches(fields, "curl -s http://localhost/x")
    assert matches(fields, "curl http://localhost/x http://other")


def test_all_command_fields_must_hold_of_the_same_command() -> None:
    fields: dict[str, object] = {"command": ["cp"], "args": ["secret"]}
    assert matches(fields, "cp secret x")
    assert not matches(fields, "cp a b; cat secret")


def test_python_names_are_matched_with_their_case_and_by_kind() -> None:
    assert matches({"imports": ["os"]}, "import os.path", "python")
    assert not matches({"imports": ["os"]}, "import osgeo", "python")
    assert matches({"calls": ["os.*"]}, "from os import getcwd as g; g()", "python")
    assert not matches({"calls": ["os.Getcwd"]}, "import os; os.getcwd()", "python")
    assert matches({"attributes": ["*.__globals__"]}, "x = f.__globals__", "python")


def test_literal_narrows_calls_to_constant_or_other_arguments() -> None:
    assert matches({"calls": ["f"], "literal": True}, "f(1, x='y')", "python")
    assert not matches({"calls": ["f"], "literal": True}, "f(y)", "python")
    assert matches({"calls": ["f"], "literal": False}, "f(y)", "python")


def test_a_pattern_reads_the_text_and_reports_every_place_of_it() -> None:
    verdict = judge({"pattern": "to-do"}, "ls\nécho to-do; echo to-do")
    assert [(finding.line, finding.column, finding.text) for finding in verdict.findings] == [
        (2, 6, "to-do"),
        (2, 18, "to-do"),
    ]


def test_a_rule_for_one_language_leaves_the_other_alone() -> None:
    fields: dict[str, object] = {"pattern": "x", "language": "python"}
    assert matches(fields, "x", "python")
    assert not matches(fields, "x", "bash")


def test_longer_than_counts_characters_not_bytes() -> None:
    assert not matches({"longer_than": 5}, "é" * 5)
    assert matches({"longer_than": 5}, "é" * 6)


# -- evaluating ---------------------------------------------------------------------------------------------------


def test_every_match_is_reported_in_order_and_the_strictest_decides() -> None:
    verdict = evaluate(load(), Request(code="sudo ls\ncurl https://x.org\nmkfs.ext4 x\n", language="bash"))
    assert [(finding.line, finding.rule) for finding in verdict.findings] == [
        (1, "privilege.raise"),
        (2, "network.download"),
        (3, "disk.format"),
    ]
    assert verdict.decision is Decision.FORBID
    assert [finding.rule for finding in verdict.deciding] == ["disk.format"]


def test_a_finding_says_where_what_why_and_what_instead() -> None:
    finding, _ = evaluate(load(), Request(code='echo "é"; rm -rf', language="bash")).findings
    assert (finding.line, finding.column, finding.text) == (1, 11, "rm -rf")
    assert "without saying what" in finding.reason
    assert finding.suggestion


def test_a_long_match_is_shortened_to_one_readable_line() -> None:
    (finding,) = judge({"command": ["rm"]}, "rm \\\n" + "x" * 500).findings
    assert len(finding.text) == 80
    assert finding.text.endswith("…")
    assert "\n" not in finding.text


def test_findings_are_capped_and_the_strictest_are_kept() -> None:
    code = "sudo ls\n" * (MAX_FINDINGS * 2) + "rm -rf /\n"
    verdict = evaluate(load(), Request(code=code, language="bash"))
    assert len(verdict.findings) == MAX_FINDINGS
    assert verdict.decision is Decision.FORBID


def test_a_checker_that_fails_refuses_instead_of_letting_it_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from redoma.policy import python

    def broken(source: str, depth: int = 0) -> list[object]:
        raise RuntimeError("bug")

    monkeypatch.setattr(python, "facts", broken)
    verdict = evaluate(load(), Request(code="x = 1"))
    assert verdict.decision is Decision.FORBID
    assert [finding.rule for finding in verdict.findings] == [UNREADABLE]


def test_a_variable_of_the_request_that_hijacks_programs_is_asked_about() -> None:
    request = Request(argv=("ls",), language="command", env={"LD_PRELOAD": "x.so"})
    assert evaluate(load(), request).decision is Decision.PROMPT
    harmless = Request(argv=("ls",), language="command", env={"LANG": "C"})
    assert evaluate(load(), harmless).decision is Decision.ALLOW


def test_a_hostile_argument_can_not_make_a_glob_slow() -> None:
    policy = Policy(name="test", rules=(rule(command=["x"], args=["*a*a*a*a*a*a*a*b"]),))
    request = Request(argv=("x", "a" * 100_000), language="command")
    assert least_cpu(lambda: evaluate(policy, request)) < 1


def test_judging_python_does_not_load_the_bash_parser_nor_the_reverse() -> None:
    program = (
        "import sys; from redoma.policy import load, evaluate; from redoma.models import Request\n"
        "evaluate(load(), Request(code={!r}, language={!r}))\n"
        "print([m for m in ('tree_sitter', 're2', 'redoma.policy.python', 'stdnum') if m in sys.modules])"
    )
    for code, language, loaded in (
        ("import os\nprint(os.getcwd())", "python", "['redoma.policy.python']"),
        ("ls | wc -l", "bash", "['tree_sitter']"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program.format(code, language)], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == loaded
