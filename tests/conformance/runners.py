"""Every backend with the programs the suite runs on it, each in a language of that backend."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from redoma import Answer, Backend, FakeBackend, Status
from redoma.backends.jail import JailBackend
from redoma.backends.jail.lean import LeanBackend
from redoma.backends.monty.backend import MontyBackend
from redoma.backends.native.backend import NativeBackend
from redoma.models import Language


class Runner(msgspec.Struct, frozen=True, kw_only=True):
    make: Callable[[], Backend] | None = None
    runtime: str | None = None
    """Instead of `make`: in containers of this runtime."""
    cluster: bool = False
    """Instead of `make`: on a node of a Ray cluster, in cells there."""
    language: Language
    programs: dict[str, str]


_PYTHON = {
    "hello": "print('hello')",
    "is empty": "",
    "both streams": "import sys\nprint('out')\nprint('err', file=sys.stderr)",
    "unicode": "print('Olá, A³X! 你好 🦜')",
    "no final newline": "print('end', end='')",
    "fails": "print('before')\nraise ValueError('boom')",
    "reads input": "print(input() + '|' + input())",
    "reads a variable": "import os\nprint(os.getenv('GREETING'))",
    "reads all variables": "import os\nprint(sorted(os.environ))",
    "reads a file": "print(open('data/in.txt').read())",
    "lists its directory": "import os\nprint(sorted(os.listdir('.')))",
    "writes a file": "open('new.txt', 'w').write('x')\nprint(open('new.txt').read())",
    "many lines": "for i in range(5000): print('line', i)",
    "floods": "while True: print('x' * 1000)",
    "sleeps after printing": "import time\nprint('partial', flush=True)\ntime.sleep(60)",
    "loops after printing": "print('partial', flush=True)\nwhile True: pass",
    "takes all memory": "x = []\nwhile True: x.append('a' * 1000000)",
    "sleeps a little": "import time\ntime.sleep(0.2)\nprint('done')",
    "does not parse": "def f(:",
}

_BASH = {
    "hello": "echo hello",
    "is empty": "",
    "both streams": "echo out; echo err >&2",
    "unicode": "echo 'Olá, A³X! 你好 🦜'",
    "no final newline": "printf end",
    "fails": "echo before; exit 1",
    "exits with 7": "exit 7",
    "prints a little too much and ends": "printf '%060000d' 0; printf '%060000d' 0 >&2",
    "is killed": "kill -SEGV $$",
    "reads input": 'read a; read b; echo "$a|$b"',
    "reads a variable": 'echo "$GREETING"',
    "reads all variables": "env | grep -v '^_=\\|^PWD=\\|^SHLVL=\\|^OLDPWD=\\|^PATH=' || echo '[]'",
    "reads a file": "cat data/in.txt",
    "lists its directory": "ls -A | tr '\\n' ' '",
    "writes a file": "printf x > new.txt; cat new.txt",
    "many lines": 'for ((i = 0; i < 5000; i++)); do echo "line $i"; done',
    "floods": "yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "sleeps after printing": "echo partial; sleep 60",
    "loops after printing": "echo partial; while :; do :; done",
    "takes all memory": "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done",
    "sleeps a little": "sleep 0.2; echo done",
    "does not parse": "if then (",
    "detaches children": "setsid sleep 61 & (sleep 62 &) ; echo started",
    "ignores signals": "trap '' TERM INT HUP; echo partial; while :; do sleep 63; done",
}

_NATIVE_PYTHON = _PYTHON | {
    "exits with 7": "import sys\nsys.exit(7)",
    "prints a little too much and ends": "import os\nos.write(1, b'x' * 60000)\nos.write(2, b'y' * 60000)",
    "is killed": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
    "reads all variables": "import os\nprint(sorted(name for name in os.environ if name not in ('LC_CTYPE', 'PATH')))",
    "detaches children": (
        "import os, time\n"
        "for _ in range(2):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0: time.sleep(61)\n"
        "        os._exit(0)\n"
        "print('started')"
    ),
    "ignores signals": (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('partial', flush=True)\ntime.sleep(60)"
    ),
}


# A cell always has these variables, so that programs find what they expect.
_JAIL_PYTHON = _NATIVE_PYTHON | {
    "reads all variables": "import os\nprint(sorted(set(os.environ) - {'HOME', 'LANG', 'PATH', 'LD_LIBRARY_PATH'}))",
}
_JAIL_BASH = _BASH | {
    "reads all variables": (
        "env | grep -v '^_=\\|^PWD=\\|^SHLVL=\\|^OLDPWD=\\|^HOME=\\|^LANG=\\|^PATH=\\|^LD_LIBRARY_PATH=' || echo '[]'"
    ),
}

# A lean cell also has this one, because it has no private /tmp.
_LEAN_PYTHON = _JAIL_PYTHON | {
    "reads all variables": (
        "import os\nprint(sorted(set(os.environ) - {'HOME', 'LANG', 'PATH', 'LD_LIBRARY_PATH', 'TMPDIR'}))"
    ),
}
_LEAN_BASH = _JAIL_BASH | {
    "reads all variables": _JAIL_BASH["reads all variables"].replace("^HOME=", "^HOME=\\|^TMPDIR=")
}

_DOCKER_PYTHON = _NATIVE_PYTHON | {
    "reads all variables": "import os\nprint(sorted(set(os.environ) - {'HOME', 'LANG', 'PATH', 'LC_CTYPE'}))",
}

_ANSWERS = {
    "hello": Answer(stdout="hello\n"),
    "both streams": Answer(stdout="out\n", stderr="err\n"),
    "unicode": Answer(stdout="Olá, A³X! 你好 🦜\n"),
    "no final newline": Answer(stdout="end"),
    "fails": Answer(stdout="before\n", status=Status.ERROR),
    "exits with 7": Answer(status=Status.ERROR, exit_code=7),
    "many lines": Answer(stdout="".join(f"line {i}\n" for i in range(5000))),
    "floods": Answer(stdout="x" * 3_000_000),
    "sleeps after printing": Answer(stdout="partial\n", delay=60),
    "takes all memory": Answer(status=Status.MEMORY),
    "sleeps a little": Answer(stdout="done\n", delay=0.2),
}


def _fake() -> Backend:
    return FakeBackend(*(msgspec.structs.replace(answer, when=name) for name, answer in _ANSWERS.items()))


RUNNERS = {
    "monty": Runner(make=MontyBackend, language="python", programs=_PYTHON),
    "jail-python": Runner(make=JailBackend, language="python", programs=_JAIL_PYTHON),
    "jail-bash": Runner(make=JailBackend, language="bash", programs=_JAIL_BASH),
    "lean-python": Runner(make=LeanBackend, language="python", programs=_LEAN_PYTHON),
    "lean-bash": Runner(make=LeanBackend, language="bash", programs=_LEAN_BASH),
    "native-python": Runner(make=NativeBackend, language="python", programs=_NATIVE_PYTHON),
    "native-bash": Runner(make=NativeBackend, language="bash", programs=_BASH),
    "docker-python": Runner(runtime="runc", language="python", programs=_DOCKER_PYTHON),
    "docker-bash": Runner(runtime="runc", language="bash", programs=_JAIL_BASH),
    "gvisor-python": Runner(runtime="runsc", language="python", programs=_DOCKER_PYTHON),
    "gvisor-bash": Runner(runtime="runsc", language="bash", programs=_JAIL_BASH),
    "ray-python": Runner(cluster=True, language="python", programs=_JAIL_PYTHON),
    "ray-bash": Runner(cluster=True, language="bash", programs=_JAIL_BASH),
    "fake": Runner(make=_fake, language="python", programs={name: name for name in _ANSWERS}),
}
