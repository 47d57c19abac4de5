"""The warm interpreter that cells are forked from.

It has executed only our own code and the modules that it was told to preload, and it holds no secret. It spends its
life in `cell_serve` of c/cell.c: receive an order for a cell with its descriptors, make the cell, close them. In each
guest that call returns, and `guest` takes over.
"""

from __future__ import annotations

import _signal
import gc
import importlib
import json
import os
import sys

from redoma.backends import linux
from redoma.backends.jail import compiled, forks, guest, protocol, root, seccomp
from redoma.backends.jail.configuration import (
    CHANGES,
    EMPTY,
    GUEST_ID,
    HOST_NAME,
    LEAN_DEVICES,
    LEAN_READABLE,
    LEAN_WRITABLE,
    NAMESPACES,
    OVERLAY_OPTIONS,
    PROJECT,
    READ_ONLY,
    RUN_BYTES,
    VARIABLES,
    WRITABLE,
    WRITABLE_DEVICES,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, NoReturn

_PARENT = 4
_SPACES = {"user": "user", "pid": "pid", "mount": "mnt", "net": "net", "ipc": "ipc", "uts": "uts", "cgroup": "cgroup"}
"""Namespaces: our name → the name in /proc/PID/ns."""


def main() -> NoReturn:
    """Prepare, then make cells until Redoma is gone. In each guest, run its order."""
    try:
        built = root.found_built()
        if built["lean"]:
            linux.adopt_orphans()  # of a cell whose init was killed
        else:
            # Cells make their namespaces below this one. First of all: a process with threads can't enter one.
            with root.step("user"):
                root.enter_user_namespace(0)
        variables = dict(os.environ)
        preload(built["preload"])
        settings = root.received()
        load(settings, variables)
        alone = is_alone()
        data = data_for_cells(built, settings, alone=alone)
    except Exception as error:  # importing a module may raise anything
        root.tell(root.SOCKET, error)
        os._exit(1)
    prelude = sys.modules[settings["prelude"]] if settings["prelude"] else None
    below = root.other_mounts(PROJECT, "/proc") if not built["lean"] and os.path.isdir(PROJECT) else []
    armed = {"modules": len(sys.modules), "changes": built["changes"], "why": built["why"], "below": below[:1]}
    maker = compiled.Maker(data, tell_python=not alone or forks.are_reported())
    try:
        armed["shared"] = "" if built["lean"] else why_files_are_shared(data, maker, built["bound"])
    except root.Broken as error:
        root.tell(root.SOCKET, error)
        os._exit(1)
    forget_ourselves()
    if not settings["once"]:
        fill_gaps()
        guest.rehearse()
    be_still()
    os.write(root.SOCKET, protocol.frame(protocol.ARMED, json.dumps(armed).encode()))
    if not maker.serve():
        os._exit(0)
    guest.start(data.found, data.seed, prelude, maker, data.place, ahead=bool(data.ahead), warm=bool(data.warm))


def load(settings: dict[str, Any], variables: dict[str, str]) -> None:
    """Load everything that cells are to find in memory, and set the environment variables that every run has: those
    that we were executed with. Raises `Broken`.
    """
    # Ignored signals are inherited, from Python or from whoever started Redoma (nohup). Guests get the defaults.
    # (`_signal`, because `signal` looks each number up in an enum.)
    for number in _signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP, _signal.SIGINT}:
        _signal.signal(number, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    if not settings["once"]:
        guest.load()
    preload(settings["preload"])
    if settings["prelude"] and hasattr(prelude := sys.modules[settings["prelude"]], "prepare"):
        prelude.prepare()
    guest.use_pipes()
    linux.hide_from_peers()  # other processes of this user on the host can't trace it
    if settings["preload"]:
        ignore_forks()
    os.environ.clear()  # a module may have set some
    os.environ.update(variables)
    del os.environ["PYTHONHASHSEED"]  # already used


def preload(names: Iterable[str]) -> None:
    """Import modules. Raises `Unloaded`."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise root.Unloaded(f"preload {name}: {type(error).__name__}: {error}") from error


def data_for_cells(built: dict[str, Any], settings: dict[str, Any], *, alone: bool) -> compiled.ZygoteData:
    """Return what c/cell.c has to know: our descriptors, and the settings of `configuration` and `seccomp`."""
    lean, on_disk = built["lean"], built["changes"] == "disk"
    program = seccomp.program(
        settings["watched"], changes_on_disk=lean or on_disk, lean=lean, own_user=settings["own_user"]
    )
    return compiled.ZygoteData(
        orders=root.SOCKET,
        redoma=_PARENT,
        self=os.pidfd_open(os.getpid()),
        init=os.open(compiled.INIT, os.O_RDONLY),
        landlock=linux.landlock_abi(),
        on_disk=on_disk,
        lean=lean,
        fork=compiled.fork_function(alone=alone),
        filter=program,
        filter_length=len(program) // 8,  # an instruction has 8 bytes
        namespaces=0 if lean else sum(NAMESPACES.values()),
        map=f"{GUEST_ID} {GUEST_ID} 1".encode(),
        host_name=HOST_NAME.encode(),
        run_options=f"mode=755,size={RUN_BYTES},nr_inodes=16".encode(),
        overlay_options=OVERLAY_OPTIONS.encode(),
        project=PROJECT.encode(),
        empty=EMPTY.encode(),
        changes=CHANGES.encode(),
        writable=compiled.strings(*(LEAN_WRITABLE if lean else WRITABLE)),
        devices=compiled.strings(*(f"/dev/{name}" for name in (LEAN_DEVICES if lean else WRITABLE_DEVICES))),
        read_only=compiled.strings(*READ_ONLY),
        variables=compiled.strings(*VARIABLES),
        spaces=compiled.strings(*(name for pair in _SPACES.items() for name in pair)),
        parts=compiled.strings(*(text for part in built["parts"] for text in part)),
        readable=compiled.strings(*LEAN_READABLE, *settings["readable"]),
    )


def why_files_are_shared(data: compiled.ZygoteData, maker: compiled.Maker, bound: str) -> str:
    """Return why all cells must share one view of the read-only files; empty if each has its own. `bound` is a
    directory that could not be mounted through an overlay.
    """
    why = f"{bound} can't be mounted through an overlay" if bound else ""
    if not why and (number := maker.why_no_own_views()):
        with root.step("mount overlays over the zygote's files"):
            if number not in root.NOT_ALLOWED:
                raise OSError(number, os.strerror(number))
        why = f"overlays can't be mounted: {os.strerror(number)}"
    data.shared = 2 if bound else 1 if why else 0
    return why


def ignore_forks() -> None:
    """Silence Python's warning about forks with threads, which a preloaded module may have started."""
    import warnings

    warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)


def is_alone() -> bool:
    """Return whether this process has only one thread."""
    child = os.fork()  # some libraries end their threads before a fork, for good
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return len(os.listdir("/proc/self/task")) == 1


_POOL, _POOL_HEADER = 16 << 10, 48  # bytes
_MAX_BLOCKS = 4000
_filling: list[object] = []


def fill_gaps() -> None:
    """Use up the memory that was freed between objects that stay. So what a guest allocates lies together, and is in
    far fewer of the pages that it shares with us.

    Python's allocator has pools for each size up to 512 bytes, in steps of 16. A gap is filled when two objects in a
    row are at the beginning of a pool. If the allocator differs from this, some gaps stay, or more is
    used up: at most 33 MB.
    """
    for size in range(16, 513, 16):
        before = row = 0
        for count in range(_MAX_BLOCKS):
            # `bytes` have 33 bytes besides their content, a float has 24.
            _filling.append(bytes(size - 33) if size > 32 else float(count) if size > 16 else object())
            here = id(_filling[-1])
            row = row + 1 if here == before + size else here % _POOL == _POOL_HEADER
            before = here
            if row == 2:
                break


def forget_ourselves() -> None:
    """Remove our own modules: a guest that imports Redoma gets the installed one, as a whole."""
    for name in [name for name in sys.modules if name == "redoma" or name.startswith("redoma.")]:
        del sys.modules[name]
    gc.collect()
    be_still()


def be_still() -> None:
    """Keep the garbage collector from what we have: a collection in a cell would write to, and copy, the pages that it
    shares with us.
    """
    gc.freeze()
    gc.disable()
