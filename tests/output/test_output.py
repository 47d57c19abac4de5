"""What a run printed comes out bounded, harmless and without secrets, however it was written."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pace import least_cpu
from redoma.lib.sanitise import sanitise
from redoma.models import Limits
from redoma.output.capture import Capture, Captured
from redoma.redaction import Redactor

KEY = "AKIAIOSFODNN7EXAMPLE"
VALUE = "correct-horse-battery-staple"


def captured(
    data: bytes, limits: Limits | None = None, *, chunk: int = 65536, values: tuple[str, ...] = ()
) -> Captured:
    capture = Capture(limits or Limits(), Redactor(values))
    for at in range(0, len(data), chunk):
        capture.feed("stdout", data[at : at + chunk])
    return capture.finish()


# --- sanitising ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b[38:2::255:0:0mred\x1b[K", "red"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]8;;https://host\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;cm0gLXJm\x07", ""),
        ("\x1bP1$r0m\x1b\\x\x1b_app\x1b\\y\x1b^pm\x1b\\", "xy"),
        ("\x9b31mred \x9d0;title\x9cx", "red x"),
        ("\x1bc\x1b(B\x1b7x", "x"),
        ("\x1b]unfinished", "unfinished"),
        ("a\x07b\x00c\x7fd\x85e", "abcde"),
        ("N\x08NA\x08AM\x08ME\x08E _\x08x", "NAME x"),
        ("abc\x08\x08", "abc"),
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        (" 10%\r 50%\r100%\ndone\r", "100%\ndone"),
        ("if admin\u202e } \u2066evil\u2069", "if admin } evil"),
        ("a\u200bb\u2060c\ufeffd\u00ade\u200ef", "abcdef"),
        ("a\u200db \ufe0fc", "ab c"),
        ("👩\u200d💻 ❤\ufe0f\u200d🔥 न\u200dम", "👩\u200d💻 ❤\ufe0f\u200d🔥 न\u200dम"),
        ("a\u2028b\u2029c", "a\nb\nc"),
        ("\ud800x", "\ufffdx"),
        ("tag\U000e0041\U000e0042", "tag"),
        ("Olá, A³X! ação", "Olá, A³X! ação"),
        ("", ""),
    ],
)
def test_text_is_made_harmless_and_stays_readable(raw: str, clean: str) -> None:
    assert sanitise(raw) == clean


nasty = st.text(
    st.one_of(
        st.characters(),
        st.characters(max_codepoint=0xFF),
        st.sampled_from("\x1b[]\\;m\x07\x08\r\n\t\x9b\x9d\x9c\u200d\ufe0f\u200b\u202e\ud800👩"),
    ),
    max_size=60,
)


@given(nasty)
@settings(max_examples=500, deadline=None)
def test_nothing_that_controls_a_terminal_is_left(text: str) -> None:
    clean = sanitise(text)
    for char in clean:
        assert char in "\t\n\u200c\u200d" or unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp"), hex(ord(char))
        assert not 0x202A <= ord(char) <= 0x202E
        assert not 0x2066 <= ord(char) <= 0x2069
    assert sanitise(clean) == clean
    assert json.loads(json.dumps(clean).encode()) == clean
    clean.encode()


@pytest.mark.parametrize("unit", ["\x1b]0;", "\x1b[", "\x9d", "a\x08", "a\r", "\u200d", "_\x08", "\x1bP\x1b"])
def test_broken_sequences_cost_time_in_proportion(unit: str) -> None:
    def seconds(size: int) -> float:
        text = unit * size
        return least_cpu(lambda: sanitise(text))

    assert seconds(160_000) < 24 * seconds(20_000) + 0.05


# --- secrets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hiding",
    [
        "AKIA\x1b[0mIOSFODNN7EXAMPLE",
        "AKIA\x08IOSFODNN7EXAMPLE",
        "AKIA\u200bIOSFODNN7\u2060EXAMPLE",
        "AKIA\ufe0f\u200d\ufe0fIOSFODNN7EXAMPLE",
        "A\x00K\x00I\x00A\x00IOSFODNN7EXAMPLE",
        "AKIA\x1b]8;;x\x1b\\IOSFODNN7EXAMPLE",
        "\u202eAKIAIOSF\u202cODNN7EXAMPLE",
        "AKIA\x0cIOSFODNN7EXAMPLE",
    ],
)
def test_a_secret_with_something_invisible_inside_is_still_found(hiding: str) -> None:
    assert captured(hiding.encode()) == Captured(stdout="[redacted:aws-access-key]", redacted={"aws-access-key": 1})


def test_what_was_taken_out_is_counted_by_kind_over_both_streams() -> None:
    capture = Capture(Limits(), Redactor([VALUE]))
    capture.feed("stdout", f"{KEY} {VALUE}".encode())
    capture.feed("stderr", f"{KEY}\n".encode())
    assert capture.finish() == Captured(
        stdout="[redacted:aws-access-key] [redacted:known-secret]",
        stderr="[redacted:aws-access-key]\n",
        redacted={"aws-access-key": 2, "known-secret": 1},
    )


PEM = (
    "-----BEGIN PRIVATE KEY-----\n"
    + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7\n" * 40
    + "-----END PRIVATE KEY-----"
)


@pytest.mark.parametrize("secret", [KEY, VALUE, PEM], ids=["pattern", "value", "key"])
@pytest.mark.parametrize("place", ["head", "tail"])
@pytest.mark.parametrize("filler", [".", "\x1b[m."], ids=["plain", "coloured"])
def test_no_cut_leaves_half_a_secret(secret: str, place: str, filler: str) -> None:
    # Coloured text shrinks to a quarter, so that what was cut off while capturing is in sight.
    size = 1000 if filler == "." else 400_000
    limits = Limits(output_bytes=size, output_lines=10**6)
    parts = [secret[i : i + 9] for i in range(0, len(secret) - 8, 9)]
    margin, keep = 16384, size // 2 + 4 * 16384
    # Across every edge there is: what is shown, what is only looked at, and what is not kept at all.
    for edge in (size // 2 - 48, keep, keep - margin * len(filler)):
        for shift in range(-len(secret) - 2, 3, 7 if len(secret) < 100 else 431):
            outside, inside = (edge + shift) // len(filler) * filler, filler * 200_000
            text = f"{outside} {secret} {inside}" if place == "head" else f"{inside} {secret} {outside}"
            shown = captured(text.encode(), limits, values=(VALUE,)).stdout
            assert "." in shown
            assert len(shown.encode()) <= size
            assert not any(part in shown for part in parts), (edge, shift)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_known_secret_never_appears_in_any_chunking(data: st.DataObject) -> None:
    values = data.draw(st.lists(st.text("abcXYZ019/+é", min_size=6, max_size=12), min_size=1, max_size=3))
    noise = st.text("abcXYZ019/+é \n", max_size=40)
    text = "".join(data.draw(noise) + data.draw(st.sampled_from(values)) for _ in range(data.draw(st.integers(1, 30))))
    limits = Limits(output_bytes=data.draw(st.integers(1, 600)), output_lines=data.draw(st.integers(1, 12)))
    chunk = data.draw(st.integers(1, 50))
    shown = captured(text.encode(), limits, chunk=chunk, values=tuple(values))
    assert not any(value in shown.stdout for value in values)
    assert shown == captured(text.encode(), limits, values=tuple(values))


FRAGMENTS = [
    "\x1b", "\x1b[", "\x1b[3", "\x1b[1;31", "\x1b[1;31m", "\x1b[?25", "\x1b[38;5;", "\x1b[0K", "\x1b(", "\x1b(B",
    "\x1bc", "\x1b]", "\x1b]0;", "\x1b]0;title\x07", "\x1b]8;;x\x1b\\", "\x1bP", "\x1b_", "\x9b", "\x9b31", "\x9b31m",
    "\x9d", "\x00", "\x07", "\x08", "\r", "\x7f", "\u200b", "\ufeff", "\x1b[\x1b[", "\x1b[3\u200b1",
]  # fmt: skip


@pytest.mark.parametrize("fragment", FRAGMENTS)
@pytest.mark.parametrize("place", [0, 4, 11])
def test_an_escape_takes_no_letter_of_a_secret_along(fragment: str, place: int) -> None:
    value = "Tr0ub4dor-and-3"
    shown = captured(f"a {value[:place]}{fragment}{value[place:]} z".encode(), values=(value,))
    assert shown.stdout.endswith("[redacted:known-secret] z")
    assert shown.redacted == {"known-secret": 1}


@pytest.mark.parametrize("token", [KEY, "ghp_" + "aB3dE6" * 6, "GB82 WEST 1234 5698 7654 32", "password=hunter2x9"])
@pytest.mark.parametrize(
    "fragment", ["\x1b", "\x1b[", "\x1b[1;31", "\x1b[?1", "\x1b(", "\x9b", "\x1b[1;31m", "\x1b[" + "1;" * 99]
)
def test_nor_of_what_only_looks_like_one(token: str, fragment: str) -> None:
    (kind,) = Redactor().redact(token)[1]
    shown = captured(f"{fragment}{token} z".encode())
    assert shown.stdout.removeprefix("password=") == f"[redacted:{kind}] z"
    assert shown.redacted == {kind: 1}


def test_colours_around_and_inside_a_secret_leave_nothing_behind() -> None:
    mail = "\x1b[1;31mana@exemplo.com.br\x1b[0m, \x1b]8;;mailto:ana@exemplo.com.br\x1b\\write\x1b]8;;\x1b\\"
    assert captured(mail.encode()) == Captured(stdout="[redacted:email], write", redacted={"email": 1})
    # What is found before the colours go may be only a part: the whole is still to be found after.
    for cut in (27, 60):
        coloured = PEM[:cut] + "\x1b[0m" + PEM[cut:-30]
        assert captured(coloured.encode()).stdout == "[redacted:private-key]"
    glued = captured(b"AKIAIOSFODNN7EXAM\x1b[0mPLE-and-more", values=("EXAMPLE-and-more",))
    assert glued.stdout == "[redacted:aws-access-key]"
    twice = captured(b"0111B1\x1b[00111B1\x1b[0", values=("0111B10",))
    assert twice.stdout == "[redacted:known-secret]" * 2
    erased = captured(b"Tr0ub4dor_\x08 z", values=("Tr0ub4dor_",))
    assert erased.stdout == "[redacted:known-secret] z"


def test_a_value_with_something_invisible_in_it_is_found_without_it() -> None:
    for value in ("\ufeffTr0ub4dor", "Tr0u\u200bb4dor", "Tr0u\rb4dor", "Tr0u\x1b[31mb4dor"):
        assert captured(f"a\x1b[m {value}".encode(), values=(value,)).stdout == "a [redacted:known-secret]"
    assert Redactor(["\ufeffTr0ub4dor"]).redact("Tr0ub4dor")[0] == "[redacted:known-secret]"


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_neither_a_secret_nor_its_end_appears_whatever_escapes_surround_it(data: st.DataObject) -> None:
    value = data.draw(st.text("aBmKP]_[;01?/ é", min_size=6, max_size=14).map(str.strip))
    # Two of a value that ends as it begins (`0000000`) can overlap, and then there is no saying where one ends.
    assume(len(value) >= 6 and not any(value.startswith(value[at:]) for at in range(1, len(value))))
    inside = data.draw(st.lists(st.tuples(st.integers(0, len(value)), st.sampled_from(FRAGMENTS)), max_size=4))
    broken = value
    for place, fragment in sorted(inside, reverse=True):
        broken = broken[:place] + fragment + broken[place:]
    noise = st.lists(st.sampled_from(["x", ".", " ", "\n", "ç", *FRAGMENTS]), max_size=5).map("".join)
    raw = "".join(data.draw(noise) + broken for _ in range(data.draw(st.integers(1, 3)))) + data.draw(noise)
    limits = Limits(output_bytes=data.draw(st.sampled_from([40, 150, 10_000])))
    shown = captured(raw.encode(), limits, chunk=data.draw(st.integers(1, 50)), values=(value,))
    assert value[-6:] not in shown.stdout
    assert shown.stdout.count("[redacted:") == sum(shown.redacted.values())


# --- bounds --------------------------------------------------------------------------------------------------


def test_short_output_is_not_touched() -> None:
    for text in ("", "x", "x\n", "\n\n", "Olá\nno newline at the end"):
        assert captured(text.encode()) == Captured(stdout=text)


def test_head_and_tail_are_kept_and_the_marker_says_how_much_is_missing() -> None:
    text = "".join(f"line {n}\n" for n in range(1, 5001))
    shown = captured(text.encode())
    lines = shown.stdout.splitlines()
    assert len(lines) == 1000
    assert (lines[0], lines[499], lines[501], lines[-1]) == ("line 1", "line 500", "line 4502", "line 5000")
    assert lines[500] == "[… 4,001 lines, 38.6 KB left out …]"
    assert shown.omitted == {"stdout": sum(len(f"line {n}\n") for n in range(501, 4502))}


def test_lines_that_were_never_kept_are_counted_too() -> None:
    shown = captured(b"0123456789abcde\n" * 500_000, Limits(output_total=2**30), chunk=1000)
    assert shown.omitted == {"stdout": 16 * (500_000 - 999)}
    assert "[… 499,001 lines, 7.6 MB left out …]\n" in shown.stdout


def test_one_endless_line_is_cut_inside() -> None:
    shown = captured(b"a" * 5_000_000 + "é".encode() * 2_500_000, Limits(output_bytes=1002))
    head, marker, tail = shown.stdout.split("\n")
    assert set(head) == {"a"}
    assert set(tail) == {"é"}
    assert marker == "[… 9.5 MB left out …]"
    # Half a character at the edge of what was kept has become U+FFFD, of three bytes.
    assert 0 <= shown.omitted["stdout"] + len(head) + 2 * len(tail) - 10_000_000 <= 2


def test_invalid_bytes_become_replacement_characters() -> None:
    assert (
        captured(b"ok \xff\xfe \xc3( \xed\xa0\x80 fim \xc3").stdout
        == "ok \ufffd\ufffd \ufffd( \ufffd\ufffd\ufffd fim \ufffd"
    )


def test_a_character_split_between_chunks_is_whole() -> None:
    assert captured("ação 👍".encode(), chunk=1).stdout == "ação 👍"


def test_the_run_is_told_to_stop_once_both_streams_exceed_the_total() -> None:
    capture = Capture(Limits(output_total=10), Redactor())
    assert capture.feed("stdout", b"12345")
    assert capture.feed("stderr", b"12345")
    assert not capture.feed("stdout", b"6")
    assert not capture.feed("stderr", b"")
    assert capture.finish() == Captured(stdout="123456", stderr="12345")


def test_memory_is_bounded_whatever_is_printed() -> None:
    import tracemalloc

    limits = Limits(output_bytes=10_000, output_total=2**40)
    capture = Capture(limits, Redactor())
    block = b"x" * 65536
    tracemalloc.start()
    for _ in range(2000):
        capture.feed("stdout", block)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_500_000


@given(
    st.lists(
        st.sampled_from(
            ["a", "é", "👍", "\n", "\n\n", "word ", KEY + " ", "\x1b[1m", "\xff", "x" * 70, "ana@host.io "]
        ),
        max_size=80,
    ),
    st.integers(1, 400),
    st.integers(1, 20),
)
@settings(max_examples=300, deadline=None)
def test_the_bounds_hold_marker_included_and_nothing_is_lost_in_silence(
    parts: list[str], size: int, lines: int
) -> None:
    limits = Limits(output_bytes=size, output_lines=lines)
    shown = captured("".join(parts).encode(), limits)
    assert len(shown.stdout.encode()) <= size
    assert shown.stdout.count("\n") + (not shown.stdout.endswith("\n") and shown.stdout != "") <= lines
    whole = captured("".join(parts).encode(), Limits(output_bytes=10**6, output_lines=10**6)).stdout
    if not shown.omitted:
        assert shown.stdout == whole
    elif size > 96:
        assert "left out …]" in shown.stdout
    assert shown.redacted.get("email", 0) == shown.stdout.count("[redacted:email]")
    assert shown.stdout.count("[redacted:") == sum(shown.redacted.values())


@pytest.mark.parametrize("colour", ["", "\x1b[32m"])
def test_a_progress_bar_does_not_eat_the_lines_around_it(colour: str) -> None:
    bar = "".join(f"\r{colour}progress {number}" for number in range(200_000))
    capture = Capture(Limits(), Redactor())
    for chunk in ("starting\n", *(bar[at : at + 65536] for at in range(0, len(bar), 65536)), "\nRESULT=42\n"):
        capture.feed("stdout", chunk.encode())
    text = capture.finish().stdout
    assert text.startswith("starting\n")
    assert text.endswith("RESULT=42\n")
