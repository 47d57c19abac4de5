"""The warm interpreter that cells are forked from. Inner.

It has executed nothing but our own code and the modules it was told to load, holds no secret, and stays single-threaded
as far as those modules do. Its whole life is `cell_serve` in c/cell.c: take an order for a cell with the descriptors
that belong to it, make it, forget both. In each guest that call returns, and `guest` takes over.
"""

from __future__ import annotations

import _signal
import gc
import importlib
import json
import os
import sys

from redoma.backends import linux
from redoma.backends.jail import compiled, guest, protocol, root, seccomp
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
    from typing import Any, NoReturn

_PARENT = 4
_SPACES = {"user": "user", "pid": "pid", "mount": "mnt", "net": "net", "ipc": "ipc", "uts": "uts", "cgroup": "cgroup"}
"""Our names of namespaces, and the kernel's."""


def main() -> NoReturn:
    try:
        built = root.found_built()
        if built["lean"]:
            linux.adopt_orphans()  # of a cell whose init was killed outright
        else:
            # Cells make their namespaces in this one. Before anything else: a process with threads can't enter one.
            with root.step("user"):
                root.enter_user_namespace(0)
        told = root.told()
        data = prepare(built, told)
    except Exception as error:  # a module that can't be imported may raise anything
        root.tell(root.SOCKET, error)
        os._exit(1)
    prelude = sys.modules[told["prelude"]] if told["prelude"] else None
    below = root.other_mounts(PROJECT, "/proc") if not built["lean"] and os.path.isdir(PROJECT) else []
    armed = {"modules": len(sys.modules), "changes": built["changes"], "why": built["why"], "below": below[:1]}
    maker = compiled.Maker(data)
    try:
        armed["shared"] = "" if built["lean"] else why_files_are_shared(data, maker, built["bound"])
    except root.Broken as error:
        root.tell(root.SOCKET, error)
        os._exit(1)
    forget_ourselves()
    os.write(root.SOCKET, protocol.frame(protocol.ARMED, json.dumps(armed).encode()))
    if not maker.serve():
        os._exit(0)
    guest.start(data.found, data.order.seed, prelude, maker.hold, os.fsdecode(data.order.place))


def prepare(built: dict[str, Any], told: dict[str, Any]) -> compiled.ZygoteData:
    """Load everything now, so that a cell finds it in memory."""
    # What is ignored is inherited: some from Python, others from who started Redoma (nohup). A guest has it plain.
    # (`signal` would look each number up in an enumeration.)
    for number in _signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP, _signal.SIGINT}:
        _signal.signal(number, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    del os.environ["PYTHONHASHSEED"]  # it has done its part; else every run had variables to take away
    if not told["once"]:
        guest.load()
    for name in told["preload"]:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise root.Unloaded(f"preload {name}: {type(error).__name__}: {error}") from error
    if told["prelude"] and hasattr(prelude := sys.modules[told["prelude"]], "prepare"):
        prelude.prepare()
    guest.use_pipes()
    linux.hide_from_peers()  # other processes of this user on the host have no business here
    if told["preload"]:
        ignore_forks()
    lean, on_disk = built["lean"], built["changes"] == "disk"
    program = seccomp.program(told["watched"], changes_on_disk=lean or on_disk, lean=lean, own_user=told["own_user"])
    return compiled.ZygoteData(
        orders=root.SOCKET,
        redoma=_PARENT,
        self=os.pidfd_open(os.getpid()),
        init=os.open(compiled.INIT, os.O_RDONLY),
        landlock=linux.landlock_abi(),
        on_disk=on_disk,
        lean=lean,
        fork=compiled.fork_function(alone=is_alone()),
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
        readable=compiled.strings(*LEAN_READABLE, *told["readable"]),
    )


def why_files_are_shared(data: compiled.ZygoteData, maker: compiled.Maker, bound: str) -> str:
    """Why all cells must have one view of the read-only files, if so. `bound` is a directory without an overlay."""
    why = f"{bound} can't be mounted through an overlay" if bound else ""
    if not why and (number := maker.why_no_own_views()):
        with root.step("mount overlays over the zygote's files"):
            if number not in root.NOT_ALLOWED:
                raise OSError(number, os.strerror(number))
        why = f"overlays can't be mounted: {os.strerror(number)}"
    data.shared = 2 if bound else 1 if why else 0
    return why


def ignore_forks() -> None:
    """Python warns of a fork where there are threads, which a preloaded module may have started."""
    import warnings

    warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)


def is_alone() -> bool:
    """Whether this thread is the only one."""
    child = os.fork()  # some libraries end their threads before a fork, and don't start them again
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return len(os.listdir("/proc/self/task")) == 1


def forget_ourselves() -> None:
    """A guest that has Redoma installed gets that one, and whole."""
    for name in [name for name in sys.modules if name == "redoma" or name.startswith("redoma.")]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()  # a collection in a cell doesn't touch, and so copy, what it shares with us
    gc.disable()
