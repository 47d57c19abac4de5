"""Messages that programs print on failures, as data: patterns for single lines.

The patterns are RE2's and match a whole line, so matching takes time linear in its length. If several match, the first
counts. Each has example lines, which a test checks.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

LOCATED, TOOL, GENERAL, SUMMARY = range(4)
"""How much a pattern tells, best first: where it failed, what failed, the system's error, or only that it failed."""


class Sign(NamedTuple):
    """A pattern for the lines by which one kind of failure is recognised. Its groups, all optional, are named after the
    fields of `Diagnosis`: message, file, line, column, exception, function.
    """

    kind: str
    rank: int
    pattern: str
    examples: tuple[str, ...]


_NUMBER = r"[0-9]{1,9}"
_AT = rf"(?P<file>[^\s:][^:]*):(?P<line>{_NUMBER})"
# A message about a file: `cat: /x: …`, `ls: cannot access '/x': …`, also with typographic quotation marks.
_QUOTE = r"['\"`\x{2018}\x{2019}]"
_NAMED = (
    rf"(?:[^:]+: )*(?P<message>(?:[^:]*{_QUOTE})?(?P<file>[^:'\"`\x{{2018}}\x{{2019}}]+){_QUOTE}?: "
    r"(?:\[Errno [0-9]+\] )?"
)
_SHELL = rf"(?P<file>[^:]+): (?:line )?(?P<line>{_NUMBER}): "

LINES: tuple[Sign, ...] = (
    # --- shells
    Sign("shell.command", LOCATED, rf"{_SHELL}(?P<message>[^:]+: (?:command )?not found)",
         ("/run/script: line 1: nosuch: command not found", "sh: 1: nosuch: not found")),
    Sign("shell.command", LOCATED, r"(?:bash|zsh|sh): (?P<message>.+: command not found)",
         ("bash: x: command not found",)),
    Sign("shell.unbound", LOCATED,
         rf"{_SHELL}(?P<message>[^:]+: (?:unbound variable|parameter (?:not set|null or not set).*))",
         ("x.sh: line 3: HOST: unbound variable", "x.sh: 3: HOST: parameter not set")),
    Sign("shell.syntax", LOCATED,
         rf"{_SHELL}(?P<message>(?:[Ss]yntax error|unexpected EOF|conditional binary operator|bad substitution).*)",
         ("x.sh: line 2: syntax error near unexpected token `fi'",
          "x.sh: line 9: unexpected EOF while looking for matching `\"'", 'sh: 1: Syntax error: "(" unexpected')),
    # --- memory and crashes
    Sign("resource.memory", TOOL,
         r"(?P<message>.*(?:JavaScript heap out of memory|java\.lang\.OutOfMemoryError|[Cc]annot allocate memory"
         r"|[Oo]ut of memory|std::bad_alloc|fatal error: runtime: out of memory).*)",
         ("fork: Cannot allocate memory",
          "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory")),
    Sign("resource.disk", TOOL, r"(?P<message>.*(?:No space left on device|Disk quota exceeded).*)",
         ("cp: error writing '/x': No space left on device", "OSError: [Errno 28] No space left on device")),
    Sign("resource.open_files", TOOL, r"(?P<message>.*(?:Too many open files|EMFILE: too many).*)",
         ("bash: start_pipeline: pgrp pipe: Too many open files", "cat: x: Too many open files")),
    Sign("resource.file_size", TOOL, r"(?P<message>.*(?:File size limit exceeded|File too large).*)",
         ("/run/script: line 1:     4 File size limit exceededhead -c 300000000 /dev/zero > f",
          "cp: error writing 'x': File too large")),
    Sign("resource.processes", TOOL, r"(?P<message>.*\bfork: (?:retry: )?Resource temporarily unavailable.*)",
         ("/run/script: fork: retry: Resource temporarily unavailable",)),
    Sign("crash.memory", TOOL,
         r"(?P<message>==[0-9]+==\s?ERROR: AddressSanitizer: .+|\*\*\* stack smashing detected \*\*\*.*"
         r"|(?:free|malloc|realloc)\(\): .+|(?:double free or corruption|munmap_chunk\(\): invalid pointer).*)",
         ("free(): invalid pointer", "==12==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x6")),
    Sign("crash.assertion", LOCATED,
         rf"[^:]+: {_AT}: (?P<function>[^:]+(?:::[^:]+)*): (?P<message>Assertion .+ failed\.)",
         ("a.out: x.c:3: main: Assertion `0' failed.",)),
    Sign("crash.exception", TOOL, r"(?P<message>terminate called after throwing an instance of '(?P<exception>[^']+)')",
         ("terminate called after throwing an instance of 'std::runtime_error'",)),
    Sign("crash.signal", TOOL,
         rf"(?:{_SHELL}\s*[0-9]+ )?(?P<message>(?:Segmentation fault|Aborted|Bus error|Illegal instruction"
         r"|Floating point exception)(?: +\(core dumped\))?)(?: .*)?",
         ("x.sh: line 2:  1234 Segmentation fault      (core dumped) ./a.out", "Segmentation fault",
          "Aborted (core dumped)")),
    # --- compilers, and programs with the same format
    Sign("tool.compiler", LOCATED, rf"{_AT}:(?:(?P<column>{_NUMBER}):)? (?:fatal )?[Ee]rror: (?P<message>.+)",
         ("x.c:3:5: error: expected ';' before 'return'",
          "src/x.c:1:10: fatal error: nope.h: No such file or directory", "Foo.java:3: error: ';' expected")),
    Sign("tool.compiler", LOCATED,
         rf"(?P<file>\S+\.tsx?)(?:\((?P<line>{_NUMBER}),(?P<column>{_NUMBER})\))?: error (?P<message>TS[0-9]+: .+)",
         ("src/a.ts(1,7): error TS2322: Type 'string' is not assignable to type 'number'.",)),
    Sign("tool.compiler", LOCATED, rf"(?P<file>\S+\.go):(?P<line>{_NUMBER}):(?P<column>{_NUMBER}): (?P<message>.+)",
         ("./main.go:5:2: undefined: y",)),
    Sign("tool.linker", TOOL, r"(?P<message>(?:.*: undefined reference to .+|.*\bld: cannot find .+))",
         ("x.c:(.text+0x5): undefined reference to `nope'",
          "/usr/bin/ld: cannot find -lnope: No such file or directory")),
    Sign("tool.linker", SUMMARY, r"collect2: error: (?P<message>.+)", ("collect2: error: ld returned 1 exit status",)),
    Sign("tool.make", SUMMARY, rf"(?:.*/)?g?make(?:\[[0-9]+\])?: \*\*\* \[(?:(?P<file>[^:\]]+):(?P<line>{_NUMBER}): )?"
         r"(?P<function>[^\]]+)\] (?P<message>.+)",
         ("make: *** [Makefile:3: all] Error 2", "make[1]: *** [sub/x.mk:12: x.o] Segmentation fault")),
    Sign("tool.make", LOCATED, rf"{_AT}: \*\*\* (?P<message>.+)", ("Makefile:3: *** missing separator.  Stop.",)),
    Sign("tool.make", TOOL, r"(?:.*/)?g?make(?:\[[0-9]+\])?: \*\*\* (?P<message>.+)",
         ("make: *** No rule to make target 'x'.  Stop.",)),
    # --- tests
    Sign("tool.pytest", LOCATED,
         r"(?:FAILED|ERROR) (?P<file>[^\s:]+\.py)(?:::(?P<function>\S+))?(?: - (?P<message>.+))?",
         ("FAILED tests/test_x.py::test_a - AssertionError: assert 1 == 2",
          "ERROR tests/test_x.py - NameError: name 'x'")),
    Sign("tool.pytest", SUMMARY,
         r"=* ?(?P<message>(?:[0-9]+ [a-z]+, )*[0-9]+ (?:failed|errors?)(?:, [0-9]+ [a-z]+)* in [0-9.]+s.*?) ?=*",
         ("=== 1 failed, 3 passed in 0.12s ===", "1 error in 0.05s")),
    Sign("tool.unittest", TOOL, r"(?P<message>(?:FAIL|ERROR): (?P<function>[A-Za-z_0-9]+) \([A-Za-z_0-9.]+\).*)",
         ("FAIL: test_a (test_x.T.test_a)",)),
    Sign("tool.unittest", SUMMARY, r"(?P<message>FAILED \((?:failures|errors)=.+\))", ("FAILED (failures=1)",)),
    # --- tools
    Sign("tool.git.conflict", LOCATED, r"(?P<message>CONFLICT \([^)]+\): (?:Merge conflict in (?P<file>.+)|.+))",
         ("CONFLICT (content): Merge conflict in a.txt",)),
    Sign("tool.git", TOOL, r"fatal: (?P<message>.+)", ("fatal: not a git repository",)),
    Sign("tool.git", TOOL, r"error: (?P<message>(?:pathspec|failed to push|Your local changes|could not apply) .+)",
         ("error: pathspec 'nope' did not match any file(s) known to git",)),
    Sign("tool.npm", TOOL,
         r"npm (?:ERR!|error) (?P<message>(?:code |[0-9]{3} |Missing script|request to |[a-z]+ Could not ).*)",
         ("npm ERR! code E404", 'npm error Missing script: "nope"')),
    Sign("tool.pip", TOOL,
         r"ERROR: (?P<message>(?:Could not (?:find|install|open)|No matching distribution|Invalid requirement"
         r"|Cannot install|Failed building|Failed to build|ResolutionImpossible"
         r"|Directory .+ is not installable|Package .+ requires|Exception|.+ is not a valid|HTTP error).*)",
         ("ERROR: No matching distribution found for nope", "ERROR: Invalid requirement: '??'")),
    Sign("tool.apt", TOOL, r"E: (?P<message>.+)", ("E: Unable to locate package nope",)),
    Sign("tool.dpkg", TOOL, r"dpkg(?:-[a-z]+)?: error(?: |: )(?P<message>.+)",
         ("dpkg: error: cannot access archive 'x'",)),
    Sign("tool.curl", TOOL, r"curl: (?P<message>\([0-9]+\) .+)", ("curl: (6) Could not resolve host: nope.invalid",)),
    Sign("tool.wget", TOOL, r"wget: (?P<message>(?:unable|bad|can't|server).+)", ("wget: unable to resolve host 'x'",)),
    Sign("tool.docker", TOOL,
         r"(?:docker: |ERROR: |error: )?(?P<message>(?:Error response from daemon|Cannot connect to the Docker daemon"
         r"|failed to connect to the docker API|permission denied while trying to connect to the [Dd]ocker).*)",
         ("docker: Error response from daemon: No such image: nope.",
          "Cannot connect to the Docker daemon at unix:///x.")),
    Sign("tool.jq", TOOL, r"(?P<message>jq: error.*|(?:jq: )?parse error: .+ at line [0-9]+, column [0-9]+)",
         ("parse error: Unfinished JSON term at EOF at line 2, column 0",
          "jq: error (at <stdin>:1): Cannot index number")),
    # --- databases
    Sign("sql.error", LOCATED,
         rf"(?:Error|Parse error|Runtime error)(?::)? (?:near line|in line) (?P<line>{_NUMBER}): (?P<message>.+)",
         ("Parse error near line 1: no such table: t", "Error: near line 3: UNIQUE constraint failed: t.a")),
    Sign("sql.error", TOOL,
         r"Error: (?:in prepare, |stepping, )?(?P<message>(?:no such (?:table|column)|near \".*\": syntax error"
         r"|UNIQUE constraint|database is locked).*)", ("Error: in prepare, no such table: t",)),
    Sign("sql.error", LOCATED, rf"psql:(?P<file>[^:]+):(?P<line>{_NUMBER}): (?:ERROR|FATAL): +(?P<message>.+)",
         ('psql:x.sql:3: ERROR:  relation "t" does not exist',)),
    Sign("sql.error", TOOL, r"(?:ERROR|FATAL):  (?P<message>.+)", ('ERROR:  relation "t" does not exist',)),
    Sign("sql.error", TOOL, r"psql: error: (?P<message>.+)",
         ("psql: error: connection to server failed: No such file",)),
    Sign("sql.error", TOOL, rf"(?P<message>ERROR [0-9]+ \([0-9A-Z]{{5}}\)(?: at line (?P<line>{_NUMBER}))?: .+)",
         ("ERROR 1064 (42000) at line 1: You have an error in your SQL syntax",)),
    # --- perl
    Sign("perl.error", LOCATED,
         rf"(?P<message>.+) at (?P<file>\S+) line (?P<line>{_NUMBER})(?:\.|, (?:near|at) .*|, <.*)",
         ("Illegal division by zero at x.pl line 3.", 'syntax error at x.pl line 1, near "my $"')),
    # --- errors of the system, reported by any program
    Sign("file.missing", GENERAL, r"[^:]+: (?P<message>(?P<file>[^:]+): Cannot [a-z]+: No such file or directory)",
         ("tar: nope.tar: Cannot open: No such file or directory",)),
    Sign("file.missing", GENERAL, rf"{_NAMED}No such file or directory)",
         ("cat: /nope: No such file or directory", "ls: cannot access '/nope': No such file or directory")),
    Sign("file.denied", GENERAL, rf"{_NAMED}(?:Permission denied|Operation not permitted|Read-only file system))",
         ("cat: /etc/shadow: Permission denied", "touch: cannot touch '/usr/x': Read-only file system")),
    Sign("network.unreachable", GENERAL,
         r"(?P<message>.*(?:Connection refused|Network is unreachable|Temporary failure in name resolution"
         r"|Name or service not known|Could not resolve host).*)",
         ("ssh: connect to host x port 22: Connection refused",)),
)  # fmt: skip


@functools.cache
def automata() -> tuple[Any, tuple[Any, ...]]:
    """Return one automaton that tells which patterns match a line, and each pattern by itself."""
    import re2

    which = re2.Set.FullMatchSet()
    for line in LINES:
        which.Add(line.pattern)
    which.Compile()
    return which, tuple(re2.compile(line.pattern) for line in LINES)
