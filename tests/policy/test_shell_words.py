"""What the words of a command become: quotes, expansions, constants, and what stays unknown."""

from __future__ import annotations

import pytest

from redoma.policy.facts import UNKNOWN, Command, Trait
from redoma.policy.shell import facts_of_script
from redoma.policy.shell.reader import parse
from redoma.policy.shell.words import LINE, Expander, Variables, Word, ansi_c, echoed_words, expand_braces


def commands(source: str) -> list[tuple[str, ...]]:
    return [(fact.name, *fact.args) for fact in facts_of_script(source) if isinstance(fact, Command)]


def traits(source: str) -> set[str]:
    found = {fact.name for fact in facts_of_script(source) if isinstance(fact, Trait)}
    return found - {"shell.operator"}


@pytest.mark.parametrize(
    "source",
    [
        "rm -rf /",
        "r''m -rf /",
        '"rm" "-rf" "/"',
        r"\rm -rf /",
        r"$'\x72\155' -rf $'\57'",
        '$"rm" -rf /',
        "r``m -rf /",
        "{rm,-rf,/}",
        "rm${IFS}-rf${IFS}/",
        "r\\\nm -rf /",
        "$(echo rm) -rf /",
        "`printf rm` -rf /",
        "/bin/rm -rf /",
        "a=rm; $a -rf /",
        "a=r; a+=m; $a -rf /",
        "a='rm -rf /'; $a",
        'a=(rm -rf); a+=(/); "${a[@]}"',
        "for a in rm; do $a -rf /; done",
        "${unset:-rm} -rf /",
        "r$@m -rf /",
        "$unset rm -rf /",
        "rm -rf ${unset:-/}",
    ],
)
def test_a_hidden_command_is_read_as_what_it_is(source: str) -> None:
    assert ("rm", "-rf", "/") in commands(source)


@pytest.mark.parametrize(
    "source", ["r''m x", 'r"m" x', r"r\m x", r"$'\x72m' x", "{rm,x}", "/bin/r? x", "r``m x", "\u0433m x"]
)
def test_a_name_with_its_letters_hidden_is_obscured(source: str) -> None:
    assert "shell.obscured-command" in traits(source)


@pytest.mark.parametrize(
    "source", ["rm x", '"rm" x', r"\rm x", '"$DIR/bin/tool" x', "./run.sh x", "[ -f x ]", "echo r''m"]
)
def test_a_plainly_written_name_is_not_obscured(source: str) -> None:
    assert not traits(source)


@pytest.mark.parametrize(
    "source",
    [
        "$x y",
        "r$x y",
        "$DIR/tool y",
        "${x#y} z",
        "$(date) y",
        "!!",
        "$x rm; x=echo",
        "f() { $x y; }; x=rm",
        "x=ls; f() { x=rm; }; f; $x y",
        "while :; do $x y; x=rm; done",
        "x=ls; while :; do $x y; x=rm; done",
        "x=ls; read x; $x y",
        "x=ls; printf -v x rm; $x y",
        "x=ls; unset x; $x rm",
        "x=ls; eval y; $x z",
        "x=ls; . ./lib.sh; $x z",
        "x=ls; declare -n r=x; r=rm; $x z",
        'x=ls; read "$y"; $x z',
        "(x=ls); $x y",
        "true | x=ls; $x y",
        "if a; then x=ls; fi; $x y",
        "for x in $list; do $x y; done",
        'set -- rm; "$@"',
        'f() { "$@"; }; f rm',
    ],
)
def test_a_name_that_may_change_before_it_runs_is_dynamic(source: str) -> None:
    assert "shell.dynamic-command" in traits(source)


@pytest.mark.parametrize(
    "source",
    [
        "x=ls; $x y",
        "x=ls; f() { $x y; }; f",
        "x=ls; if a; then x=cat; fi; $x y",
        "for x in ls cat; do $x y; done",
        "x=ls; (x=$y); $x z",
        "PYTHON=${PYTHON:-python3}; x=1",
    ],
)
def test_a_name_with_known_values_is_not_dynamic(source: str) -> None:
    assert "shell.dynamic-command" not in traits(source)


def test_every_value_of_a_variable_is_tried() -> None:
    found = commands("for d in build /; do for f in -r -rf; do rm $f $d; done; done")
    assert set(found) == {("rm", f, d) for f in ("-r", "-rf") for d in ("build", "/")}


def test_an_unknown_part_of_a_word_is_marked_and_the_rest_is_kept() -> None:
    assert commands('cp "$src/a" $dst')[0] == ("cp", f"{UNKNOWN}/a", UNKNOWN)


def test_home_reads_as_a_tilde_however_it_is_written() -> None:
    assert commands('ls ~/a "$HOME/a" ${HOME}/a') == [("ls", "~/a", "~/a", "~/a")]


def test_a_variable_that_must_be_set_is_not_taken_for_empty() -> None:
    assert commands('rm -rf "${dir:?}"/') == [("rm", "-rf", f"{UNKNOWN}/")]


def test_quoted_text_is_one_argument_and_no_command() -> None:
    assert commands("echo 'rm -rf /' \"a; b\" # rm -rf /") == [("echo", "rm -rf /", "a; b")]


def test_a_fresh_temporary_directory_is_known_to_lie_in_tmp() -> None:
    assert commands('d=$(mktemp -d); rm -rf "$d"')[-1] == ("rm", "-rf", f"/tmp/tmp.{UNKNOWN}_")


def test_too_many_combinations_leave_every_choice_open() -> None:
    loops = "".join(f"for v{i} in a b c d e; do " for i in range(4))
    found = commands(loops + "tool $v0 $v1 $v2 $v3" + "; done" * 4)
    assert ("tool", *([UNKNOWN] * 4)) in found


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (r"\x72\155", "rm"),
        (r"a\tb", "a\tb"),
        (r"\u0041\U00000042", "AB"),
        (r"\'", "'"),
        (r"\cA", "\x01"),
        (r"a\0b", "ab"),
    ],
)
def test_ansi_c_escapes_are_decoded(raw: str, text: str) -> None:
    assert ansi_c(raw) == text


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("a{b,c}d", ["abd", "acd"]),
        ("{a,{b,c}}", ["a", "b", "c"]),
        ("{1..3}", ["1", "2", "3"]),
        ("{r..r}m", ["rm"]),
        ("{a}", ["{a}"]),
    ],
)
def test_braces_are_expanded(word: str, words: list[str]) -> None:
    assert sorted(expand_braces(word)) == sorted(words)


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["echo", "-n", "a", "b"], "a b"),
        (["echo", "-e", r"\x72m"], "rm\n"),
        (["printf", r"%s-%s\n", "a", "b", "c", "d"], "a-b\nc-d\n"),
        (["printf", "%d", "1"], None),
        (["echo", UNKNOWN], None),
        (["cat", "x"], None),
    ],
)
def test_what_echo_and_printf_print_is_known_only_for_constants(words: list[str], output: str | None) -> None:
    assert echoed_words(words) == output


@pytest.mark.parametrize(
    "line",
    [
        "ls",
        "tar -czf out.tar.gz -C build report",
        "cp\ta  \t b",
        "ls *.txt a?b",
        """echo "a b" 'c "d" $x' e""",
        """echo "it's" '' "" """.rstrip(),
        'echo "$one" "${one}" "<$one>" "$many$none"',
        'echo "$list" "$empty" "$1" "$1 of ${none}."',
        "echo 'two\nlines' \"and\n$one\"",
        "echo 'é' \"ü $one\"",
    ],
)
def test_a_plain_command_reads_the_same_from_its_text_as_from_the_tree(line: str) -> None:
    variables = Variables(
        {
            "one": ((Word("1", built=True),),),
            "many": ((Word("a"),), (Word("b"),)),
            "list": ((Word("x"), Word("y")),),
            "empty": ((),),
            "1": ((Word(UNKNOWN, loose=True, makers=frozenset({"curl"})),),),
        }
    )
    assert LINE.match(line)
    (command,) = parse(line.encode()).named_children
    from_tree, from_text = Expander(variables), Expander(variables)
    assert list(from_text.line(line)) == [word for part in command.named_children for word in from_tree.words(part)]
    assert from_text.seen == from_tree.seen


@pytest.mark.parametrize(
    "line",
    [
        'echo "$(id)"', 'echo "`id`"', r'echo "\$x"', "echo $x", 'echo a"b"', "echo 'a'b", "X=1 ls", "ls > f", "a;b",
        "ls 'open", 'ls "open', "echo {a,b}", "echo ~", r"echo a\ b", "echo [ab]", 'echo "$1x"', 'echo "${x:-y}"',
        'echo "$@"', "ls # no", "a\nb", "*", "$'a'",
    ],
)  # fmt: skip
def test_a_command_with_anything_more_in_it_is_left_to_the_tree(line: str) -> None:
    assert not LINE.match(line)


def test_an_array_without_elements_leaves_nothing_in_a_quoted_word() -> None:
    assert commands('a=(); echo "<$a>"') == [("echo", "<>")]
