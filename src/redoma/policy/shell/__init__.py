"""Facts about Bash: every simple command that a script or an argument vector may run, and how commands are hidden.

How it works:
- `source` prepares the text by Bash's own lexical rules, and tree-sitter-bash parses it.
- `reader` walks the tree in the order of the source, with a stack instead of recursion, because a hostile script may be
  nested to any depth. `words` expands the words of each command, using the known values of variables.
- `commands` reports a command and unwraps it: `wrappers` and `interpreters` find what `sudo`, `xargs` or `bash -c`
  run. The commands found are reported and unwrapped in turn; nested code gets a reader of its own, one level deeper.
- `programs` and `variables` know particular programs and variables; `policy/options.py` knows which options take a
  value.
- Arguments of the script and of functions are not known where they are used. A command that uses one is reported with
  an unknown value, and again by `settle`, with the actual arguments, once all calls are known.

State: a script is read by one `_Reader`, which is a `Commands` that also has a text and a tree. `Commands` has the
facts, the variables, the files that were written and standard input; that is all an argument vector needs.

What the facts promise to the rules:
- names and arguments are what the program would receive; `~` and `$HOME` are "~";
- `writes` are normalised paths, joined with the directory of a preceding `cd`; rm, mv, chmod … list what they touch;
- a redirection without a command of its own is a write by the command ":"; a file that is read by a redirection is an
  argument of ":";
- the input of a database client is an additional argument of it;
- `python -m pip install x` is also a command "pip"; `busybox rm` is also "rm".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..facts import MAX_DEPTH, SOURCE_TRAITS, UNKNOWN, Fact, Lookup, Place, Trait
from .commands import Commands, Feed
from .source import MAX_SOURCE, prepare
from .words import MAX_VALUE, Word

TRAITS: dict[str, str] = {
    "shell.parse-error": "the parser could not make sense of a part, or reads it differently from Bash",
    "shell.dynamic-command": "the name of a command is only known when it runs",
    "shell.obscured-command": "the name of a command is hidden by escapes, braces, globs or look-alike letters",
    "shell.pipe-to-interpreter": "downloaded or decoded text is run as code",
    "shell.inline-code": "code in a language other than Bash and Python is given on the command line",
    "shell.unread-code": "code in another language may do more than compute, read files and print",
    "shell.dynamic-code": "text that is only known when it runs, or that comes from a pipe, is run as code",
    "shell.fork-bomb": "a function starts itself more than once, in the background",
    "shell.environment-hook": "a variable is set that makes other programs run something",
    "shell.network-redirect": "a redirection opens a network connection",
    "shell.operator": "an operator joins commands, or a substitution is made",
    "shell.shadowed-command": "a function or alias redefines a known command",
    "shell.hidden-option": "an option makes an innocent program run another one",
    "shell.removes-unknown": "files are removed that the input, or the output of another program, names",
    "shell.unpacks-anywhere": "an archive is unpacked to wherever it says, also outside the directory",
    "shell.live-input": "a program will be given input while it runs, and does what that says",
    **SOURCE_TRAITS,
}


def facts_of_script(
    source: str,
    depth: int = 0,
    *,
    args: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    lookup: Lookup = "path",
) -> list[Fact]:
    """Return the facts of a Bash script with these arguments and variables. Never raises.

    `depth`: how deep the script is inside other code. `lookup`: "shell" if Bash runs it; by default it isn't known
    which shell does, if any, and whether that has the same builtins.
    """
    long = [text for name, text in (environment or {}).items() if len(text) > MAX_VALUE and name in source]
    given = tuple(Word(arg.replace(UNKNOWN, "")) for arg in (*args, *long))
    from .reader import read  # a large module that argument vectors don't need

    return read(source, depth, environment=environment, given=given, lookup=lookup)


def facts_of_argv(
    argv: tuple[str, ...],
    depth: int = 0,
    *,
    fed: bool = False,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[Fact]:
    """Return the facts of an argument vector that is run without a shell, with these variables. Never raises.

    `depth`: how deep it is inside other code. `fed`: whether it has input. `stdin`: that input; None if it isn't known.
    """
    if depth > MAX_DEPTH:
        return [Trait(name="source.too-deep")]
    commands = Commands(depth, Feed(stdin) if fed else None)
    commands.begin_with(environment or {})
    at: Place = {"line": 0, "column": 0, "text": " ".join(argv)[:200]}
    if sum(map(len, argv)) > MAX_SOURCE:
        commands.trait("source.too-large", at)
        argv = argv[:1]
    for problem in dict.fromkeys(name for arg in argv for name, _ in prepare(arg).problems):
        # An argument is data, and may contain any character that an argument can.
        if problem in ("source.nul", "source.bad-utf8"):
            commands.trait(problem, at)
    commands.run(tuple(Word(arg.replace(UNKNOWN, "")) for arg in argv), at)
    return commands.facts
