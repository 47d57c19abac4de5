"""All that was printed can be read later: clean, bounded, ours alone; and what was never finished leaves nothing."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from artifact_run import LINES, SHORT, Run, left, whole
from held_memory import held_memory

from redoma.lib.errors import InvalidRequest, RedomaError
from redoma.models import KiB, MiB
from redoma.output import cleaning
from redoma.output.artifacts import Store
from redoma.output.capture import Capture, Ends
from redoma.redaction import Redactor

KEY = "AKIAIOSFODNN7EXAMPLE"
VALUE = "correct-horse-battery-staple"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state" / "artifacts")


# --- what is kept --------------------------------------------------------------------------------------------


def test_an_ordinary_run_asks_for_nothing_and_touches_nothing(store: Store) -> None:
    run = Run(store).prints(b"hello\n" * 10)
    assert run.ends().artifacts == {}
    assert run.asked == []
    assert not store.directory.exists()


@pytest.mark.parametrize("size", [5000, 170_000, 300_000, 3_000_000])
def test_all_of_it_is_kept_however_long_it_is(store: Store, size: int) -> None:
    """In memory, at the border where something is dropped at the end only, and far beyond."""
    data = LINES[:size]
    captured = Run(store).prints(data).ends()
    artifact = captured.artifacts["stdout"]
    assert whole(artifact) == data.decode()
    assert artifact.size == size
    assert artifact.sha256 == hashlib.sha256(data).hexdigest()
    assert artifact.line_count == len(data.decode().splitlines())
    assert artifact.missing == ""
    assert captured.omitted["stdout"] > 0
    assert len(captured.stdout) <= SHORT.output_bytes


def test_the_result_is_the_same_with_and_without(store: Store) -> None:
    data = LINES[:1_000_000] + KEY.encode() + b"\n" + LINES[:300_000]
    kept = Run(store).prints(data).ends()
    plain = Capture(SHORT, Redactor())
    plain.feed("stdout", data)
    assert msgspec.structs.replace(kept, artifacts={}) == plain.finish()


def test_both_streams_are_kept_apart(store: Store) -> None:
    run = Run(store)
    for number in range(3000):
        run.capture.feed("stdout", b"out %d\n" % number)
        run.capture.feed("stderr", b"err %d\n" % number)
    artifacts = run.ends().artifacts
    assert whole(artifacts["stdout"]).startswith("out 0\nout 1\n")
    assert whole(artifacts["stderr"]).endswith("err 2999\n")
    assert left(store) == ["run.stderr", "run.stdout"]


@pytest.mark.parametrize("data", [b'{"a": [1, 2, 3]}, ' * 200_000, "ação — über ".encode() * 200_000])
def test_one_line_without_an_end_is_kept(store: Store, data: bytes) -> None:
    artifact = Run(store).prints(data, chunk=10_007).ends().artifacts["stdout"]
    assert artifact.read(0, artifact.size) == data
    assert artifact.missing == ""


# --- clean ---------------------------------------------------------------------------------------------------


def test_it_is_sanitised_as_a_result_is(store: Store) -> None:
    data = b"\x1b[31mred\x1b[0m \x07bell\r\n10%\r20%\r100%\n\xff\xfe bad\n" * 20_000
    text = whole(Run(store).prints(data, chunk=4099).ends().artifacts["stdout"])
    assert text == "red bell\n100%\n\ufffd\ufffd bad\n" * 20_000


def secret_places() -> Iterator[tuple[str, bytes]]:
    block = cleaning.BLOCK
    for shift in (-30, -10, -1, 0, 1, 10):
        yield (
            f"block{shift:+}",
            b"x" * 63 + b"\n" + (b"y" * 63 + b"\n") * ((block - 64) // 64 - 1) + b"z" * (64 + shift),
        )
    yield "line", b"word " * 400_000


@pytest.mark.parametrize(
    ("name", "before"), list(secret_places()), ids=lambda value: value if isinstance(value, str) else ""
)
@pytest.mark.parametrize("chunk", [1000, 65536])
def test_a_secret_across_any_border_is_not_written(store: Store, name: str, before: bytes, chunk: int) -> None:
    data = before + f" {KEY} {VALUE} ".encode() + b"and the rest\n" + LINES[:200_000]
    artifact = Run(store, secrets=(VALUE,)).prints(data, chunk=chunk).ends().artifacts["stdout"]
    text = whole(artifact)
    assert artifact.redacted == {"aws-access-key": 1, "known-secret": 1}
    assert "[redacted:aws-access-key] [redacted:known-secret] and the rest\n" in text
    assert KEY not in text
    assert VALUE not in text
    assert artifact.missing == ""


def test_secrets_are_never_on_the_disk_not_even_on_the_way(store: Store) -> None:
    lines = f"a {KEY} b\nc {VALUE} d\n".encode() * 2000
    run = Run(store, secrets=(VALUE,))
    seen = b""
    for _ in range(30):
        run.prints(lines)
        for part in left(store):
            seen += (store.directory / part).read_bytes()
    assert b"[redacted:known-secret]" in seen
    assert KEY.encode() not in seen
    assert VALUE.encode() not in seen
    run.ends()


def test_a_secret_of_several_lines_is_taken_out_at_block_borders(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "BLOCK", 512)
    secret = "first-part-of-it\nsecond-part\nthird-part-is-longer-than-that"
    pem = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEA7bq83vEjRWeJCrze8SNFZ4kKvN7xI0VniQ\n" * 30
    pem += "-----END RSA PRIVATE KEY-----\n"
    rng = random.Random(5)
    data = "".join(
        rng.choice(("plain line\n", "x" * rng.randrange(200) + "\n", f"{secret}\n", pem)) for _ in range(3000)
    )
    text = whole(Run(store, secrets=(secret,)).prints(data.encode(), chunk=397).ends().artifacts["stdout"])
    for part in (*secret.split("\n"), "MIIEpAIBAAKCAQEA7b"):
        assert part not in text
    assert text.count("[redacted:private-key]") == data.count("BEGIN RSA")


def test_wherever_a_long_line_is_cut_it_is_in_no_secret_and_not_after_the_name_of_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "MAX_WAITING", 128 * KiB)
    named = "hunter2hunter2"
    data = f"{VALUE} {KEY} ".encode() * 8000 + f"password={named} ".encode() * 20_000
    artifact = Run(store, secrets=(VALUE,)).prints(data, chunk=9973).ends().artifacts["stdout"]
    text = whole(artifact)
    for part in (VALUE[:12], VALUE[-12:], KEY[:8], KEY[-8:], named[:8]):
        assert part not in text
    assert artifact.missing == ""
    assert text.count("[redacted:known-secret]") == text.count("[redacted:aws-access-key]") == 8000


def material(rng: random.Random) -> bytes:
    pieces = [
        b"ordinary text\n",
        b"\x1b[1;31mcolour\x1b[0m\n",
        KEY.encode() + b"\n",
        VALUE.encode() + b" ",
        b"Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5LXN0YXBsZQ==\n",
        b"mail a.b@example.com now\n",
        b"password=hunter2hunter2\n",
        b"10%\r20%\r",
        b"\xff\xc3",
        "é—👩\u200d💻\u2028".encode(),
        b"AKIA\x1b[0mIOSFODNN7EXAMPLE\n",
        b"\n",
        b"MIIEpAIBAAKCAQEA7bq83vEjRWeJCrze8SNFZ4kKvN7xI0VniQ\n",
    ]
    return b"".join(rng.choices(pieces, k=rng.randrange(50, 400)))


def test_in_pieces_it_is_what_it_would_be_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cleaning of a result, which sees everything at once, is the measure."""
    monkeypatch.setattr(cleaning, "BLOCK", 256)
    rng = random.Random(7)
    redactor = Redactor([VALUE])
    for _ in range(40):
        data = material(rng)
        ends = Ends(len(data) + 1)
        ends.add(data)
        measure = ends.clean(redactor).data
        pieces, at = cleaning.StreamCleaner(redactor), 0
        text = b""
        while at < len(data):
            size = rng.randrange(1, 300)
            text += pieces.add(data[at : at + size])
            at += size
        assert text + pieces.end() == measure


# --- bounds --------------------------------------------------------------------------------------------------


def test_no_more_is_kept_than_a_run_may_print_even_if_cleaning_makes_it_longer(store: Store) -> None:
    limits = msgspec.structs.replace(SHORT, output_total=1 * MiB)
    artifact = (
        Run(store, limits).prints(b"\xff" * 63 + b"\n" + (b"\xff" * 63 + b"\n") * 16_000).ends().artifacts["stdout"]
    )
    assert 0 < artifact.size <= 1 * MiB
    assert "more than may be kept" in artifact.missing
    assert whole(artifact).endswith(f"\n[… the rest was not kept: {artifact.missing} …]\n")


def test_a_cut_is_not_in_the_middle_of_a_character(tmp_path: Path) -> None:
    for extra in range(4):
        store = Store(tmp_path / f"artifacts{extra}", total=100_000 + extra)
        artifact = Run(store).prints("👩€é".encode() * 30_000).ends().artifacts["stdout"]
        text = whole(artifact)
        assert text.endswith(f"\n[… the rest was not kept: {artifact.missing} …]\n")
        assert 99_000 < artifact.size <= store.total


def test_a_line_without_an_end_that_is_no_plain_text_is_given_up_in_bounded_memory(store: Store) -> None:
    run = Run(store).prints(LINES[:400_000])
    with held_memory() as held:
        for _ in range(16):
            run.prints(b"10%\r" * 250_000)
        assert held() < 4 * MiB
    captured = run.ends()
    artifact = captured.artifacts["stdout"]
    assert "is longer than" in artifact.missing
    assert whole(artifact).startswith("line 0 of many\nline 1 of many\n")
    assert captured.stdout.startswith("line 0")


def test_text_made_to_wear_us_out_is_given_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "MAX_SECONDS", 0.0)
    artifact = Run(store).prints(LINES).ends().artifacts["stdout"]
    assert "took more than" in artifact.missing
    assert 0 < artifact.size < len(LINES)


# --- a disk that is full, and other trouble ------------------------------------------------------------------


def test_a_full_disk_costs_the_rest_and_not_the_result(store: Store) -> None:
    """By a limit on the size of files, which fails as a full disk does: with a short write, and then an error."""
    script = """
import resource, sys, pathlib
from redoma.output.artifacts import Store
from redoma.models import Limits
from redoma.output.capture import Capture
from redoma.redaction import Redactor
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
store, redactor = Store(pathlib.Path(sys.argv[1])), Redactor()
capture = Capture(Limits(output_bytes=4096), redactor, None, lambda s: store.spool("run", s, redactor, 1 << 26))
for number in range(300_000):
    capture.feed("stdout", b"line %d of many\\n" % number)
captured = capture.finish()
capture.close()
artifact = captured.artifacts["stdout"]
assert "line 0 of many" in captured.stdout and "line 299999 of many" in captured.stdout
text = artifact.read(0, artifact.size).decode()
assert artifact.missing == "File too large", artifact
assert text.endswith("\\n[… the rest was not kept: File too large …]\\n"), text[-200:]
lines = text.splitlines()
assert lines[:-1] == [f"line {n} of many" for n in range(len(lines) - 1)]
assert len(lines) > 50_000
"""
    subprocess.run([sys.executable, "-c", script, str(store.directory)], check=True)
    assert left(store) == ["run.stdout"]


def test_where_nothing_can_be_written_the_result_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    captured = Run(Store(tmp_path / "file" / "artifacts")).prints(LINES).ends()
    artifact = captured.artifacts["stdout"]
    assert "line 199999 of many" in captured.stdout
    assert artifact.size == 0
    assert artifact.missing == os.strerror(errno.ENOTDIR)
    with pytest.raises(RedomaError):
        artifact.read()


@pytest.mark.parametrize("name", ["../../up", ".hidden", "a/b", "", "x" * 200, "nul\0", "new\nline"])
def test_an_id_can_t_lead_anywhere_else(store: Store, tmp_path: Path, name: str) -> None:
    artifact = Run(store, name=name).prints(LINES).ends().artifacts["stdout"]
    assert artifact.size == 0
    assert artifact.missing
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_an_id_used_again_does_not_replace_what_was_kept(store: Store) -> None:
    first = Run(store).prints(b"first\n" * 5000).ends().artifacts["stdout"]
    second = Run(store).prints(b"second\n" * 5000).ends().artifacts["stdout"]
    assert second.size == 0
    assert second.missing == os.strerror(errno.EEXIST)
    assert whole(first) == "first\n" * 5000
    assert left(store) == ["run.stdout"]


# --- reading -------------------------------------------------------------------------------------------------


def test_ranges_of_bytes_and_of_lines(store: Store) -> None:
    artifact = Run(store).prints(LINES).ends().artifacts["stdout"]
    assert artifact.read(5, 10) == LINES[5:15]
    assert artifact.read(len(LINES) - 3, 100) == LINES[-3:]
    assert artifact.read(len(LINES) + 5, 100) == b""
    assert artifact.lines(1, 2) == ["line 0 of many", "line 1 of many"]
    assert artifact.lines(199_999, 10) == ["line 199998 of many", "line 199999 of many"]
    assert artifact.lines(300_000) == []
    assert artifact.lines(3, 0) == []
    for call in (lambda: artifact.read(-1, 5), lambda: artifact.read(0, -5), lambda: artifact.lines(0, 5)):
        with pytest.raises(InvalidRequest):
            call()


def test_lines_that_fit_a_pattern_of_any_kind(store: Store) -> None:
    Run(store).prints(LINES + b"a" * 100_000 + b"!\n").ends()
    kept = store.find("run")
    assert list(kept.matching(r"^line 1[23] of")) == [(13, "line 12 of many"), (14, "line 13 of many")]
    assert list(kept.matching(r"^(a+)+$")) == []
    with pytest.raises(InvalidRequest):
        list(kept.matching("("))


def test_it_is_found_by_the_beginning_of_its_id(store: Store) -> None:
    for name in ("3f2a11", "3f2b22", "3f"):
        Run(store, name=name).prints(LINES[:20_000]).ends()
    assert store.find("3f2a").id == "3f2a11"
    assert store.find("3f").id == "3f"
    for bad in ("3f2", "nope", ""):
        with pytest.raises(InvalidRequest):
            store.find(bad)
    with pytest.raises(InvalidRequest, match="stderr"):
        store.find("3f2a", "stderr")
