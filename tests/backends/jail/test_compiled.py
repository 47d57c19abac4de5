"""The compiled part: what it reads can't upset it, and it compiles without a warning for both architectures."""

from __future__ import annotations

import importlib.util
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from jail_insides import jail, pool_of, run

from redoma.backends.jail import compiled

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
STRICT = ["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Wshadow", "-Wno-unused-function", "-Werror"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def test_both_sides_have_the_same_structures(tmp_path: Path) -> None:
    source = tmp_path / "sizes.c"
    values = "sizeof(struct cell_order), offsetof(struct zygote, seed), offsetof(struct zygote, found)"
    tell = f'printf("%zu %zu %zu %zu\\n", {values}, sizeof(struct zygote));'
    source.write_text(f'#include "cell.c"\nint main(void) {{ {tell} }}\n')
    told = subprocess.run([built(tmp_path, source, [])], capture_output=True, text=True, check=True).stdout.split()
    data = compiled.ZygoteData
    here = [len(bytes(compiled.CellOrder())), data.seed.offset, data.found.offset, len(bytes(data()))]
    assert list(map(int, told)) == here


def built(place: Path, source: Path, options: list[str]) -> Path:
    program = place / source.stem
    include = ["-I", str(ROOT / "src/redoma/backends/jail/c")]
    subprocess.run(["cc", *STRICT, *options, *include, "-o", program, source], check=True)
    return program


SEEDS = [
    b"2 (a b) ) R) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30\n",
    b"Name:\tx\nVmRSS:\t    1234 kB\nVmPTE:\t 99 kB\nPss: 18446744073709551615 kB\n",
    struct.pack("<QqHB", 1, 1, 24, 4) + b"4711\0" + struct.pack("<QqHB", 1, 1, 24, 4) + b"self\0",
    b"36 35 98:0 /host /opt/my\\040app ro - ext4 /dev/root rw\n1 2 3 4 /opt/x\\7 - overlay\n",
    b"",
    b"\0" * 64,
]


def mutated(count: int, seed: int) -> bytes:
    """Pieces like what the kernel writes, and less and less like it."""
    draw, out = random.Random(seed), bytearray()
    for _ in range(count):
        piece = bytearray(draw.choice(SEEDS))
        for _ in range(draw.randrange(6)):
            place = draw.randrange(len(piece) + 1)
            match draw.randrange(4):
                case 0:
                    piece[place : place + draw.randrange(8)] = b""
                case 1:
                    piece[place:place] = draw.choice([b" ", b")", b"(", b"\n", b"\\", b"\0", b"9" * 30, b"\xff"])
                case 2 if piece:
                    piece[place % len(piece)] = draw.randrange(256)
                case _:
                    piece[place:place] = draw.choice(SEEDS)
        out += struct.pack("=I", len(piece)) + piece
    return bytes(out)


@pytest.mark.parametrize("name", ["fuzz_init", "fuzz_cell"])
def test_no_input_makes_it_read_or_write_where_it_should_not(name: str, tmp_path: Path) -> None:
    program = built(tmp_path, HERE / f"{name}.c", SANITIZERS)
    done = subprocess.run([program], input=mutated(50_000, 4711), capture_output=True, check=False)
    assert done.stderr.decode() == ""
    assert done.stdout == b"50000\n"


def hatch_build() -> ModuleType:
    about = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert about is not None
    assert about.loader is not None
    module = importlib.util.module_from_spec(about)
    about.loader.exec_module(module)
    return module


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_it_compiles_without_a_compiler_of_the_machine(
    machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the one from PyPI, and for the other architecture, too."""
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.delenv("CC", raising=False)
    module = hatch_build()
    assert module.compiler(machine)[:3] == [sys.executable, "-m", "ziglang"]
    all_made = module.compile_all(tmp_path, machine)
    assert len(all_made) == 4
    kinds = {"x86_64": 62, "aarch64": 183}
    for made in all_made:
        assert int.from_bytes(made.read_bytes()[18:20], "little") == kinds[machine]


async def test_orders_that_make_no_sense_are_refused_and_the_next_is_served(tmp_path: Path) -> None:
    executor, backend = jail(tmp_path, minimum=1)
    async with executor:
        assert (await run(executor, "6 * 7")).value == 42
        zygote = pool_of(backend)._zygote
        assert zygote is not None
        pid = zygote.pid
        for order in (b"x", b"x" * 100, b"\xff" * len(bytes(compiled.CellOrder()))):
            zygote.socket.send(order)
        for _ in range(5):
            assert (await run(executor, "6 * 7")).value == 42
        assert pool_of(backend).zygote_pid == pid
