"""The compiled supervisor: what it reads can't upset it, and both sides agree on its structures."""

from __future__ import annotations

import random
import struct
import subprocess
from pathlib import Path

from redoma.backends.native.backend import _ORDER, _REPORT

HERE = Path(__file__).parent
SOURCES = HERE.parents[2] / "src/redoma/backends/native/c"
STRICT = ["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Wshadow", "-Wno-unused-function", "-Werror"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def built(place: Path, source: Path, options: list[str]) -> Path:
    program = place / source.stem
    subprocess.run(["cc", *STRICT, *options, "-I", str(SOURCES), "-o", program, source], check=True)
    return program


def test_both_sides_have_the_same_structures(tmp_path: Path) -> None:
    source = tmp_path / "sizes.c"
    tell = 'printf("%zu %zu\\n", sizeof(struct order), sizeof(struct report));'
    source.write_text(f'#include <stdio.h>\n#include "supervisor.h"\nint main(void) {{ {tell} }}\n')
    told = subprocess.run([built(tmp_path, source, [])], capture_output=True, text=True, check=True).stdout.split()
    assert list(map(int, told)) == [_ORDER.size, _REPORT.size]


def test_no_input_makes_it_read_or_write_where_it_should_not(tmp_path: Path) -> None:
    draw, out = random.Random(4711), bytearray()
    seeds = [b"/\0/usr/bin/true\0true\0-x\0A=b\0", b"1 22 333 4294967295 99999999999999999999 0 7", b"", b"\0" * 40]
    for _ in range(50_000):
        piece = bytearray(draw.choice(seeds))
        for _ in range(draw.randrange(6)):
            place = draw.randrange(len(piece) + 1)
            match draw.randrange(3):
                case 0:
                    piece[place : place + draw.randrange(8)] = b""
                case 1:
                    piece[place:place] = draw.choice([b" ", b"\0", b"9" * 30, b"\xff", bytes([draw.randrange(256)])])
                case _:
                    piece[place:place] = draw.choice(seeds)
        out += struct.pack("=I", len(piece)) + piece
    program = built(tmp_path, HERE / "fuzz_supervisor.c", SANITIZERS)
    done = subprocess.run([program], input=bytes(out), capture_output=True, check=False)
    assert done.stderr.decode() == ""
    assert done.stdout == b"50000\n"
