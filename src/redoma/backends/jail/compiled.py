"""How Python calls the compiled part.

`c/cell.c` makes cells in the zygote, and `c/init.c` is pid 1 of each: read them in that order. `c/image.c` copies a
Python process from one cell to another.
"""

from __future__ import annotations

import ctypes
import errno
import os

_PLACE = os.path.join(os.path.dirname(__file__), "built")
LIBRARY, INIT = os.path.join(_PLACE, "cell.so"), os.path.join(_PLACE, "init")
IMAGE = os.path.join(_PLACE, "image.so")

PROJECT_BYTES, LAYER_BYTES, PLACE_BYTES = 4096, 64, 256
FOUND_BYTES = 8192


class CellOrder(ctypes.Structure):
    """An order for a cell: `struct cell_order` of cell.h."""

    _fields_ = [
        ("disk", ctypes.c_uint64),
        ("files", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("without", ctypes.c_uint32),
        ("workspace", ctypes.c_uint32),
        ("project", ctypes.c_char * PROJECT_BYTES),
        ("layer", ctypes.c_char * LAYER_BYTES),
        ("place", ctypes.c_char * PLACE_BYTES),
        ("user", ctypes.c_uint32),
        ("listen", ctypes.c_uint32),
        ("ahead", ctypes.c_uint32),
        ("warm", ctypes.c_uint32),
    ]


_Strings = ctypes.POINTER(ctypes.c_char_p)


class ZygoteData(ctypes.Structure):
    """What is the same for all cells of a zygote, and what a guest finds when it begins: `struct zygote` of cell.c."""

    _fields_ = [
        ("orders", ctypes.c_int),
        ("redoma", ctypes.c_int),
        ("self", ctypes.c_int),
        ("init", ctypes.c_int),
        ("landlock", ctypes.c_int),
        ("on_disk", ctypes.c_int),
        ("shared", ctypes.c_int),
        ("lean", ctypes.c_int),
        ("fork", ctypes.c_void_p),
        ("filter", ctypes.c_char_p),
        ("filter_length", ctypes.c_uint64),
        ("namespaces", ctypes.c_uint64),
        ("map", ctypes.c_char_p),
        ("host_name", ctypes.c_char_p),
        ("run_options", ctypes.c_char_p),
        ("overlay_options", ctypes.c_char_p),
        ("project", ctypes.c_char_p),
        ("empty", ctypes.c_char_p),
        ("changes", ctypes.c_char_p),
        ("writable", _Strings),
        ("devices", _Strings),
        ("read_only", _Strings),
        ("variables", _Strings),
        ("spaces", _Strings),
        ("parts", _Strings),
        ("readable", _Strings),
        ("seed", ctypes.c_uint64),
        ("ahead", ctypes.c_uint32),
        ("warm", ctypes.c_uint32),
        ("place", ctypes.c_char * PLACE_BYTES),
        ("found", ctypes.c_char * FOUND_BYTES),
    ]


def strings(*texts: str) -> ctypes.Array[ctypes.c_char_p]:
    """Return an array of C strings that ends with NULL."""
    return (ctypes.c_char_p * (len(texts) + 1))(*map(os.fsencode, texts), None)


def fork_function(*, alone: bool) -> int | None:
    """Return the address of the C library's fork. With `alone` (no other thread can hold a lock), the one that runs no
    handlers.
    """
    library = ctypes.CDLL(None)
    function = getattr(library, "_Fork", library.fork) if alone else library.fork
    return ctypes.cast(function, ctypes.c_void_p).value


class Maker:
    """Makes cells, in the zygote. Created early, because our modules can't be imported later.

    `tell_python`: whether the interpreter must know of each fork. See `forks`.
    """

    def __init__(self, data: ZygoteData, *, tell_python: bool) -> None:
        self._data, self._library, self._python = data, load(), ctypes.pythonapi
        self._tell_python = tell_python
        # Looked up now: in a guest, looking for a name would copy and map pages of every library.
        self._after_fork, self._hold = self._python.PyOS_AfterFork_Child, self._library.cell_hold
        self._release, self._start = self._library.cell_release, self._library.cell_start

    def why_no_own_views(self) -> int:
        """Return 0 if each cell can have its own view of the read-only files, else the errno of why not."""
        return int(self._library.cell_own_views(ctypes.byref(self._data)))

    def serve(self) -> bool:
        """Make cells until Redoma is gone, then return False. Returns True in each guest."""
        if self._tell_python:
            self._python.PyOS_BeforeFork()
        if self._library.cell_serve(ctypes.byref(self._data)) == 0:
            return False
        if self._tell_python:
            self._after_fork()
        return True

    def hold(self) -> int:
        """In a guest: start the holder, which keeps its memory so that it ends quickly. Returns its id; 0 if such a
        cell has none. Raises `OSError`.
        """
        holder = int(self._hold())
        if holder < 0:
            raise OSError("no further process can be made")
        return holder

    def release(self) -> None:
        """In a guest that will execute a program: let the holder end as soon as it has done so."""
        self._release()

    def start(
        self, program: str, arguments: list[str], environment: dict[str, str], limits: list[tuple[int, int]]
    ) -> bool:
        """In a guest: execute a program with these resource limits, and return in a helper. Returns False if such a
        cell can have no helper; then nothing has happened. Raises `OSError`.
        """
        variables = (f"{name}={value}" for name, value in environment.items())
        numbers = [number for limit in limits for number in limit]
        bounds = (ctypes.c_uint64 * len(numbers))(*numbers)
        started: int = self._start(os.fsencode(program), strings(*arguments), strings(*variables), bounds, len(limits))
        if started < 0:
            raise OSError(f"{program} can't be started")
        return started > 0


_NO_IMAGE = {
    1001: "it shares memory with others ({0})",
    1002: "it has mapped a file that was deleted ({0})",
    1003: "its memory has too many parts",
    1004: "the image is not of this zygote",
    1005: "the C library is not one that we know",
    1006: "its pages can't be told apart",
    1007: "its Python is too large: it has to fit twice into the limit on memory",
}
"""By error number of c/image.c."""


class Imager:
    """Saves a process to a file, and loads one. Created in the zygote, so that it has the same address in all cells."""

    def __init__(self) -> None:
        self._library = ctypes.PyDLL(IMAGE)
        self._library.image_problem.restype = ctypes.c_char_p
        self._library.image_prepare.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
        self._library.image_save.argtypes = [ctypes.c_int, ctypes.c_uint64]
        for function in (self._library.image_save, self._library.image_load):
            function.restype = ctypes.c_long
        self._library.image_prepare(*(int.from_bytes(os.urandom(8), "little") for _ in range(2)))

    def settle(self) -> None:
        """Find where the C library keeps the id of this thread. Call it in a guest before anything else."""
        self._library.image_settle()

    def save(self, file: int, most: int) -> int:
        """Write this process, which must have one thread, to a file of at most `most` bytes.

        Returns the number of bytes; and 0 in each process that loads it. Raises `OSError` if it can't be saved.
        """
        if os.sysconf("SC_PAGESIZE") != 4096:
            raise OSError(errno.ENOSYS, "the pages of this kernel are not of 4 KiB")
        size: int = self._library.image_save(file, most)
        if size < 0:
            raise OSError(-size, self._why(-size))
        return size

    def load(self, file: int) -> None:
        """Become the process that was saved, and close the file. Raises `OSError` if that can't begin."""
        number = -self._library.image_load(file)
        raise OSError(number, self._why(number))

    def _why(self, number: int) -> str:
        what = _NO_IMAGE.get(number) or os.strerror(number)
        return what.format(os.fsdecode(self._library.image_problem() or b"") or "without a name")


def load() -> ctypes.PyDLL:
    """Return the library. Its functions are called with the interpreter's lock held, because they fork."""
    library = ctypes.PyDLL(LIBRARY)
    library.cell_step_name.restype = ctypes.c_char_p
    library.cell_place_shown.restype = ctypes.c_char_p
    return library


def step_names() -> tuple[str, ...]:
    """Return the names of the steps that tests may leave out. The index of one is its bit in `CellOrder.without`."""
    library = load()
    names: list[str] = []
    while (name := library.cell_step_name(len(names))) is not None:
        names.append(name.decode())
    return tuple(names)
