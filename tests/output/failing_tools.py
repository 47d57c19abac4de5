"""Programs that fail, to be really run; and what others, which are not on every host, print when they fail."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Failing(NamedTuple):
    name: str
    tool: str
    command: str
    """For bash, in a directory with the files."""
    kinds: dict[str, dict[str, Any]]
    """What is to be found, in this order."""
    files: Mapping[str, str] = MappingProxyType({})


PYTHON = sys.executable

FAILING = (
    Failing(
        "a-chain",
        "bash",
        f"{PYTHON} k.py",
        {
            "python.exception": {
                "exception": "RuntimeError",
                "message": "no config",
                "line": 5,
                "function": "<module>",
            },
            "python.cause": {"exception": "json.decoder.JSONDecodeError", "line": 3},
        },
        {
            "k.py": "import json\ntry:\n    json.loads('{')\nexcept ValueError as e:\n"
            "    raise RuntimeError('no config') from e\n"
        },
    ),
    Failing(
        "in-a-handler",
        "bash",
        f"{PYTHON} k.py",
        {"python.exception": {"exception": "NameError", "line": 4}, "python.cause": {"exception": "ZeroDivisionError"}},
        {"k.py": "try:\n    1 / 0\nexcept Exception:\n    nope\n"},
    ),
    Failing(
        "a-library-frame",
        "bash",
        f"{PYTHON} k.py",
        {"python.exception": {"line": 3, "function": "f", "exception": "json.decoder.JSONDecodeError"}},
        {"k.py": "import json\ndef f():\n    json.loads('[')\nf()\n"},
    ),
    Failing(
        "a-group",
        "bash",
        f"{PYTHON} e.py",
        {"python.exception": {"exception": "ExceptionGroup", "message": "eg (2 sub-exceptions)", "line": 1}},
        {"e.py": "raise ExceptionGroup('eg', [ValueError('a'), TypeError('b')])\n"},
    ),
    Failing(
        "recursion",
        "bash",
        f"{PYTHON} r.py",
        {"python.exception": {"exception": "RecursionError", "function": "f", "line": 1}},
        {"r.py": "def f(): f()\nf()\n"},
    ),
    Failing(
        "syntax",
        "bash",
        f"{PYTHON} i.py",
        {"python.syntax": {"exception": "SyntaxError", "line": 2, "message": "invalid syntax"}},
        {"i.py": "x = 1\ny = = 2\n"},
    ),
    Failing(
        "syntax-of-an-import",
        "bash",
        f"{PYTHON} -c 'import i'",
        {"python.syntax": {"exception": "IndentationError", "line": 2}},
        {"i.py": "def f():\nreturn 1\n"},
    ),
    Failing(
        "several-lines-of-message",
        "bash",
        f"{PYTHON} m.py",
        {"python.exception": {"exception": "ValueError", "message": "one", "line": 1}},
        {"m.py": "raise ValueError('one\\ntwo\\nthree')\n"},
    ),
    Failing(
        "unittest",
        "bash",
        f"{PYTHON} test_u.py",
        {
            "python.exception": {"exception": "AssertionError", "line": 4, "function": "test_a"},
            "tool.unittest": {"function": "test_a"},
        },
        {
            "test_u.py": "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n"
            "        self.assertEqual(1, 2)\nunittest.main()\n"
        },
    ),
    Failing("no-such-script", "bash", f"{PYTHON} nope.py", {"file.missing": {}}),
    Failing("pip", "bash", f"{PYTHON} -m pip install --disable-pip-version-check '??'", {"tool.pip": {}}),
    Failing(
        "no-such-command", "bash", "nosuch", {"shell.command": {"message": "nosuch: command not found", "line": 1}}
    ),
    Failing("sh", "sh", "sh -c nosuch", {"shell.command": {}}),
    Failing(
        "unbound", "bash", "bash u.sh", {"shell.unbound": {"file": "u.sh", "line": 2}}, {"u.sh": "set -u\n: $NOPE\n"}
    ),
    Failing(
        "shell-syntax",
        "bash",
        "bash f.sh",
        {"shell.syntax": {"file": "f.sh", "line": 3}},
        {"f.sh": "if true; then\n:\n"},
    ),
    Failing("a-missing-file", "bash", "cat /nope", {"file.missing": {"file": "/nope"}}),
    Failing("a-quoted-name", "bash", "ls /nope", {"file.missing": {"file": "/nope"}}),
    Failing("tar", "tar", "tar xf nope.tar", {"file.missing": {"file": "nope.tar"}}),
    Failing("not-executable", "bash", "./x", {"file.denied": {"file": "./x"}}, {"x": "data"}),
    Failing("a-full-disk", "bash", "echo x > /dev/full", {"resource.disk": {}}),
    Failing(
        "gcc",
        "gcc",
        "gcc a.c",
        {"tool.compiler": {"file": "a.c", "line": 1, "column": 21}},
        {"a.c": "int main(){ return 0 }\n"},
    ),
    Failing(
        "no-header",
        "gcc",
        "gcc b.c",
        {"tool.compiler": {"file": "b.c", "line": 1, "message": "nope.h: No such file or directory"}},
        {"b.c": "#include <nope.h>\n"},
    ),
    Failing("linker", "gcc", "gcc l.c", {"tool.linker": {}}, {"l.c": "void nope(void);\nint main(){ nope(); }\n"}),
    Failing(
        "segfault",
        "gcc",
        "gcc -o g g.c && ./g",
        {"crash.signal": {"exception": "SIGSEGV"}},
        {"g.c": "int main(){*(volatile int*)0=1;}"},
    ),
    Failing(
        "segfault-in-a-script",
        "gcc",
        "gcc -o g g.c; bash -c './g; exit 3'",
        {"crash.signal": {"message": "Segmentation fault", "line": 1}},
        {"g.c": "int main(){*(volatile int*)0=1;}"},
    ),
    Failing(
        "assertion",
        "gcc",
        "gcc -o as as.c && ./as",
        {"crash.assertion": {"file": "as.c", "line": 2, "function": "main"}, "crash.signal": {"exception": "SIGABRT"}},
        {"as.c": "#include <assert.h>\nint main(){ assert(0); }\n"},
    ),
    Failing(
        "make",
        "make",
        "make",
        {"shell.command": {}, "tool.make": {"file": "Makefile", "line": 2, "function": "all"}},
        {"Makefile": "all:\n\tnosuch --x || bash -c nosuch\n"},
    ),
    Failing("makefile", "make", "make", {"tool.make": {"file": "Makefile", "line": 2}}, {"Makefile": "all:\n    x\n"}),
    Failing("no-target", "make", "make nope", {"tool.make": {}}),
    Failing("git", "git", "GIT_CEILING_DIRECTORIES=/ git -C / status", {"tool.git": {}}),
    Failing(
        "conflict",
        "git",
        "git init -q . && git config user.email a@b.invalid && git config user.name x && echo a>f && git add f && "
        "git commit -qm a && git checkout -qb b && echo b>f && git commit -qam b && git checkout -q - && echo c>f && "
        "git commit -qam c && git merge b",
        {"tool.git.conflict": {"file": "f"}},
    ),
    Failing(
        "node",
        "node",
        "node x.js",
        {"node.exception": {"exception": "TypeError", "message": "bad", "line": 1, "column": 21, "function": "f"}},
        {"x.js": "function f(){ throw new TypeError('bad'); }\nf();\n"},
    ),
    Failing(
        "node-syntax",
        "node",
        "node y.js",
        {"node.exception": {"exception": "SyntaxError", "line": 2}},
        {"y.js": "let a = 1;\nlet x = ;\n"},
    ),
    Failing(
        "perl",
        "perl",
        "perl x.pl",
        {"perl.error": {"file": "x.pl", "line": 2}},
        {"x.pl": "my $z = 0;\nmy $x = 1/$z;\n"},
    ),
    Failing("curl", "curl", "curl -sS http://127.0.0.1:1/", {"tool.curl": {}}),
    Failing("jq", "jq", "echo '{' | jq .", {"tool.jq": {}}),
)

# As they were printed on a host that has the tool; where it is installed, this is what it prints.
PRINTED: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "java": (
        'Exception in thread "main" java.lang.IllegalStateException: boom\n\tat Main.f(Main.java:3)\n'
        "\tat Main.main(Main.java:7)\nCaused by: java.lang.RuntimeException: root\n\t... 2 more\n",
        {
            "java.exception": {"file": "Main.java", "line": 3, "exception": "java.lang.IllegalStateException"},
            "java.cause": {"message": "root"},
        },
    ),
    "javac": (
        "Bad.java:1: error: illegal start of expression\npublic class Bad { int x = }\n               ^\n1 error\n",
        {"tool.compiler": {"file": "Bad.java", "line": 1}},
    ),
    "rust": (
        "\nthread 'main' (4836) panicked at m.rs:1:54:\nindex out of bounds: the len is 0 but the index is 3\n"
        "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n",
        {
            "rust.panic": {
                "file": "m.rs",
                "line": 1,
                "column": 54,
                "message": "index out of bounds: the len is 0 but the index is 3",
            }
        },
    ),
    "rust-before-1.73": (
        "thread 'main' panicked at 'oh no', src/main.rs:2:5\nnote: run with `RUST_BACKTRACE=1`\n",
        {"rust.panic": {"file": "src/main.rs", "line": 2, "message": "oh no"}},
    ),
    "rustc": (
        "error[E0425]: cannot find value `nope` in this scope\n --> n.rs:1:12\n  |\n1 | fn main(){ nope; }\n",
        {"tool.compiler": {"file": "n.rs", "line": 1, "column": 12}},
    ),
    "go": (
        "panic: runtime error: index out of range [5] with length 3\n\ngoroutine 1 [running]:\nmain.main()\n"
        "\t/tmp/x.go:5 +0x1d\nexit status 2\n",
        {"go.panic": {"file": "/tmp/x.go", "line": 5}},
    ),
    "go-build": (
        "# x\n./main.go:5:2: undefined: y\n",
        {"tool.compiler": {"file": "./main.go", "line": 5, "column": 2}},
    ),
    "cpp": (
        "terminate called after throwing an instance of 'std::runtime_error'\n  what():  bad\n",
        {"crash.exception": {"exception": "std::runtime_error"}},
    ),
    "pytest": (
        ">       assert 1 == 2\nE       assert 1 == 2\n\ntest_x.py:2: AssertionError\n"
        "===== short test summary info =====\nFAILED test_x.py::test_a - assert 1 == 2\n1 failed in 0.06s\n",
        {"tool.pytest": {"file": "test_x.py", "function": "test_a", "message": "assert 1 == 2"}},
    ),
    "sqlite": (
        "1\nParse error near line 2: no such table: t\n",
        {"sql.error": {"line": 2, "message": "no such table: t"}},
    ),
    "psql": (
        'psql:q.sql:2: ERROR:  relation "t" does not exist\nLINE 1: select * from t;\n',
        {"sql.error": {"file": "q.sql", "line": 2}},
    ),
    "mysql": ("ERROR 1146 (42S02) at line 1: Table 'x.t' doesn't exist\n", {"sql.error": {"line": 1}}),
    "npm": (
        "npm error code E404\nnpm error 404 Not Found - GET https://registry.example/nope - Not found\n",
        {"tool.npm": {"message": "code E404"}},
    ),
    "docker": (
        "Cannot connect to the Docker daemon at unix:///nope.sock. Is the docker daemon running?\n",
        {"tool.docker": {}},
    ),
    "apt": ("Reading package lists...\nE: Unable to locate package nope\n", {"tool.apt": {}}),
    "dpkg": ("dpkg: error: cannot access archive 'nope.deb': No such file or directory\n", {"tool.dpkg": {}}),
    "oom": (
        "<--- Last few GCs --->\nFATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory\n",
        {"resource.memory": {}},
    ),
}

# Of programs that ended well. Some speak of errors; none had one.
ORDINARY = (
    "0 errors, 0 warnings\n",
    "error handling done\n",
    "Build succeeded.\n    0 Warning(s)\n    0 Error(s)\n",
    "===== 12 passed in 0.31s =====\n",
    "The manual says: look for 'Traceback (most recent call last):' in the log.\n",
    "Traceback (most recent call last):\nis what Python prints first.\n",
    'docs: File "x.py", line 3 shows where.\nSee also: errors.\n',
    "2026-01-01 ERROR worker: job 7 failed, retrying\n2026-01-01 INFO worker: job 7 done\n",
    "grep: found 3 lines with Permission denied\n/var/log/auth.log:17: Permission denied (publickey)\n",
    "cat: /nope: No such file or directory\n",
    "panic: at the disco\n",
    "thread 'main' panicked at the thought of it\n",
    "TypeError: a class of exceptions\n    at the top of this page there is a list\n",
    "java.lang.RuntimeException: a class\n    at least one of them\n",
    "error: none\nfatal: no\nE: 5\n",
    "make: Nothing to be done for 'all'.\n",
    "CONFLICT (content): Merge conflict in f\n",
    "| ValueError | when a value is wrong |\n| --- | --- |\n",
    "x.c:3:5: error: is what gcc prints\n",
)

# Of programs that failed, without saying why in any way that is known.
UNKNOWN = (
    "3 errors were found\n",
    "error handling done\n",
    "it did not work: Permission denied was not the reason\n",
    "Traceback (most recent call last):\nis what Python prints first.\n",
    "the file is not found\n",
    "12 passed in 0.31s\n",
    "see line 3: nothing\n",
    "http://host:80/x: ok\n",
)
