"""Ordinary programs: how they begin, what they read, how they end, and the value they return."""

from __future__ import annotations

import re
import sys
from typing import Any

from redoma import Status

from .ordinary_program import Program, python

_INF = float("inf")

_VALUES: tuple[tuple[str, str, Any], ...] = (
    ("an int", "x = 20\nx + 22", 42),
    ("a negative int", "-(2 ** 63)", -(2**63)),
    ("a big int", "3 ** 300", 3**300),
    ("a bool", "1 < 2", True),
    ("a float", "0.1 + 0.2", 0.1 + 0.2),
    ("infinity", "[float('inf'), -float('inf')]", [_INF, -_INF]),
    ("not a number", "float('nan')", float("nan")),
    ("text", "'olá, 日本 🦜 \\n \\t fim'", "olá, 日本 🦜 \n \t fim"),
    ("empty text", "''", ""),
    ("bytes", "bytes(range(256))", bytes(range(256))),
    ("a list", "[n * n for n in range(5)]", [0, 1, 4, 9, 16]),
    ("a tuple", "divmod(17, 5)", (3, 2)),
    ("a set", "{3, 1, 2}", {1, 2, 3}),
    ("a frozenset", "frozenset([7])", frozenset([7])),
    ("a dict", "{'a': 1, 2: 'b', (1, 2): None, False: 1.5}", {"a": 1, 2: "b", (1, 2): None, False: 1.5}),
    ("nested data", "{'rows': [{'tags': ('x', b'y')}, []], '': None}", {"rows": [{"tags": ("x", b"y")}, []], "": None}),
    ("None", "None", None),
    ("nothing, when the last line is no expression", "x = 5", None),
    ("a call", "def f():\n    return {'answer': 42}\n\nf()", {"answer": 42}),
    ("several lines", "sum([\n    1,\n    2,\n])", 3),
)

_ODD_VALUES: tuple[tuple[str, str, str | re.Pattern[str]], ...] = (
    ("an object as its repr", "import pathlib\npathlib.PurePosixPath('/a/b')", "PurePosixPath('/a/b')"),
    ("an instance without a repr", "class A: pass\nA()", re.compile(r"<__main__\.A object at 0x[0-9a-f]+>")),
    ("a function", "def f(): pass\nf", re.compile(r"<function f at 0x[0-9a-f]+>")),
    ("a complex number", "2 + 3j", "(2+3j)"),
    ("a range", "range(3)", "range(0, 3)"),
    ("a list that holds an object", "from fractions import Fraction\n[1, Fraction(1, 2)]", "[1, Fraction(1, 2)]"),
    ("a numpy array", "import numpy as np\nnp.arange(4).reshape(2, 2)", "array([[0, 1],\n       [2, 3]])"),
    (
        "a data frame",
        "import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})",
        "   a  b\n0  1  x\n1  2  y",
    ),
)


PROGRAMS: tuple[Program, ...] = (
    *(python(f"the value of a program is {name}", code, value=value) for name, code, value in (*_VALUES, *_ODD_VALUES)),
    python(
        "a value beside what was printed",
        """
        print("printed")
        [1, 2]
        """,
        "printed",
        value=[1, 2],
    ),
    python(
        "the value of a program whose last expression prints is None",
        "print('x')",
        "x",
        value=None,
    ),
    python(
        "input is read line by line and to the end",
        """
        import sys

        name = input("Nome? ")
        numbers = [int(n) for n in input().split()]
        print(name, sum(numbers))
        print(sys.stdin.read().split("|"))
        try:
            input()
        except EOFError:
            print("end of input")
        """,
        """
        Nome? Zoë 6
        ['resto', ' de tudo']
        end of input
        """,
        stdin="Zoë\n1 2 3\nresto| de tudo",
    ),
    python(
        "binary input, and no input at all",
        """
        import fileinput
        import sys

        print(sys.stdin.buffer.read(), sys.stdin.isatty(), list(fileinput.input(files=["lines.txt"])))
        """,
        "b'' False ['a\\n', 'b\\n']",
        files={"lines.txt": "a\nb\n"},
    ),
    python(
        "a program knows what it is called and where it is",
        """
        import os
        import sys

        print([os.path.basename(a) for a in sys.argv], __name__, __file__ == sys.argv[0], os.path.isfile(__file__))
        print(os.getcwd() in map(os.path.abspath, sys.path), sys.flags.interactive)
        print(os.path.exists(sys.executable), os.access(sys.executable, os.X_OK), sys.version_info[:2] == VERSION)
        print(sys.stdin.fileno(), sys.stdout.fileno(), sys.stderr.fileno(), os.environ["X"])
        """.replace("VERSION", repr(sys.version_info[:2])),
        """
        ['main.py'] __main__ True True
        True 0
        True True True
        0 1 2 valor
        """,
        env={"X": "valor"},
    ),
    python(
        "the order of both streams is kept within each",
        """
        import os
        import sys

        sys.stdout.write("one ")
        sys.stdout.flush()
        os.write(1, b"two ")
        print("three", flush=True)
        os.system("echo four")
        sys.stderr.write("warn\\n")
        print("five", end="")
        """,
        re.compile(r"one two three\nfour\nfive"),
        stderr="warn\n",
    ),
    python("an exit code of its own", "import sys\nsys.exit(7)", exit_code=7),
    python("an exit code of zero", "raise SystemExit(0)"),
    python("an exit without a word", "print('bye')\nexit()", "bye"),
    python(
        "an exit with a message",
        "import sys\nsys.exit('não deu: faltou açúcar')",
        stderr="não deu: faltou açúcar\n",
        exit_code=1,
    ),
    python("an exit without goodbye", "import os\nos._exit(3)", exit_code=3),
    python(
        "an abort is named",
        "import os\nos.abort()",
        stderr=None,
        status=Status.KILLED,
        exit_code=134,
        error="SIGABRT",
    ),
    python(
        "a traceback shows the lines it speaks of",
        """
        def divide(a, b):
            return a / b  # the culprit

        print("before")
        divide(1, 0)
        """,
        "before",
        stderr=re.compile(
            r'Traceback \(most recent call last\):\n  File "[^"]*main\.py", line 5, in <module>\n    divide\(1, 0\)\n'
            r'(?: *[~^]+\n)?  File "[^"]*main\.py", line 2, in divide\n    return a / b  # the culprit\n'
            r"(?: *[~^]+\n)?ZeroDivisionError: division by zero\n"
        ),
        exit_code=1,
    ),
    python(
        "a syntax error points at its place",
        "x = 1\nprint('never')\nif x = 2: pass",
        stderr=re.compile(r'  File "[^"]*main\.py", line 3\n    if x = 2: pass\n +\^+\nSyntaxError: .*\n'),
        exit_code=1,
    ),
    python(
        "a program reads its own source and frames",
        """
        import inspect
        import traceback

        def area(r: float) -> float:
            '''The area of a circle.'''
            return 3.14 * r * r

        print(inspect.getsource(area).splitlines()[0], "|", inspect.signature(area), "|", inspect.getdoc(area))
        try:
            area("x")
        except TypeError:
            print("return 3.14 * r * r" in traceback.format_exc(), traceback.extract_stack()[-1].line[:5])
        """,
        """
        def area(r: float) -> float: | (r: float) -> float | The area of a circle.
        True print
        """,
    ),
    python(
        "what was registered for the end is done at the end, in order",
        """
        import atexit
        import weakref

        class Thing:
            pass

        thing = Thing()
        weakref.finalize(thing, print, "finalizer")
        atexit.register(print, "first registered, last run")
        atexit.register(print, "last registered, first run")
        try:
            print("body")
            raise SystemExit(4)
        finally:
            print("finally")
        """,
        """
        body
        finally
        last registered, first run
        first registered, last run
        finalizer
        """,
        exit_code=4,
    ),
    python(
        "handlers for the end run after an exception too",
        """
        import atexit

        atexit.register(lambda: open("end.txt", "w").write("reached"))
        raise KeyError("oops")
        """,
        stderr=re.compile(r"Traceback .*KeyError: 'oops'\n", re.DOTALL),
        exit_code=1,
        brings={"end.txt": b"reached"},
    ),
    python(
        "warnings and logs go to stderr",
        """
        import logging
        import logging.handlers
        import warnings

        warnings.warn("cuidado")
        logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s")
        logging.getLogger("app").info("pronto")
        logging.getLogger("app").debug("hidden")
        file = logging.handlers.RotatingFileHandler("app.log", maxBytes=1000, backupCount=1)
        logging.getLogger("file").addHandler(file)
        try:
            1 / 0
        except ZeroDivisionError:
            logging.getLogger("file").error("failed: %s", "x")
        """,
        stderr=re.compile(
            r'[^"\n]*main\.py:5: UserWarning: cuidado\n  warnings\.warn\("cuidado"\)\n'
            r"INFO:app:pronto\nERROR:file:failed: x\n"
        ),
        brings={"app.log": b"failed: x\n"},
    ),
    python(
        "unit tests and documentation tests run",
        """
        import doctest
        import unittest
        from unittest import mock

        def twice(n):
            '''
            >>> twice(4)
            8
            >>> twice("ab")
            'abab'
            '''
            return n * 2

        class TwiceTest(unittest.TestCase):
            def test_number(self):
                self.assertEqual(twice(2), 4)

            def test_mock(self):
                with mock.patch("doctest.testmod", return_value=3):
                    self.assertEqual(doctest.testmod(), 3)

            @unittest.expectedFailure
            def test_wrong(self):
                self.assertEqual(twice(2), 5)

        print(doctest.testmod())
        unittest.main(argv=["tests"])
        """,
        "TestResults(failed=0, attempted=2)",
        stderr=re.compile(r"\.\.x\n-+\nRan 3 tests in [\d.]+s\n\nOK \(expected failures=1\)\n"),
    ),
    python(
        "an object that lives to the end has its last words, with all of the program around it",
        """
        import os

        def describe(thing):
            return f"{thing.name} in {os.path.basename('/a/b')}"

        class Thing:
            def __init__(self, name):
                self.name, self.me = name, self

            def __del__(self):
                print("gone:", describe(self))

        kept = Thing("kept")
        """,
        "gone: kept in b",
    ),
    python(
        "the streams are pipes, and say so",
        """
        import os
        import stat
        import sys

        print([stream.seekable() for stream in (sys.stdin, sys.stdout, sys.stderr)])
        print([stat.S_ISFIFO(os.fstat(number).st_mode) for number in range(3)])
        print([os.isatty(number) for number in range(3)])
        import pandas as pd

        print(pd.read_csv(sys.stdin)["b"].sum())
        """,
        """
        [False, False, False]
        [True, True, True]
        [False, False, False]
        6
        """,
        stdin="a,b\n1,2\n3,4\n",
    ),
    python(
        "an exception in a thread is told, and the program goes on",
        """
        import threading

        thread = threading.Thread(target=lambda: [][1], name="worker")
        thread.start()
        thread.join()
        print("goes on", threading.get_native_id() == threading.main_thread().native_id)
        """,
        "goes on True",
        stderr=re.compile(r"Exception in thread worker:\nTraceback .*main\.py.*IndexError: .*\n", re.DOTALL),
    ),
    python(
        "a forked child may run to the end as well, and the value is the parent's",
        """
        import os

        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
        print("parent" if pid else "child")
        "parent" if pid else "child"
        """,
        """
        child
        parent
        """,
        value="parent",
    ),
    python("an exit code below zero", "import sys\nsys.exit(-1)", exit_code=255),
    python(
        "an interrupt that nobody handles ends it as the signal would",
        "raise KeyboardInterrupt",
        stderr=re.compile(r"Traceback .*\nKeyboardInterrupt\n", re.DOTALL),
        status=Status.KILLED,
        exit_code=130,
        error="SIGINT",
    ),
)
