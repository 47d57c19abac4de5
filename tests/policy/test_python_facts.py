"""What the Python reader sees through, where it says it is, and what it survives."""

from __future__ import annotations

import ast
import builtins
import time
import warnings
from contextlib import suppress

import pytest
from corpus_programs import PYTHON
from hypothesis import example, given, settings
from hypothesis import strategies as st

from redoma.models import Decision, Request
from redoma.policy import evaluate, load
from redoma.policy.facts import MAX_SOURCE, Attribute, Call, Command, Import, Trait
from redoma.policy.python import TRAITS, facts, tree

STANDARD = load("standard")


def decide(code: str) -> Decision:
    return evaluate(STANDARD, Request(code=code)).decision


def traits(code: str) -> set[str]:
    return {fact.name for fact in facts(code) if isinstance(fact, Trait)}


def calls(code: str) -> set[str]:
    return {fact.name for fact in facts(code) if isinstance(fact, Call)}


# -- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import os\nos.system(x)", "os.system"),
        ("import os as o\no.system(x)", "os.system"),
        ("from os import system as s\ns(x)", "os.system"),
        ("import os.path\nos.path.join(x)", "os.path.join"),
        ("from os import *\nsystem(x)", "os.system"),
        ("import os\nf = os.system\nf(x)", "os.system"),
        ("import os\na = b = os\nb.system(x)", "os.system"),
        ("import os\na, b = os, 1\na.system(x)", "os.system"),
        ("import os\n(o := os).system(x)", "os.system"),
        ("import os\nfor m in (os, 1):\n    m.system(x)", "os.system"),
        ("import os\ndef f(m=os):\n    m.system(x)", "os.system"),
        ("import os\ngetattr(os, 'sys' + 'tem')(x)", "os.system"),
        ("import os\ngetattr(os, f\"{'sys'}tem\")(x)", "os.system"),
        ("import os\ngetattr(os, 'metsys'[::-1])(x)", "os.system"),
        ("import os\ngetattr(os, ''.join(['sys', 'tem']))(x)", "os.system"),
        ("import os\ngetattr(os, chr(115) + 'ystem')(x)", "os.system"),
        ("import os\ngetattr(os, 'sys-tem'.replace('-', ''))(x)", "os.system"),
        ("import os\nn = 'system'\ngetattr(os, n)(x)", "os.system"),
        ("import os\nos.__dict__['system'](x)", "os.system"),
        ("import os\nvars(os)['system'](x)", "os.system"),
        ("import os\nos.__getattribute__('system')(x)", "os.system"),
        ("import sys\nsys.modules['os'].system(x)", "os.system"),
        ("import sys\nsys.modules.get('os').system(x)", "os.system"),
        ("__import__('os').system(x)", "os.system"),
        ("import importlib\nimportlib.import_module('os').system(x)", "os.system"),
        ("from importlib import import_module as i\ni('os').system(x)", "os.system"),
        ("import builtins\nbuiltins.eval(x)", "eval"),
        ("__builtins__['ev' + 'al'](x)", "eval"),
        ("globals()['__builtins__'].eval(x)", "eval"),
        ("if 0:\n    from re import compile as exec\nexec(x)", "exec"),
        ("exec(x)\nfrom re import compile as exec", "exec"),
        ("from re import compile as exec\ndel exec\nexec(x)", "exec"),
        ("\uff45\uff56\uff41\uff4c(x)", "eval"),  # full-width letters mean the plain ones
    ],
)
def test_a_call_is_known_by_its_full_name_however_it_is_reached(code: str, name: str) -> None:
    assert name in calls(code)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("from re import compile\ncompile(x)", "compile"),
        ("model.eval(x)", "eval"),
        ("import re\nre.compile(x)", "compile"),
        ("import platform\nplatform.system()", "os.system"),
    ],
)
def test_a_call_is_not_taken_for_another_of_the_same_ending(code: str, name: str) -> None:
    assert name not in calls(code)


def test_imports_are_reported_in_full_whatever_their_form() -> None:
    code = "import os.path, sys as s\nfrom a.b import c as d\nfrom . import e\nfrom f import *\n__import__('g')"
    names = [fact.name for fact in facts(code) if isinstance(fact, Import)]
    assert names == ["os.path", "sys", "a.b.c", ".e", "f.*", "g"]


def test_a_name_that_is_read_but_not_called_is_an_attribute_fact() -> None:
    names = {fact.name for fact in facts("import os\nrun = [eval, os.system]\nx.y.z") if isinstance(fact, Attribute)}
    assert names == {"eval", "os.system", "x.y.z"}


def test_strings_comments_and_similar_names_are_not_facts() -> None:
    assert facts("# os.system('x')\nos_name = 'import os; eval(x)'\n'''exec(x)'''") == []


# -- commands -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        "os.system('rm -rf /')",
        "os.system(b'rm -rf /')",
        "os.popen('ls; rm -rf /')",
        "subprocess.run('rm -rf /', shell=True)",
        "subprocess.run(['rm -rf /'], shell=True)",
        "subprocess.run(['rm', '-rf', '/'])",
        "subprocess.Popen(args=('rm', '-rf', '/'))",
        "subprocess.check_output('rm -rf /'.split())",
        "subprocess.run(shlex.split('rm -rf \"/\"'))",
        "subprocess.run(['rm'] + ['-rf', '/'])",
        "subprocess.run(['bash', '-c', 'rm -rf /'])",
        "subprocess.run([sys.executable, '-c', 'import os; os.system(\"rm -rf /\")'])",
        "os.execv('/bin/rm', ['innocent', '-rf', '/'])",
        "os.execlp('rm', 'innocent', '-rf', '/')",
        "os.spawnl(os.P_WAIT, '/bin/rm', 'rm', '-rf', '/')",
        "os.posix_spawn('/bin/rm', ['rm', '-rf', '/'], {})",
        "asyncio.create_subprocess_exec('rm', '-rf', '/')",
        "ctypes.CDLL(None).system(b'rm -rf /')",
        "exec('os.system(\"rm -rf /\")')",
        'eval(\'__import__("os").system("rm -rf /")\')',
        'timeit.timeit(\'__import__("os").system("rm -rf /")\')',
        "os.system('rm -rf ' + '/')",
        "os.system(f'rm -rf / {x}')",
        "shutil.rmtree('/')",
        "shutil.rmtree(Path.home())",
        "os.chmod('x', 0o777)",
        "Path('x').chmod(0o777)",
    ],
)
def test_a_command_that_a_program_starts_is_judged_like_any_other(call: str) -> None:
    header = "import os, subprocess, sys, shlex, asyncio, ctypes, shutil, timeit\nfrom pathlib import Path\n"
    assert decide(header + call) is Decision.FORBID


@pytest.mark.parametrize(
    "code",
    [
        "os.system(x)",
        "os.system(f'ls {x}')",
        "os.system('ls %s' % x)",
        "os.system('ls {}'.format(x))",
        "subprocess.run(x)",
        "subprocess.run([x, 'y'])",
        "subprocess.run(*x)",
        "subprocess.run(**x)",
        "subprocess.run(['ls'], executable=x)",
        "list(map(os.system, x))",
        "d = {'a': os.system}",
        "getattr(os, x)()",
        "f(os)",
        "[m for m in (os,)][0].abort()",
        "operator.attrgetter('system')(os)",
        "os.__dict__[x]",
        "sys.modules[x]",
        "importlib.import_module(x)",
        "exec(x)",
        "f = exec",
        "@exec\ndef f(): pass",
        "open('/etc/passwd', 'w')",
        "open(os.path.expanduser('~/.bashrc'), mode='a')",
        "Path('/etc/cron.d/x').write_text('y')",
        "(Path.home() / '.ssh' / 'authorized_keys').open('a')",
        "shutil.copy('x', '/usr/bin/y')",
        "subprocess.run(['sudo', 'ls'])",
    ],
)
def test_what_can_not_be_known_or_reaches_outside_is_asked_about(code: str) -> None:
    header = "import os, subprocess, sys, shutil, importlib, operator\nfrom pathlib import Path\n"
    assert decide(header + code) is Decision.PROMPT


def test_a_list_that_grows_keeps_its_known_first_word() -> None:
    grown = "import subprocess\ncmd = ['git', 'log']\ncmd.append(x)\ncmd += y\nsubprocess.run(cmd)"
    assert decide(grown) is Decision.ALLOW
    changed = "import subprocess\ncmd = ['git', 'log']\ncmd.insert(0, x)\nsubprocess.run(cmd)"
    assert decide(changed) is Decision.PROMPT


def test_a_file_operation_is_told_as_the_command_that_does_the_same() -> None:
    found = [fact for fact in facts("import shutil\nshutil.rmtree('a/b')") if isinstance(fact, Command)]
    assert [(fact.name, fact.args) for fact in found] == [("rm", ("-r", "-f", "a/b"))]


# -- places -------------------------------------------------------------------------------------------------------


def test_columns_count_characters_not_bytes() -> None:
    (fact,) = [fact for fact in facts("x = 'é😀'; eval(y)") if isinstance(fact, Call)]
    assert (fact.line, fact.column, fact.text) == (1, 11, "eval(y)")


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_lines_are_counted_as_the_parser_counts_them(newline: str) -> None:
    code = newline.join(["a = '\x0c'", "b = '\u2028'", "eval(y)"])
    (fact,) = [fact for fact in facts(code) if isinstance(fact, Call)]
    assert (fact.line, fact.column, fact.text) == (3, 1, "eval(y)")


def test_code_inside_code_is_placed_where_the_outer_code_holds_it() -> None:
    code = "import os\n\n  \nos.system('ls;\\nsudo ls')"
    found = evaluate(STANDARD, Request(code=code)).findings
    assert [(each.rule, each.line, each.column) for each in found] == [
        ("python.starts", 4, 1),
        ("privilege.raise", 4, 1),
    ]


# -- the text itself ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "trait"),
    [
        ("# coding: utf-7\nx", "python.encoding"),
        ("#!/bin/python\n# vim: set fileencoding=latin-1 :", "python.encoding"),
        ("\ufeff# coding=unicode_escape", "python.encoding"),
        ("\r# coding: utf-16", "python.encoding"),
        ("x = 1\0", "source.nul"),
        ("x = '\udc80'", "source.bad-utf8"),
        ("x = 1 # \u2066", "source.invisible"),
        ("def", "python.syntax-error"),
        ("1" * 5000, "python.syntax-error"),
        ("x\n" * MAX_SOURCE, "source.too-large"),
        ("-" * 100_000 + "1", "source.too-deep"),
    ],
)
def test_text_that_can_not_be_trusted_is_a_trait(code: str, trait: str) -> None:
    assert trait in traits(code)
    assert trait in TRAITS


@pytest.mark.parametrize(
    "code", ["# coding: utf-8", "# -*- coding: UTF_8 -*-", "# coding: ascii", "a\nb\n# coding: utf-7"]
)
def test_a_harmless_coding_comment_is_no_trait(code: str) -> None:
    assert traits(code) == set()


def test_code_behind_a_mark_is_still_read() -> None:
    assert "eval" in calls("\ufeffeval(x)")
    assert "eval" in calls("eval(x) # \udcff")


def test_a_warning_of_the_parser_is_neither_shown_nor_an_error(recwarn: pytest.WarningsRecorder) -> None:
    for code in (
        r"x = '\d'",
        r"b'\9'",
        "1if x else 2",
        "0x1for x in y",
        "1or 2",
        "1_0and x",
        "0b1in x",
        "1.if x else 2",
    ):
        assert traits(code) <= {"python.syntax-error"}
    assert not recwarn.list


PIECES = st.sampled_from(
    [*"0179abefinorx_.'\"()[]{}:,=+-*@#% \n", "\\", "is", "if ", "else ", "in ", "and ", "0x", "1e", "try:"]
)


@settings(max_examples=2000, deadline=None)
@given(st.lists(PIECES, max_size=12).map("".join))
@example("x is 1")
@example("assert (x, 'y')")
@example("1 if x else 2")
@example("1.if x else 2")
@example("1.jif x else 2")
@example("1.e5if x else 2")
@example("'a' 'b'(c)")
def test_where_no_warning_is_expected_there_is_none(code: str) -> None:
    with warnings.catch_warnings(record=True) as seen, suppress(SyntaxError, ValueError):
        warnings.simplefilter("always")
        ast.parse(code)
    assert not seen or tree._may_warn(code)


@pytest.mark.parametrize("expected", [True, False])
def test_code_is_read_where_warnings_are_errors(expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not expected:
        monkeypatch.setattr(tree, "_may_warn", lambda _: False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "eval" in calls("x = 1.if 1 else 2\neval(x)")


def test_no_ordinary_program_makes_the_parser_warn_where_that_is_not_expected() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for code in PYTHON.values():
            if not tree._may_warn(code):
                with suppress(SyntaxError, ValueError):
                    ast.parse(code)


N = 50_000
HOSTILE = {
    "parentheses": "(" * N,
    "closed_parentheses": "(" * N + ")" * N,
    "unary": "-" * N + "1",
    "not": "not " * N + "1",
    "sums": "1" + "+1" * N,
    "attributes": "a" + ".b" * N,
    "calls": "a" + "()" * N,
    "chained_calls": "a" + ".b()" * 2000,
    "powers": "1" + "**1" * N,
    "ternaries": "1" + " if 1 else 1" * 10_000,
    "elif": "if 1: pass\n" + "elif 1: pass\n" * 10_000,
    "lambdas": "lambda:" * N + "1",
    "indents": "".join(" " * i + "if 1:\n" for i in range(500)),
    "f_strings": "f'{" * N,
    "doubling": "a0 = 'x'\n" + "".join(f"a{i + 1} = a{i} + a{i}\n" for i in range(60)) + "exec(a60)",
    "alias_cycle": "a = b\nb = a\n" * 500 + "a.system('x')\n" * 500,
    "alias_chain": "".join(f"x{i + 1} = x{i}\n" for i in range(1000)) + "x1000.f()",
    "nested_getattr": "getattr(" * 150 + "x" + ", 'a')" * 150,
    "many_imports": "import os\nos.getcwd()\n" * 5000,
    "many_commands": "import os\n" + "os.system('ls')\n" * 3000,
    "surrogates": "\ud800" * 1000,
    "empty": "",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_source_is_judged_in_bounded_time(name: str) -> None:
    started = time.process_time()
    verdict = evaluate(load("core"), Request(code=HOSTILE[name]))
    assert time.process_time() - started < 10
    assert all(finding.rule != "policy.unreadable" for finding in verdict.findings)


def test_code_nested_in_code_too_deeply_is_asked_about() -> None:
    code = "x"
    for _ in range(7):
        code = f"exec({code!r})"
    assert "source.too-deep" in traits(code)
    assert decide(code) is Decision.PROMPT


def test_code_that_a_program_multiplies_is_not_read_over_and_over() -> None:
    doubled = "import os\na0 = '#abc'\n" + "".join(f"a{i + 1} = a{i} + a{i}\n" for i in range(12)) + "os.system(a12)\n"
    assert "source.too-large" in traits(doubled)
    assert decide(doubled) is Decision.PROMPT


@pytest.mark.parametrize("arguments", ["", "*x", "**x", "y=1", "None"])
def test_calls_with_missing_or_unknown_arguments_are_read(arguments: str) -> None:
    names = [*dir(builtins), "operator.attrgetter", "os.system", "subprocess.run", "importlib.import_module", "open"]
    for name in names:
        list(facts(f"import importlib, operator, os, subprocess\n{name}({arguments})"))
