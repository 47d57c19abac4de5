"""What a container sends back is hostile: it is read within bounds, and never unpacked."""

from __future__ import annotations

import io
import tarfile

import pytest
from docker_bench import run

from redoma.backends import collect
from redoma.backends.docker import Box, DockerBackend
from redoma.backends.docker.received import Files, LastWord
from redoma.backends.docker.stub import TAKEN


def _tar(*entries: tuple[str, bytes | None], kind: bytes = tarfile.REGTYPE) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in entries:
            about = tarfile.TarInfo(name)
            about.type = kind if content is not None else tarfile.DIRTYPE
            about.size = len(content or b"") if kind == tarfile.REGTYPE else 0
            archive.addfile(about, io.BytesIO(content or b""))
    return stream.getvalue()


def _read(data: bytes, *patterns: str, given: dict[str, bytes] | None = None, step: int = 1000) -> Files:
    files = Files(patterns, given or {})
    for start in range(0, len(data), step):
        files.feed(data[start : start + step])
    return files


@pytest.mark.parametrize("step", [1, 511, 512, 513, 100_000])
def test_pieces_of_any_size_give_the_same(step: int) -> None:
    long = "d/" * 20 + "n" * 200
    sent = _tar(("./a", b"x" * 700), ("d", None), ("d/empty", b""), (long, b"deep"), ("not", b"asked for"))
    files, left_out = _read(sent, "a", "d/**", step=step).finish()
    assert (files, left_out) == ({"a": b"x" * 700, "d/empty": b"", long: b"deep"}, {})


def test_a_directory_asked_for_by_name_comes_back_with_all_below() -> None:
    sent = _tar(("d", None), ("d/a", b"a"), ("d/e", None), ("d/e/b", b"b"), ("da", b"other"), ("empty", None))
    files, left_out = _read(sent, "d", "empty").finish()
    assert (files, left_out) == ({"d/a": b"a", "d/e/b": b"b"}, {"empty/": "a directory with nothing new in it"})


def test_names_that_lead_elsewhere_are_passed_over() -> None:
    sent = _tar(("../up", b"x"), ("a/../../up", b"x"), ("/etc/passwd", b"x"), ("fine", b"x"))
    files, left_out = _read(sent, "**").finish()
    assert (files, left_out) == ({"fine": b"x"}, {})


def test_a_link_that_claims_to_have_content_does_not_hide_what_follows() -> None:
    stream = bytearray(_tar(("link", b""), kind=tarfile.SYMTYPE)[:512])
    stream[124:135] = b"00000001000"  # which no link has
    files, left_out = _read(bytes(stream) + _tar(("after", b"x")), "**").finish()
    assert (files, left_out) == ({"after": b"x"}, {"link": "a symbolic link, which is not followed"})


def test_what_is_said_about_other_entries_is_no_entry() -> None:
    """A link with a long target has an entry before it that holds the target, and a tar may begin with settings."""
    long = "n" * 150
    sent = tarfile.TarInfo.create_pax_global_header({"comment": "x" * 600})
    for name in ("link", long):
        about = tarfile.TarInfo(name)
        about.type, about.linkname = tarfile.SYMTYPE, "/" + "t" * 600
        sent += about.tobuf(tarfile.GNU_FORMAT)
    files, left_out = _read(sent + _tar(("after", b"x")), "**").finish()
    assert (files, set(left_out)) == ({"after": b"x"}, {"link", long})


def test_a_path_is_kept_as_it_was_judged() -> None:
    def named(name: str) -> bytes:
        about = tarfile.TarInfo("x")
        about.pax_headers, about.size = {"path": name}, 3
        return about.tobuf(tarfile.PAX_FORMAT) + b"abc".ljust(512, b"\0")

    sent = named("nul\0inside") + named("./d/slash/") + named("fine") + b"\0" * 1024
    files, left_out = _read(sent, "**").finish()
    assert (files, left_out) == ({"d/slash": b"abc", "fine": b"abc"}, {})


def test_count_bytes_depth_and_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    many = _read(_tar(*((f"f{n}", b"") for n in range(collect.MAX_FILES + 150))), "*", step=100_000)
    files, left_out = many.finish()
    assert len(files) == collect.MAX_FILES
    assert left_out["f1000"] == "more than 1,000 files"
    assert left_out[""] == "and 50 more"
    deep = "d/" * 40 + "f"
    assert _read(_tar((deep, b"x")), "**").finish()[1] == {deep: "nested deeper than 32 directories"}
    header = bytearray(_tar(("huge", b""))[:512])
    header[124:135] = b"77777777777"
    huge = Files(("huge",), {})
    huge.feed(bytes(header))
    huge.feed(b"x" * 1_000_000)
    assert len(huge._waiting) == 0, "what is not kept is not held either"
    assert "all files together may have" in huge.finish()[1]["huge"]
    header[156:157] = b"L"
    assert "a name without end" in _read(bytes(header), "**").finish()[1]["."]


def test_what_is_no_tar_or_has_no_end_is_told() -> None:
    assert "makes no sense" in _read(b"x" * 2048, "**").finish()[1]["."]
    assert _read(_tar(("a", b"x" * 2000))[:1000], "b").finish()[1] == {
        ".": "not all came back: the container ended before",
        "b": "there is no such file",
    }


def test_the_last_word_is_found_wherever_it_is_cut() -> None:
    number = b"0123456789"
    own = b"out 01" + number + b"+23 0123456 p" + (number + b"+") * 2 + b"ut"
    said = TAKEN + own + number + b"!start x: no\n" + b"after"
    for step in (1, 2, 3, 7, 100):
        last = LastWord(b"0123456789", None)
        own = b"".join(last.feed(said[start : start + step]) for start in range(0, len(said), step))
        assert (own + last.give(), last.passed, last.broken) == (b"out 0123 0123456 put", 3, "start x: no")
    last = LastWord(b"0123456789", None)
    assert last.feed(TAKEN + b"ends with 01234") + last.give() == b"ends with 01234"


def test_what_looks_like_the_beginning_of_the_last_word_is_given_once_and_hides_nothing() -> None:
    """After a pause wherever it is cut: output comes whole, and only the beginning of the nonce may come with it."""
    number = b"0123456789"
    own = b"out 01 0123 010101 a0" + b"x"
    said = own + number + b"+" + own + number + b"!start x: no\n"
    for first in range(len(said)):
        for second in range(first, len(said)):
            last = LastWord(number, None)
            last.feed(TAKEN)
            got = last.feed(said[:first]) + last.give() + last.give()
            got += last.feed(said[first:second]) + last.give() + last.feed(said[second:]) + last.give()
            assert (last.passed, last.broken) == (1, "start x: no")
            begun = [at - len(own) for at in (first, second - len(number) - 1, second, first - len(number) - 1)]
            assert got == own * 2 or got in {
                own + number[:one] + own + number[:two]
                for one in (0, *(at for at in begun if 0 < at < len(number)))
                for two in (0, *(at - len(own) for at in begun if 0 < at - len(own) < len(number)))
            }, (first, second)


async def test_a_program_that_forges_its_files_forges_its_own_only(backend: DockerBackend) -> None:
    """It has the rights of the stub, and can find the number out. What it says then is about itself."""
    code = """
import re, sys
with open('/proc/1/mem', 'rb', 0) as memory, open('/proc/1/maps') as maps:
    for line in maps:
        found = re.match(r'([0-9a-f]+)-([0-9a-f]+) rw', line)
        if not found: continue
        try:
            memory.seek(int(found[1], 16))
            held = memory.read(int(found[2], 16) - int(found[1], 16))
        except OSError: continue
        nonce = re.search(rb'nonce.{1,8}?([0-9a-f]{32})', held, re.DOTALL)
        if nonce: break
sys.stdout.buffer.write(nonce[1] + b'=\\n' + b'no tar at all' * 100)
sys.stdout.flush()
import time
time.sleep(600)
"""
    forged = await run(backend, code, outputs=("x",))
    assert forged.ending == ("error", 137), forged.stderr  # ended at once: it can't buy itself time with this
    assert (forged.outcome.files, set(forged.outcome.left_out)) == ({}, {".", "x"})


@pytest.mark.parametrize("runtime", [None, "runsc"])
@pytest.mark.parametrize("kind", ["python", "command", "busybox"])
async def test_what_is_too_large_is_not_even_sent(
    engine: str, kind: str, runtime: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with holes can be larger than anything that could be sent in time. What is just small enough
    is sent: once of the true size, else we say how large, for gVisor takes seconds to print so much."""
    most = collect.MAX_BYTES if (kind, runtime) == ("busybox", None) else 1 << 20
    for module in ("docker.stub", "collect"):
        monkeypatch.setattr(f"redoma.backends.{module}.MAX_BYTES", most)
    code = f"""
import os
os.mkdir("d")
for name in ("asked for", "d/other", "*? \\n"):
    with open(name, "wb") as file:
        file.truncate(1 << 40)
with open("largest", "wb") as file:
    file.truncate({most})
"""
    script = f"""mkdir d; for f in "asked for" d/other "$(printf '*? \\n.')"; do truncate -s 1099511627776 "$f"; done
    truncate -s {most} largest"""
    given = {
        "python": {"code": code},
        "command": {"argv": ("python3", "-c", code)},
        "busybox": {"language": "bash", "code": script},
    }[kind]
    backend = DockerBackend(Box(runtime=runtime), host=engine)
    try:
        limits = {"file_size": 1 << 41}
        ran = await run(backend, outputs=("asked for", "largest"), limits=limits, **given)  # type: ignore[arg-type]
    finally:
        await backend.aclose()
    assert ran.ending == ("ok", 0), ran.stderr
    assert ran.outcome.left_out == {
        "asked for": f"it has 1,099,511,627,776 bytes, and all files together may have {most:,}"
    }
    assert {name: len(content) for name, content in ran.outcome.files.items()} == {"largest": most}
