"""Ways around the reader of Python that were found by looking for them, and ordinary code that looks like one."""

from __future__ import annotations

import pytest

from redoma.models import Decision, Request
from redoma.models.reach import HOST, NOTHING
from redoma.policy import evaluate, load

HEADER = "import builtins, cProfile, functools, io, os, shutil, subprocess, timeit\n"


def decide(code: str, pack: str) -> Decision:
    return evaluate(load(pack), Request(code=code)).decision


CORE_FORBIDS = {
    "call_of_eval": "print(eval.__call__('1+1'))",
    "call_of_call_of_eval": "print(eval.__call__.__call__('1+1'))",
    "call_of_open": "open.__call__('/etc/hostname')",
    "call_of_getattr": "getattr.__call__((), '__class__')",
    "call_of_import": "__import__.__call__('os').system.__call__('id')",
    "call_of_input": "input.__call__()",
    "call_of_breakpoint": "breakpoint.__call__()",
    "class_pattern": "def f(): pass\nmatch f:\n    case object(__globals__=g): print(g)",
    "class_pattern_inside": "match [f]:\n    case [object(__code__=object(co_consts=c))]: print(c)",
    "builtins_bound_in_dead_code": "if 0:\n    __builtins__ = print\nprint(__builtins__.eval('1+1'))",
    "files_of_license": "license._Printer__filenames = ['/etc/hostname']\nprint(license)",
    "files_of_credits": "credits._Printer__filenames = ['/etc/hostname']\nprint(credits)",
    "files_of_copyright": "c = copyright\nprint(c)",
    "code_of_a_coroutine": "async def f(): pass\nprint(f().cr_code.replace(co_consts=()))",
    "code_of_an_async_generator": "async def f(): yield\nprint(f().ag_code)",
    "frame_of_an_async_generator": "async def f(): yield\nprint(f().ag_frame.f_back)",
    "format_reads_attributes": "def f(): pass\nprint('{0.__globals__}'.format(f))",
    "format_by_name": "def f(): pass\nprint('{x.__globals__[a]}'.format(x=f))",
    "format_after_an_item": "def f(): pass\nprint('{0[0].__globals__}'.format([f]))",
    "format_folded": "def f(): pass\nprint(('{0.__glo' + 'bals__}').format(f))",
    "format_in_the_specification": "def f(): pass\nprint('{0:{1.__globals__}}'.format(1, f))",
    "format_map": "def f(): pass\nprint('{f.__globals__}'.format_map({'f': f}))",
    "format_of_str": "def f(): pass\nprint(str.format('{0.__globals__}', f))",
    "format_map_of_str": "def f(): pass\nprint(str.format_map('{f.__globals__}', {'f': f}))",
    "format_of_a_type": "def f(): pass\nprint(type('').format('{0.__globals__}', f))",
    "format_of_a_type_in_a_map": "def f(): pass\nprint(*map(type('').format, ['{0.__globals__}'], [f]))",
    "format_twice": "def f(): pass\nprint('{{0.__globals__}}'.format().format(f))",
    "format_of_a_key_with_a_brace": "print('{0[}].__globals__}'.format({'}': f}))",
    "builtin_bound_later": "print(input)\ninput = 'abc'",
    "builtin_bound_in_dead_code": "if 0:\n    input = 'abc'\nprint(input())",
    "builtin_bound_in_a_function": "def f():\n    eval = 1\nprint(eval('1+1'))",
    "builtin_of_an_argument_used_outside": "def f(input): return input * 2\nprint(f(input))",
    "builtin_of_an_empty_loop": "for eval in []: pass\nprint(eval('1+1'))",
    "builtin_deleted_again": "input = 'abc'\ndel input\nprint(input())",
    "builtin_deleted_by_except": "input = 1\ntry:\n    1 / 0\nexcept Exception as input:\n    pass\nprint(input())",
    "builtin_that_a_class_in_a_function_may_bind": (
        "def f(input):\n    class A:\n        if 0: input = 1\n        print(input('x'))\nf(1)"
    ),
    "builtin_declared_global": "def f(eval):\n  def g():\n    global eval\n    return eval('1')\n  g()\nf(1)",
    "builtin_in_its_own_default": "def eval(x=eval('1')): return 1",
    "builtin_called_by_its_decorator": "@(lambda g: g('1'))\ndef eval(x): return eval(x)",
    "builtin_aliased_before_it_is_bound": "x = __builtins__\n__builtins__ = 1\nx.eval('1')",
    "builtin_as_a_value": "input = eval\nprint(input('1+1'))",
    "builtin_as_an_argument": "def f(input): return input('1+1')\nprint(f(eval))",
    "builtin_as_a_default": "def f(dir=eval): return dir('1+1')\nprint(f())",
    "builtin_bound_in_a_class": "class A:\n    eval = 1\nprint(eval('1+1'))",
    "lambda_holds_eval": "(lambda a: eval(a))('1+1')",
}


@pytest.mark.parametrize("name", CORE_FORBIDS)
def test_the_core_pack_sees_through(name: str) -> None:
    assert decide(CORE_FORBIDS[name], "core") is Decision.FORBID


CORE_ALLOWS = {
    "input_is_a_text": "input = 'abc'\nprint(input)",
    "dir_is_a_text": "dir = 'norte'\nprint(dir)",
    "dir_of_a_loop": "for dir in ['n']: print(dir)",
    "input_is_an_argument": "def f(input): return input*2",
    "input_is_an_argument_of_a_lambda": "print((lambda input: input * 2)(3))",
    "a_function_named_compile": "def compile(a): return a\nprint(compile(3))",
    "a_lambda_called_at_once": "(lambda a, b: a + b)(1, 2)",
    "format_of_a_plain_attribute": "print('{0.real} {1:>10}'.format(1, 2))",
    "format_with_braces_of_text": "print('{{0.__globals__}} {}'.format(1))",
    "format_handed_on": "print(*map('{:.2f}'.format, [1, 2]))",
    "a_class_pattern": "match p:\n    case Point(x=0, y=y): print(y)",
    "a_class_with_call": "class A:\n    def __call__(self): return 1\nprint(A()())",
}


@pytest.mark.parametrize("name", CORE_ALLOWS)
def test_the_core_pack_lets_ordinary_code_be(name: str) -> None:
    assert evaluate(load("core"), Request(code=CORE_ALLOWS[name])).findings == ()


def test_the_core_pack_gives_its_own_advice_on_an_import() -> None:
    first, *_ = evaluate(load("core"), Request(code="import os")).deciding
    assert first.rule == "core.import"


STRICT_FORBIDS = {
    "type_hints": "import typing\nclass A:\n    x: 'print(1)'\ntyping.get_type_hints(A)",
    "type_hints_by_name": "from typing import get_type_hints as g\ng(A)",
    "forward_reference": "import typing\ntyping.ForwardRef('print(1)')",
    "single_dispatch": "import functools\n@functools.singledispatch\ndef f(x): pass\n@f.register\ndef _(x: 'p()'): 0",
    "single_dispatch_method": "from functools import singledispatchmethod as s\nclass A:\n  @s\n  def f(self, x): 0",
    "query": "import pandas as pd\ndf = pd.DataFrame({'a': [1]})\ndf.query('@pd.io')",
    "data_frame_eval": "import pandas as pd\ndf = pd.DataFrame({'a': [1]})\ndf.eval('a + 1')",
    "formatter": "import string\nstring.Formatter().get_field('0.__class__', [1], {})",
    "formatter_subclass": "import string\nclass F(string.Formatter): pass\nF().format('{0.__class__}', 1)",
    "attrgetter_as_a_value": "import operator\nlist(map(operator.attrgetter, ['__class__']))",
    "methodcaller_as_a_value": "from operator import methodcaller\nf = methodcaller",
    "path_of_a_tool": "from json.tool import Path",
    "tool": "import json.tool\njson.tool.main()",
    "read_csv": "import pandas as pd\npd.read_csv('/etc/passwd')",
    "read_json": "import pandas as pd\npd.read_json('/etc/passwd')",
    "read_csv_as_a_value": "import pandas as pd\nlist(map(pd.read_csv, ['/etc/passwd']))",
    "read_csv_by_name": "from pandas import read_csv\nread_csv('/etc/passwd')",
    "to_csv": "import pandas as pd\npd.DataFrame({'a': [1]}).to_csv('/tmp/x')",
    "to_csv_as_a_value": "import pandas as pd\nf = pd.DataFrame({'a': [1]}).to_csv\nf('/tmp/x')",
    "tofile": "import numpy as np\nnp.zeros(3).tofile('x')",
    "recfromtxt": "import numpy as np\nnp.recfromtxt('x')",
    "loadtxt_as_a_value": "import numpy as np\nlist(map(np.loadtxt, ['x']))",
    "private_helper_that_runs_text": "import dataclasses\ndataclasses._create_fn('f', (), ['x'])",
    "to_string_with_a_path": "import pandas as pd\npd.DataFrame().to_string('x')",
    "dump_of_an_array": "import numpy as np\nnp.zeros(2).dump('x')",
    "data_source": "import numpy as np\nnp.DataSource().open('x')",
}


@pytest.mark.parametrize("name", STRICT_FORBIDS)
def test_the_strict_pack_sees_through(name: str) -> None:
    assert decide(STRICT_FORBIDS[name], "strict") is Decision.FORBID


STRICT_ALLOWS = {
    "pandas": "import pandas as pd\ndf = pd.DataFrame({'a': [1, 2]})\nprint(df.groupby('a').sum().to_dict())",
    "pandas_text": "import pandas as pd\nprint(pd.DataFrame({'a': [1]}).to_string(), pd.to_datetime('2024-01-01'))",
    "pandas_to_json_text": "import pandas as pd\nprint(pd.DataFrame({'a': [1]}).to_json(orient='records'))",
    "methods_of_a_named_tuple": "from collections import namedtuple\nprint(namedtuple('P', 'x')(1)._replace(x=2))",
    "numpy": "import numpy as np\nprint(np.array([1, 2]).reshape(2, 1).tolist(), np.random.default_rng(1).random())",
    "typing": "from typing import Any, NamedTuple\nclass P(NamedTuple):\n    x: Any\nprint(P(1))",
    "functools": "import functools\n@functools.lru_cache\ndef f(n): return n\nprint(functools.reduce(max, [1, 2]))",
    "operator": "import operator\nprint(sorted([(1, 2)], key=operator.itemgetter(1)))",
    "template": "import string\nprint(string.Template('$a').substitute(a=1), string.ascii_letters)",
    "json": "import json\nprint(json.loads('[1]'))",
}


@pytest.mark.parametrize("name", STRICT_ALLOWS)
def test_the_strict_pack_lets_ordinary_code_be(name: str) -> None:
    assert evaluate(load("strict"), Request(code=STRICT_ALLOWS[name])).findings == ()


STANDARD_FORBIDS = {
    "call_of_system": "os.system.__call__('rm -rf /')",
    "system_by_keyword": "os.system(command='rm -rf /')",
    "getoutput_by_keyword": "subprocess.getoutput(cmd='rm -rf /')",
    "shell_in_spread_options": "subprocess.run('rm -rf /', **{'shell': True})",
    "list_with_spread_options": "subprocess.run(['rm', '-rf', '/'], **options)",
    "shell_by_position": "subprocess.Popen('rm -rf /', -1, None, None, None, None, None, True, True)",
    "removal_by_keyword": "shutil.rmtree(path='/')",
    "mode_by_keyword": "os.chmod('x', mode=0o777)",
    "path_and_mode_by_keyword": "os.chmod(path='x', mode=0o777)",
}


@pytest.mark.parametrize("name", STANDARD_FORBIDS)
def test_the_standard_pack_forbids_however_it_is_spelt(name: str) -> None:
    assert decide(HEADER + STANDARD_FORBIDS[name], "standard") is Decision.FORBID


STANDARD_ASKS = {
    "call_of_eval": "eval.__call__(x)",
    "call_of_subclasses": "().__class__.__base__.__subclasses__.__call__()",
    "alias_in_a_map": "s = os.system\nlist(map(s, ['rm -rf /']))",
    "alias_in_a_dictionary": "s = os.system\nd = {'a': s}\nd['a']('rm -rf /')",
    "alias_in_a_class": "class A:\n    s = os.system\nA.s('rm -rf /')",
    "alias_as_an_argument": "s = os\nf(s)",
    "evaluated_text_uses_an_outer_name": "s = os.system\neval(\"s('rm -rf /')\")",
    "executed_text_binds_a_name": "exec('from os import system as s')\ns('rm -rf /')",
    "executed_text_assigns_a_name": "exec('import os\\ns = os.system')\ns('rm -rf /')",
    "executed_text_uses_an_argument": "def f(s):\n    exec(\"s('rm -rf /')\")\nf(os.system)",
    "open_by_keyword": "open(file='/etc/passwd', mode='w')",
    "copy_by_keyword": "shutil.copy(src='x', dst='/usr/bin/y')",
    "removal_in_a_map": "list(map(shutil.rmtree, ['/']))",
    "removal_under_an_alias": "r = shutil.rmtree\nlist(map(r, ['/']))",
    "partial": "functools.partial(subprocess.Popen, ['rm', '-rf', '/'])()",
    "module_of_a_module": "shutil.os.execvp('rm', ['rm', '-rf', '/'])",
    "file_io": "io.FileIO('/etc/passwd', 'w')",
    "open_by_flags": "os.open('/etc/passwd', os.O_WRONLY | os.O_TRUNC)",
    "open_by_unknown_flags": "os.open('/etc/passwd', flags)",
    "timeit": "timeit.timeit(x)",
    "timeit_setup": "timeit.timeit('pass', setup=x)",
    "timer": "timeit.Timer(x).timeit()",
    "eval_of_spread_arguments": "eval(*x)",
    "eval_in_a_nested_block_of_a_class": "class A:\n    if 1:\n        s = os.system\nA.s('rm -rf /')",
    "alias_in_a_handler_of_a_class": "class A:\n    try: g\n    except NameError: s = os.system\nA.s('rm -rf /')",
    "alias_in_a_case_of_a_class": "class A:\n    match 1:\n        case 1: s = os.system\nA.s('rm -rf /')",
    "spread_timer": "timeit.timeit(**x)",
    "profile": "cProfile.run(x)",
    "profile_in_a_context": "cProfile.runctx(x, {}, {})",
}


@pytest.mark.parametrize("name", STANDARD_ASKS)
def test_the_standard_pack_does_not_allow(name: str) -> None:
    assert decide(HEADER + STANDARD_ASKS[name], "standard") > Decision.ALLOW


STANDARD_ALLOWS = {
    "patched_by_pytest": "monkeypatch.setattr(os, 'getcwd', lambda: '/')",
    "patched_by_mock": "mock.patch.object(os, 'getcwd')",
    "printed_module": "print(os)",
    "listed_builtins": "dir(builtins)",
    "constant_text": "eval('1 + 1')",
    "constant_text_with_builtins": "print(eval('sum([1, 2])'))",
    "timed_function": "timeit.timeit(lambda: sum(range(9)), number=10)",
    "timed_text": "timeit.timeit('sum(range(9))', number=10)",
    "open_for_reading": "os.open('/etc/hostname', os.O_RDONLY)",
    "file_io_for_reading": "io.FileIO('/etc/hostname')",
    "open_by_keyword_for_reading": "open(file='/etc/hostname', mode='r')",
    "removal_of_a_relative_path": "shutil.rmtree(path='build')",
    "alias_called": "s = os.system\ns('ls')",
    "a_module_under_a_short_name": "o = os\nprint(o.getcwd())",
    "a_class_with_a_function": "class A:\n    join = os.path.join\nprint(A.join('a', 'b'))",
    "shell_is_false_by_position": "subprocess.Popen(['ls'], -1, None, None, None, None, None, True, False)",
    "removal_registered_for_the_end": "import atexit\natexit.register(shutil.rmtree, directory)",
    "a_check_of_a_type": "def f(p: subprocess.Popen): return isinstance(p, subprocess.Popen)",
    "a_timed_function_of_the_program": "def f(): pass\nprint(timeit.timeit(f, number=3))",
    "spread_options": "subprocess.run(['git', 'status'], **options)",
    "partial_of_a_harmless_function": "functools.partial(os.path.join, 'a')('b')",
}


ASKED_ON_THE_HOST = {
    "constant_text": {"python.eval"},
    "constant_text_with_builtins": {"python.eval"},
    "removal_of_a_relative_path": {"python.removes", "remove.recursive"},
    "alias_called": {"python.starts"},
    "shell_is_false_by_position": {"python.starts"},
    "removal_registered_for_the_end": {"python.removes"},
}


@pytest.mark.parametrize("name", STANDARD_ALLOWS)
def test_the_standard_pack_lets_ordinary_code_be(name: str) -> None:
    request = Request(code=HEADER + STANDARD_ALLOWS[name])
    assert evaluate(load("standard"), request, reach=NOTHING).decision is Decision.ALLOW
    found = {finding.rule for finding in evaluate(load("standard"), request, reach=HOST).findings}
    assert found <= ASKED_ON_THE_HOST.get(name, set())


@pytest.mark.parametrize(
    "code",
    [
        "import posix\nposix.system(x)",
        "from posix import system as s\ns('ls')",
        "from posix import *\nsystem('ls')",
        "import posix as p\ngetattr(p, 'sys' + 'tem')('ls')",
        "import sys\nsys.modules['posix'].system('ls')",
    ],
)
def test_what_os_has_from_posix_is_what_it_is_there(code: str) -> None:
    found = evaluate(load("script"), Request(code=code)).findings
    assert "script.starts-a-shell" in {finding.rule for finding in found}


def test_posix_is_judged_as_os_is() -> None:
    for call in ("unlink('/etc/passwd')", "open('/etc/passwd', 1)", "execv('/bin/rm', ['rm', '-rf', '/'])", "getcwd()"):
        os_, posix = (
            evaluate(load("standard"), Request(code=f"import {module}\n{module}.{call}")) for module in ("os", "posix")
        )
        assert [finding.rule for finding in posix.findings] == [finding.rule for finding in os_.findings], call


BOUND_OTHERWISE = {
    "alias_of_builtins_that_is_bound_later": (
        "e = __builtins__\n__builtins__ = dict(print=print, open=open, __import__=1)\ne.exec(open('x').read(), {})"
    ),
    "alias_of_an_alias": "f = __builtins__\ne = f\n__builtins__ = 1\ne.exec(open('x').read())",
    "alias_of_exec": "e = exec\nf = e\nexec = print\nf(open('x').read())",
    "alias_of_import": "e = __import__\ne('o' + 's').system(open('x').read())",
    "alias_of_import_that_is_bound_later": "e = __import__\n__import__ = 1\ne('o' + 's').system(open('x').read())",
    "alias_of_import_module": "import importlib\ne = importlib.import_module\ne('os').system(open('x').read())",
    "alias_of_a_member_of_builtins": "import builtins\ne = builtins.__import__\ne('os').system(open('x').read())",
    "loop_and_case": (
        "for code in ('1', '2'): pass\nmatch open('x').read():\n    case code: timeit.timeit(code, number=1)"
    ),
    "loop_and_starred_case": (
        "for code in ('1', '2'): pass\nmatch open('x').read():\n    case [*code]: timeit.timeit(code, number=1)"
    ),
    "loop_and_rest_of_a_case": (
        "for code in ('1', '2'): pass\nmatch f():\n    case {**code}: timeit.timeit(code, number=1)"
    ),
    "constant_and_case": "code = '1'\nmatch open('x').read():\n    case code: pass\ntimeit.timeit(code)",
    "loop_and_except": "for code in ('1', '2'): pass\ntry: f()\nexcept E as code: timeit.timeit(code)",
    "loop_and_star": "from x import *\nfor code in ('1', '2'): timeit.timeit(code)",
    "loop_and_globals": "for code in ('1', '2'):\n    globals()['code'] = open('x').read()\n    timeit.timeit(code)",
    "loop_and_vars": "for code in ('1', '2'):\n    vars()['code'] = open('x').read()\n    timeit.timeit(code)",
    "loop_and_vars_of_nothing": "for code in ('1', '2'):\n    vars(*[])['code'] = f()\n    timeit.timeit(code)",
    "constant_and_alias_of_globals": "g = globals\ncode = '1'\ng()['code'] = open('x').read()\ntimeit.timeit(code)",
    "constant_and_main": "import __main__\ncode = '1'\n__main__.code = open('x').read()\ntimeit.timeit(code)",
}


@pytest.mark.parametrize("code", BOUND_OTHERWISE.values(), ids=BOUND_OTHERWISE)
def test_what_a_name_was_bound_to_otherwise_is_asked_about(code: str) -> None:
    request = Request(code=f"import timeit\n{code}")
    assert evaluate(load("standard"), request, reach=HOST).decision > Decision.ALLOW


@pytest.mark.parametrize(
    "code",
    [
        "import timeit\nfor code in ('1', '2'): timeit.timeit(code, number=1)",
        "import subprocess\nprint(vars(a))\nc = 'ls'\nsubprocess.run([c])",
        "from math import *\nimport subprocess\nc = 'ls'\nsubprocess.run([c])",
        "def f(x): return x\ng = f\ng('os').name",
        "f = f('a')\nf('b').c()",
    ],
)
def test_the_neighbours_of_such_bindings_are_not(code: str) -> None:
    assert evaluate(load("standard"), Request(code=code), reach=HOST).decision is Decision.ALLOW
