"""Report one command whose words are known, unwrap it, and read the code that it contains.

Used for scripts, where `reader` finds the commands in a syntax tree, and for argument vectors, which have no tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from ...lib.patterns import lazy_pattern
from ..facts import UNKNOWN, Assigned, Command, Executed, Fact, Lookup, Place, Searched, Trait, moved, normal
from ..globs import root_paths
from ..options import DECLARES
from .interpreters import Code, Run, Script, interpreter
from .programs import (
    COPIERS,
    DATABASES,
    INLINE_CODE,
    KNOWN_COMMANDS,
    PROGRAMS_WITH_TRAITS,
    RUNNERS,
    WRITERS,
    copied,
    is_network_path,
    plans,
    program_traits,
    takes_statements,
    targets,
)
from .sums import Sums
from .variables import READERS, SEARCHES, SET_BY_BASH, SETTERS, is_hook, named, sets_hook
from .words import FETCHERS, Value, Variables, Word, base, own_or_unknown, unknown_argument
from .wrappers import WRAPPERS, climbs, is_loader, unwrap

MAX_LAYERS = 200
"""Maximum number of commands that one command may unwrap to, and of pieces of code inside one script."""
MAX_WRAPPERS = 25
MAX_ROUNDS = 3
"""How many times a function that calls itself is followed."""
MAX_WORK = 3_000_000
"""The budget of `Work`, in characters."""
_PIECE, _COMMAND = 1000, 100
"""What a piece of code and a command cost in addition to their characters."""
_FILLED = 3
"""What a word costs for each argument that may be in it."""

CHDIR = frozenset({"cd", "pushd", "popd"})
_EXPORTERS = DECLARES | {"env", "sudo", "doas"}
"""Commands with arguments `name=value` that set variables for programs."""
_RUNS_HERE = frozenset({"eval", "source", "."})
"""Builtins that run code in this same shell, which may set any variable."""
_KNOWN = frozenset(
    {*SETTERS, *_EXPORTERS, *_RUNS_HERE, *CHDIR, "alias", "trap", "tee", *FETCHERS, *DATABASES}
    | {*PROGRAMS_WITH_TRAITS, *WRITERS, *WRAPPERS, *RUNNERS}
)
"""Every command name that needs special treatment, except interpreters, whose names may include versions."""
_STDIN_PATHS = frozenset({"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})
_RENUMBERS = frozenset({"set", "shift", "trap", "alias"})
"""Builtins that may renumber the positional arguments, or run a command that does."""
_OWN_MEANING = frozenset({"PWD", "OLDPWD", "HOME", "IFS"})
"""Variables that the shell sets itself, or whose meaning is known."""
_CRON_TIMES = lazy_pattern(r"(?m)^\s*(?:@\w+|(?:\S+[ \t]+){5})")


class Feed(msgspec.Struct, frozen=True, gc=False):
    """The content of standard input."""

    text: str | None
    """The text, with UNKNOWN for parts that aren't known; None if nothing is known."""
    makers: frozenset[str] = frozenset()
    """The programs that produced it; empty for text written in the script (see `words.command_names`)."""
    file: Executed | None = None
    """The file that it is read from, as the fact to report if an interpreter runs it."""


class Work:
    """A budget of characters for reading a script and all the code inside it. Code is read again each time it is run,
    so without a limit `eval "$x"`, where x contains further `eval` commands, would never end."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_WORK

    def spend(self, amount: int) -> bool:
        """Subtract an amount and return whether anything is left."""
        self.left -= amount
        return self.left > 0


class Deferred(msgspec.Struct, frozen=True):
    """A command that uses arguments of the script, or of the enclosing function, whose values aren't known yet."""

    words: tuple[Word, ...]
    at: Place
    directory: tuple[Value, ...] | None
    feed: Feed | None
    writes: bool
    """Whether it is a redirection, and not a command."""


class Layer(msgspec.Struct, frozen=True):
    """A command found inside another one."""

    words: tuple[Word, ...]
    via: tuple[str, ...]
    directory: str | None = None
    """Where it runs, if not where the other one does."""
    lookup: Lookup = "path"
    """See `facts.Command`."""


class Commands:
    """Collects the facts of commands that run one after the other, and remembers what they change."""

    def __init__(
        self,
        depth: int,
        feed: Feed | None = None,
        *,
        trusts_values: bool = True,
        work: Work | None = None,
        lookup: Lookup = "path",
    ) -> None:
        self.depth, self.lookup = depth, lookup
        self.trusts_values = trusts_values
        """Whether a variable is taken to have the values that were seen to be set. It isn't in the second reading of a
        script in which something may set any variable (see `reader.read`)."""
        self.work = work or Work()
        self.facts: list[Fact] = []
        self.variables = Variables({"PWD": ((Word("."),),)})
        self.volatile: set[str] = set()
        """Variables that a function may change whenever it is called."""
        self.files: dict[str, str | None] = {}
        """Files that were written, with their content if known (else None): they may be run later."""
        self.copies: dict[str, str] = {}
        """Paths of copies of files and links to files, with their originals: `cp /bin/rm x; ./x` runs rm."""
        self.feed = self.own_feed = feed
        """The standard input of the next command, and that of the script as a whole."""
        self.unsure = False
        """Whether something may have set any variable at all."""
        self.gave_up = False
        """Whether it has been reported that some nested code isn't read."""
        self.exported: set[Assigned] = set()
        """The variables that were reported as set for a program by `export`."""
        self.pieces = 0
        """How many pieces of nested code have been read."""
        self.function_name = ""
        """The function whose body is being read; "" outside of functions."""
        self.deferred: dict[str, list[Deferred]] = {"": []}
        """Deferred commands, by the name of the function that contains them."""
        self.called: dict[str, dict[tuple[Word, ...], None]] = {}
        """The arguments of every call, by command name; "" is the script itself."""
        self.settling = False
        """Whether the deferred commands are being read, which aren't deferred again."""
        self.renumbers = False
        """Whether something may renumber the positional arguments."""
        self.arguments: tuple[Word, ...] = ()
        """The arguments of the request: any unknown word may contain one of them."""
        self.environment: Mapping[str, str] = {}
        """The variables that the request starts with."""
        self.sums = Sums()

    def trait(self, name: str, at: Place) -> None:
        """Report a trait."""
        self.facts.append(Trait(name=name, **at))

    def report(
        self,
        name: str,
        args: tuple[str, ...],
        writes: Sequence[str],
        via: tuple[str, ...],
        at: Place,
        written: str = "",
        lookup: Lookup = "path",
    ) -> None:
        """Report a command, run in the current directory with the current input. `written`: its name as written."""
        paths = dict.fromkeys([*writes, *[each for path in writes for each in root_paths(path)]]) if writes else ()
        self.facts.append(
            Command(
                name=name,
                args=args,
                writes=tuple(paths),
                via=via,
                lookup=lookup,
                path=written if "/" in written else "",
                given=self.input_file(),
                directory=self.cwd(),
                **at,
            )
        )

    def file_fact(self, path: Word, how: str, via: tuple[str, ...], at: Place) -> Executed:
        """Return the fact that a file is run, in the current directory."""
        # The results of a search or a glob may be different files when the command runs.
        known = UNKNOWN if path.found or path.glob else path.text
        return Executed(path=known, directory=self.cwd(), how=how, via=via, **at)

    def variable_fact(self, name: str, value: str, at: Place) -> Assigned:
        """Return the fact that a variable is set for programs."""
        return Assigned(name=name, value=value, directory=self.cwd(), **at)

    def set(self, name: str, values: Sequence[Value]) -> None:
        """Remember the possible values of a variable, or that they aren't known."""
        if name == "BASH_ARGV0":
            self.variables.forget("0")  # which it sets
        replaced = name in SET_BY_BASH and not all(UNKNOWN in word.text for value in values for word in value)
        if self.trusts_values and name not in self.volatile and not replaced:
            self.variables.set(name, values)
        elif name != "PWD" and any(word.argument for value in values for word in value):
            self.variables.set(name, [unknown_argument()])  # `local x=$1`: unknown, but from an argument
        else:
            self.variables.forget(name)

    def cwd(self) -> str | None:
        """Return the current directory; None if it isn't known."""
        known = self.variables.values.get("PWD")
        return known[0][0].text if known and len(known) == 1 else None

    def lasting(self) -> Variables:
        """Return the variables whose values won't change later."""
        return Variables({})

    def run(self, words: tuple[Word, ...], at: Place, writes: Sequence[str] = ()) -> None:
        """Report a command and every command it wraps."""
        self.defer(words, at)
        todo = [Layer(words, (), lookup=self.lookup)]
        for _ in range(MAX_LAYERS):
            if not todo:
                return
            if self.work.left <= 0:
                break
            layer = todo.pop(0)
            while layer.words and not layer.words[0].text and layer.words[0].loose:
                layer = replace(layer, words=layer.words[1:])
            if layer.words and layer.words[0].text:
                if len(layer.via) > MAX_WRAPPERS:
                    self.trait("source.too-deep", at)
                elif layer.directory is None:
                    todo += self.report_layer(layer, at, writes)
                else:
                    todo += self.report_elsewhere(layer, layer.directory, at, writes)
            elif writes:
                self.report(":", (), writes, layer.via, at, lookup="none")
        self.trait("source.too-deep", at)

    def defer(self, words: tuple[Word, ...], at: Place, *, writes: bool = False) -> None:
        """Remember a command that uses arguments, to read it again once their values are known.

        There are two kinds of them, so a command may be remembered twice: its own arguments, those of the function that
        contains it or of the script, which it names (`$1`); and those of the request, one of which may be in any other
        unknown word: `$(realpath "$1")`.
        """
        if self.settling:
            return
        unknown = [word for word in words if UNKNOWN in word.text]
        if any(word.argument for word in unknown):
            self.remember(self.function_name, words, at, writes=writes)
        if self.arguments and not all(word.argument for word in unknown):
            marked = tuple([replace(word, argument="?") if UNKNOWN in word.text else word for word in words])
            self.remember("", marked, at, writes=writes)

    def remember(self, function: str, words: tuple[Word, ...], at: Place, *, writes: bool) -> None:
        """Add a command to those that are read again with the arguments of this function; "" is the script."""
        one = Deferred(words, at, self.variables.values.get("PWD"), self.feed, writes)
        self.deferred.setdefault(function, []).append(one)

    def settle(self) -> None:
        """Read the deferred commands with all arguments that the script and its functions receive. This is the last
        step of a reading."""
        self.settling = True
        self.settle_calls()
        self.settle_directories()
        self.settling = False

    def settle_directories(self) -> None:
        """Report each write in an unknown directory again for each argument of the request, which may be that one:
        `cd "$1"`."""
        nowhere = [fact for fact in self.facts if isinstance(fact, Command) and fact.directory is None and fact.writes]
        for fact in nowhere:
            for word in self.arguments:
                if not self.work.spend(_COMMAND):
                    self.facts.append(Trait(name="source.too-deep", line=fact.line, column=fact.column, text=fact.text))
                    return
                writes = tuple([normal(path, word.text) for path in fact.writes])
                self.facts.append(replace(fact, writes=writes, directory=word.text))

    def settle_calls(self) -> None:
        """Read the deferred commands of every function with the arguments of every call of it."""
        done: set[tuple[str, tuple[str, ...]]] = set()
        deferred = {name: commands for name, commands in self.deferred.items() if commands}
        todo: list[tuple[str, tuple[Word, ...], tuple[str, ...]]]
        todo = [(name, args, (name,)) for name in deferred for args in self.called.get(name, ())]
        while todo:
            name, args, chain = todo.pop()
            known = name, tuple([word.text for word in args])
            if known in done or all(text == UNKNOWN for text in known[1]):
                continue
            done.add(known)
            if len(done) > MAX_LAYERS or self.work.left <= 0:
                self.trait("source.too-deep", deferred[name][0].at)
                return
            before, self.called = self.called, {}
            for one in deferred[name]:
                self.reread(one, [replace(word, argument="") for word in args])
            calls, self.called = self.called, before
            # When a recursive function stops can't be known, so it is followed only a few times.
            todo += [
                (inner, given, (*chain, inner))
                for inner in calls.keys() & deferred.keys()
                for given in calls[inner]
                if chain.count(inner) < MAX_ROUNDS
            ]

    def reread(self, one: Deferred, args: Sequence[Word]) -> None:
        """Read a deferred command with these arguments, in the directory and with the input that it had."""
        if not self.work.spend(_FILLED * len(one.words) * (len(args) + 1)):
            self.trait("source.too-deep", one.at)
            return
        variables, feed = self.variables, self.feed
        self.variables, self.feed = variables.copy(), one.feed
        self.variables.forget("PWD")
        if one.directory is not None:
            self.variables.set("PWD", one.directory)
        for words in dict.fromkeys(filled(one.words, args, exactly=not (self.renumbers or self.unsure))):
            if one.writes:
                self.work.spend(_COMMAND)
                path = normal(words[-1].text, self.cwd())
                if is_network_path(path):
                    self.trait("shell.network-redirect", one.at)
                self.report(":", (), (path,), (), one.at, lookup="none")
            else:
                self.run(words, one.at)
            if self.work.left <= 0:
                self.trait("source.too-deep", one.at)
                break
        self.variables, self.feed = variables, feed

    def report_elsewhere(self, layer: Layer, directory: str, at: Place, writes: Sequence[str]) -> list[Layer]:
        """Report one layer that runs in another directory; return the commands inside it, which run there, too."""
        here = self.variables
        self.variables = here.copy()
        self.chdir("cd", (directory,))
        inside = self.report_layer(layer, at, writes)
        self.variables = here
        return [replace(each, directory=normal(each.directory or ".", directory)) for each in inside]

    def report_layer(self, layer: Layer, at: Place, writes: Sequence[str]) -> list[Layer]:
        """Report one layer, in the current directory; return the commands inside it."""
        words, via = layer.words, layer.via
        name = base(words[0])
        args = tuple([own_or_unknown(word) if name == "rm" else word.text for word in words[1:]])
        self.work.spend(_COMMAND + 3 * sum(map(len, args)))
        inside = [replace(layer, words=guess, directory=None) for guess in self.report_hidden_name(name, words, at)]
        if args and name == words[0].text:
            self.called.setdefault(name, {})[words[1:]] = None
        if name in _RENUMBERS:
            self.note_renumbering(name, words[1:])
        if "/" in words[0].text:
            self.facts.append(replace(self.file_fact(words[0], "program", via, at), args=(*args, *self.input_file())))
            if self.copies and (source := self.copies.get(normal(words[0].text, self.cwd()))):
                inside.append(Layer((Word(source), *words[1:]), (*via, "copy")))
        if name in _KNOWN or interpreter(name) is not None or is_loader(name):
            return inside + self.report_known(name, layer, args, at, writes)
        # For most programs only the name and arguments matter.
        if any(map(is_network_path, args)):
            self.trait("shell.network-redirect", at)
        self.report(name, args, writes, via, at, words[0].text, layer.lookup)
        self.run_file(words[0], at, via)
        return inside

    def report_known(
        self, name: str, layer: Layer, args: tuple[str, ...], at: Place, writes: Sequence[str]
    ) -> list[Layer]:
        """Report a command that needs special treatment; return the commands inside it."""
        words, via = layer.words, layer.via
        self.report_effects(name, args, at)
        if name in ("rm", "unlink") and any(
            (word.found or word.makers) and word.text.startswith(UNKNOWN) for word in words[1:]
        ):
            self.trait("shell.removes-unknown", at)
        paths = [normal(path, self.cwd()) for path in targets(name, args)]
        self.note_written(name, args, paths)
        fed = (self.feed.text or UNKNOWN,) if self.feed and takes_statements(name, args) else ()
        self.report(name, args + fed, [*writes, *paths], via, at, words[0].text, layer.lookup)
        for plan, place in plans(name, words[1:]):
            fact = self.file_fact(plan, "plan", via, at)
            self.facts.append(replace(fact, directory=moved(fact.directory, place)))
        inside: list[Layer] = []
        steps = unwrap(name, words[1:], self.feed.text if self.feed else None)
        for step in steps:
            inner = (*via, step.via)
            if isinstance(step, Run):
                inside.append(Layer(step.words, inner, step.directory, step.lookup))
            elif isinstance(step, Code):
                self.run_code(step, at, inner)
            else:
                self.run_script(step, at, inner)
        if not steps:
            self.run_file(words[0], at, via)
        return inside

    def note_written(self, name: str, args: tuple[str, ...], paths: Sequence[str]) -> None:
        """Remember the files that a command writes (`paths`), in case one of them is run later."""
        if name == "tee" or name in FETCHERS:
            content = self.feed.text if name == "tee" and self.feed and "-a" not in args else None
            self.files.update(dict.fromkeys(paths, content))
        if name in COPIERS and (pair := copied(args)):
            source, place = (normal(path, self.cwd()) for path in pair)
            if source != place:
                self.copies[place] = source if "/" in source else f"./{source}"

    def note_renumbering(self, name: str, words: Sequence[Word]) -> None:
        """Record that arguments may have other numbers from here on: `set -- x`, `shift`, `trap shift DEBUG`."""
        at = 0
        while at < len(words) and words[at].text[:1] in ("-", "+") and words[at].text not in ("-", "--"):
            at += 2 if words[at].text[-1:] == "o" else 1
        if name == "set":
            operands = words[at:]
            if not operands:
                return
            self.called.setdefault(self.function_name, {})[tuple(operands[operands[0].text in ("-", "--") :])] = None
        self.renumbers = True
        if "@" in self.variables.values:
            self.unsure = True
            for known in [each for each in self.variables.values if each in ("@", "*") or each.isdecimal()]:
                self.variables.forget(known)

    def input_file(self) -> tuple[str, ...]:
        """Return the file on standard input; UNKNOWN if the input can't be known; empty if there is no input, or the
        script itself contains it."""
        if self.feed is None:
            return ()
        if self.feed.file is not None:
            return (self.feed.file.path,)
        known = self.feed.text is not None and UNKNOWN not in self.feed.text and not self.feed.makers
        return () if known else (UNKNOWN,)

    def report_hidden_name(self, name: str, words: tuple[Word, ...], at: Place) -> list[tuple[Word, ...]]:
        """Report a command name that is hidden or unknown; return the commands it may be if unknown parts are empty."""
        first = words[0]
        if (first.glob and name != "[") or first.built or not name.isascii():
            self.trait("shell.obscured-command", at)
        # `!!` is history expansion if that is enabled, and of no use in a script otherwise.
        if UNKNOWN not in name and not (first.loose and UNKNOWN in first.text) and not name.startswith("!!"):
            return []
        self.trait("shell.dynamic-command", at)
        rest = first.text.replace(UNKNOWN, "")
        if rest.strip("./!"):
            return [(replace(first, text=rest, loose=False), *words[1:])]
        return [words[1:]] if words[1:] and not words[1].text.startswith("-") else []

    def report_effects(self, name: str, args: tuple[str, ...], at: Place) -> None:
        """Report the traits of a command with a special meaning, and record what it changes for later commands."""
        if name in PROGRAMS_WITH_TRAITS:
            fed = None if self.feed is None else self.feed.text or "!"  # unknown input may contain `!`
            for trait in program_traits(name, args, fed):
                self.trait(trait, at)
        if any(map(is_network_path, args)):
            self.trait("shell.network-redirect", at)
        if name == "alias" and any(arg.partition("=")[0] in KNOWN_COMMANDS for arg in args if "=" in arg):
            self.trait("shell.shadowed-command", at)
        if name in _EXPORTERS:
            self.export(name, args, at)
        if name in CHDIR:
            self.chdir(name, args)
        elif name in _RUNS_HERE or (name == "trap" and re.search(r"=|read", "".join(args[:1]))):
            self.unsure = True
        elif name in DECLARES:
            self.declare(args)
        elif name in SETTERS:
            self.set_by_builtin(name, args, at)

    def export(self, name: str, args: tuple[str, ...], at: Place) -> None:
        """Report the variables that a command such as `export` or `env` sets for programs."""
        settings = [(variable, value) for variable, equals, value in (arg.partition("=") for arg in args) if equals]
        if any(is_hook(variable, value, value) for variable, value in settings):
            self.trait("shell.environment-hook", at)
        for variable, value in settings:
            if variable in SEARCHES:
                self.facts.append(Searched(path=value, modules=variable != "PATH", text=at["text"]))
        if name in DECLARES and any(UNKNOWN in arg.partition("=")[0] for arg in args):
            self.facts.append(self.variable_fact(UNKNOWN, UNKNOWN, at))  # export $(cat file)
        for variable, value in settings:
            fact = self.variable_fact(variable, value, at)
            if fact not in self.exported:  # `env A=1 env B=2 …` is unwrapped layer by layer
                self.exported.add(fact)
                self.facts.append(fact)

    def chdir(self, name: str, args: tuple[str, ...]) -> None:
        """Record the new current directory, or that it isn't known."""
        operands = [arg for arg in args if not arg.startswith("-") or arg == "-"]
        target = operands[0] if operands else "~"
        if name == "popd" or target == "-" or UNKNOWN in target or ("-P" in args and climbs(target)):
            self.variables.forget("PWD")
        else:
            self.set("PWD", [(Word(normal(target, self.cwd())),)])

    def declare(self, args: tuple[str, ...]) -> None:
        """Note whether a declaration may set a variable that it doesn't name. `_Reader.assign` handles the values."""
        # After `declare -n x=y`, assignments to x set y, which isn't tracked.
        refers = any(re.match(r"-[A-Za-z]*n", arg) for arg in args)
        self.unsure |= refers or any(UNKNOWN in _target(arg) for arg in args)

    def set_by_builtin(self, name: str, args: tuple[str, ...], at: Place) -> None:
        """Handle a builtin that sets variables by name: their values are no longer known."""
        if sets_hook(name, args):
            self.trait("shell.environment-hook", at)
        targets = [_target(each) for each in named(name, args)]
        if name == "let":
            self.sums.computes(" ".join(args), at)
            # `named` finds only the usual ways in which an expression sets a variable: not `let x=!y`.
            targets = re.findall(r"[A-Za-z_]\w*", " ".join(args))
        elif name in READERS or name == "printf":
            self.sums.reads(*targets)
        if name in READERS:
            self.sums.reads("REPLY", "MAPFILE", "OPTARG")
        if name == "getopts":  # an unknown word may be several, and then another one is the name
            self.unsure |= UNKNOWN in "".join(args[:1])
        for target in targets:
            self.unsure |= UNKNOWN in target
            self.variables.forget(target)
            if name == "read":
                self.set(target, [(Word(UNKNOWN, found=True),)])

    # Code inside code

    def run_code(self, step: Code, at: Place, via: tuple[str, ...]) -> None:
        """Read source text that is given as a word: `bash -c`, `eval`, `python -c` …"""
        if step.language in INLINE_CODE:
            for trait in INLINE_CODE[step.language]:
                self.trait(trait, at)
            return
        if UNKNOWN in step.source.text:
            fetched = step.source.makers & FETCHERS
            self.trait("shell.pipe-to-interpreter" if fetched else "shell.dynamic-code", at)
        shared: Variables | None = None
        if step.when == "now":
            shared = self.variables
        elif step.when == "later":
            shared = self.lasting()
        self.read_nested(
            step.language,
            step.source.text,
            at,
            *via,
            params=step.params,
            shared=shared,
            feed=self.feed,
            lookup=step.lookup,
        )

    def run_script(self, step: Script, at: Place, via: tuple[str, ...]) -> None:
        """Report a script that is read from a file or from standard input, and read it if its text is known."""
        path = step.path
        if step.how == "module" and path is not None:
            self.facts.append(self.file_fact(path, step.how, via, at))
        elif path is None or path.text in _STDIN_PATHS:
            self.run_input(self.feed or Feed(None), step.language, at, via, step.params)
        elif path.makers:
            self.run_input(Feed(path.content, path.makers), step.language, at, via)
        else:
            # A shell also searches PATH for a name without a slash.
            library = step.language == "shell" and "/" not in path.text
            fact = self.file_fact(path, "library" if library else step.how, via, at)
            self.facts.append(replace(fact, language=step.language))
            if UNKNOWN in base(path) or (path.loose and UNKNOWN in path.text):
                self.trait("shell.dynamic-code", at)
            else:
                self.run_file(path, at, via, step.language)

    def run_input(
        self, feed: Feed, language: str, at: Place, via: tuple[str, ...], params: tuple[Word, ...] = ()
    ) -> None:
        """Handle an interpreter that reads its code from a file on its input, a pipe, a here-document or a process
        substitution."""
        if feed.file is not None:
            self.facts.append(replace(feed.file, via=via, language=language))
        if feed.makers & FETCHERS:
            self.trait("shell.pipe-to-interpreter", at)
        elif feed.makers or feed.text is None or UNKNOWN in feed.text:
            self.trait("shell.dynamic-code", at)
        if feed.text is not None:
            self.read_nested(language, feed.text, at, *via, params=params)

    def run_file(self, path: Word, at: Place, via: tuple[str, ...], language: str = "") -> None:
        """Handle the execution of a file. If the script wrote it before, read its content, too. `language`: that of the
        interpreter, if there is one."""
        if not self.files or not (language or "/" in path.text):
            return
        place = normal(path.text, self.cwd())
        place = normal(self.copies.get(place, place), None)
        if place not in self.files:
            return
        content = self.files[place]
        if content is None:
            self.trait("shell.dynamic-code", at)
            return
        first = content.partition("\n")[0]
        if not language and first.startswith("#!"):
            language = "python" if "python" in first else "shell" if re.search(r"sh\b", first) else "other"
        self.read_nested(language or "shell", content, at, *via)

    def read_nested(
        self,
        language: str,
        source: str,
        at: Place,
        *via: str,
        params: tuple[Word, ...] = (),
        shared: Variables | None = None,
        feed: Feed | None = None,
        lookup: Lookup = "path",
    ) -> None:
        """Read code found inside this code. Its facts get the position of the command that runs it.

        `via`: the wrappers that it was found in. `params`: its `$0`, `$1` …, or `sys.argv`. `shared`: the variables
        that it sees, if it runs in this same shell. `feed`: its standard input.
        """
        self.pieces += 1
        if self.pieces > MAX_LAYERS or not self.work.spend(_PIECE + len(source)):
            if not self.gave_up:
                self.trait("source.too-deep", at)
            self.gave_up = True
            return
        facts: list[Fact]
        if language == "other":
            facts = [Trait(name=name) for name in INLINE_CODE[language]]
        elif language == "python":
            from .. import python

            args = [word.text for word in params[1:] if UNKNOWN not in word.text]
            facts = python.facts(source.replace(UNKNOWN, "_"), self.depth + 1, args=args, environment=self.inherited())
        else:
            from .reader import read

            # An unknown part stays unknown in the nested code: it becomes an expansion without a known value.
            text = _CRON_TIMES.sub("", source) if language == "crontab" else source
            text = text.replace(UNKNOWN, "${_}")
            facts = read(
                text,
                self.depth + 1,
                params=params,
                place=at,
                trusts_values=self.trusts_values,
                shared=shared,
                feed=feed,
                work=self.work,
                # In the same shell, its arguments are those of the function that contains it.
                deferred=None if shared is None else self.deferred.setdefault(self.function_name, []),
                environment=self.inherited(),
                given=() if self.settling else self.arguments,
                lookup=lookup,
            )
        self.adopt(facts, at, via, same_shell=shared is not None)

    def adopt(self, facts: Sequence[Fact], at: Place, via: tuple[str, ...], *, same_shell: bool) -> None:
        """Add the facts of nested code, at the position of the command that runs it."""
        for fact in facts:
            found = replace(fact, line=at["line"], column=at["column"], text=fact.text or at["text"])
            if isinstance(found, (Command, Executed)):
                found = replace(found, via=(*via, *found.via))
            if isinstance(found, (Command, Executed, Assigned)) and not same_shell:  # it starts in this directory
                found = replace(found, directory=moved(self.cwd(), found.directory))
            self.facts.append(found)

    def inherited(self) -> dict[str, str]:
        """Return the variables of the request that haven't been changed since."""
        values = self.variables.values
        return {name: text for name, text in self.environment.items() if values.get(name) == ((Word(text),),)}

    def begin_with(self, environment: Mapping[str, str]) -> None:
        """Start with these variables of the request."""
        self.environment = environment
        for name, text in environment.items():
            if name not in _OWN_MEANING:
                self.set(name, [(Word(text),)])


def _target(arg: str) -> str:
    """Return the variable that an argument such as `name`, `name=value` or `name[1]` sets."""
    return re.split(r"[=\[]", arg, maxsplit=1)[0]


def filled(words: Sequence[Word], args: Sequence[Word], *, exactly: bool) -> Iterator[tuple[Word, ...]]:
    """Yield a command with the arguments that it uses (`$1`, `$@`) replaced by the values in `args`.

    If arguments may be shifted, picked or looped over, it isn't known which of them a word contains. Then the command
    is also yielded with all arguments in place of the first such word, and with each argument alone. `exactly`: whether
    the numbers of arguments can be trusted.
    """

    def fill(pick: Callable[[Word], Sequence[Word]]) -> tuple[Word, ...]:
        """Return the command with each word that contains an argument replaced by the arguments that `pick` returns."""
        return tuple([each for word in words for each in (_with(word, pick(word)) if _is_open(word) else (word,))])

    def numbered(word: Word) -> Sequence[Word]:
        return args[int(word.argument[:9]) - 1 :][:1] if word.argument.isdecimal() else args

    open_words = [word for word in words if _is_open(word)]
    yield fill(numbered)
    if exactly and not any(word.argument == "?" for word in open_words):
        return
    yield fill(lambda word: args if word is open_words[0] else ())
    for arg in args:
        # An option alone would be another command: `rm -rf`.
        one = (arg, Word(UNKNOWN)) if arg.text.startswith("-") else (arg,)
        yield fill(lambda word, one=one: one)  # type: ignore[misc]


def _is_open(word: Word) -> bool:
    """Return whether an argument is to be filled in."""
    return bool(word.argument) and UNKNOWN in word.text


def _with(word: Word, args: Sequence[Word]) -> list[Word]:
    """Return what a word that contains an argument expands to if it contains these ones."""
    if word.text == UNKNOWN:  # nothing but the argument: `$1` and `"$@"` stay separate words
        expanded = list(args)
    else:  # an argument with text around it is one word: `"$1/x"`
        text = word.text.replace(UNKNOWN, " ".join([each.text for each in args]))
        expanded = [replace(word, text=text, argument="", loose=word.loose and UNKNOWN in text)]
    return _split(expanded) if word.loose else expanded


def _split(words: Sequence[Word]) -> list[Word]:
    """Return words that are not in quotes as Bash splits them, with the globs in them."""
    return [
        replace(word, text=piece, glob=any(mark in piece for mark in "*?["))
        for word in words
        for piece in word.text.split()
    ]
