"""The warm interpreter that cells are forked from. Inner.

It has executed nothing but our own code and the modules it was told to load, holds no secret, and stays single-threaded
as far as those modules do. Its whole life is one loop: take an order for a cell with the descriptors that belong to it,
fork a keeper, forget both.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import warnings
from typing import Any, NoReturn

from redoma.backends import linux
from redoma.backends.jail import guest, init, protocol, seccomp, setup
from redoma.backends.jail.root import Broken, tell

DESCRIPTORS = ("control", "order", "stdin", "stdout", "stderr")
"""What comes along with an order for a cell, in this order."""
_SOCKET, _PARENT = 3, 4


def main(arguments: str) -> NoReturn:
    told = json.loads(arguments)
    control = socket.socket(fileno=_SOCKET)
    try:
        base = prepare(told)
    except Exception as error:  # a module that can't be imported may raise anything
        tell(control, error)
        os._exit(1)
    armed = {"modules": len(sys.modules), "changes": base["changes"]}
    control.send(protocol.frame(protocol.ARMED, json.dumps(armed).encode()))
    serve(control, base)
    os._exit(0)


def prepare(told: dict[str, Any]) -> dict[str, Any]:
    """Load everything now, so that a cell finds it in memory."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the keepers
    del os.environ["PYTHONHASHSEED"]  # it has done its part; else every run had variables to take away
    guest.load()
    for name in told["preload"]:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise Broken(f"preload {name}: {type(error).__name__}: {error}") from error
    spec = {"watched": told["watched"], "zygote": os.getpid(), "changes": told["changes"], "why": told["why"]}
    spec["filter"] = seccomp.program(told["watched"], changes_on_disk=told["changes"] == "disk")
    spec["prelude"] = sys.modules[told["prelude"]] if told["prelude"] else None
    spec["outside"] = {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")}
    spec["landlock"] = linux.landlock_abi()
    spec["zygote_handle"] = os.pidfd_open(os.getpid())
    linux.adopt_orphans()  # the cells, whose keepers leave
    linux.hide_from_peers()  # other processes of this user on the host have no business here
    warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)  # of threads a preload started
    for name in [name for name in sys.modules if name == "redoma" or name.startswith("redoma.")]:
        del sys.modules[name]  # a guest that has Redoma installed gets that one, and whole
    gc.collect()
    gc.freeze()  # a collection in a cell doesn't touch, and so copy, what it shares with us
    gc.disable()
    return spec


def serve(control: socket.socket, base: dict[str, Any]) -> None:
    """Until the parent closes the socket, or dies in any other way."""
    watch = select.poll()
    watch.register(control, select.POLLIN)
    watch.register(_PARENT, select.POLLIN)
    while True:
        if any(number == _PARENT for number, _ in watch.poll()):
            return
        message, descriptors, _, _ = socket.recv_fds(control, 1 << 16, len(DESCRIPTORS))
        if not message:
            return
        spec = {**base, **json.loads(message), **dict(zip(DESCRIPTORS, descriptors, strict=True))}
        try:
            if os.fork() == 0:
                keep(spec)
        except OSError as error:  # no process to be had: told to the one who waits for this cell, and to nobody else
            with socket.socket(fileno=os.dup(spec["control"])) as cell:
                cell.send(protocol.frame(protocol.BROKEN, f"fork a keeper: {error.strerror}".encode()))
        for number in descriptors:
            os.close(number)


def keep(spec: dict[str, Any]) -> NoReturn:
    """The keeper: it enters the namespaces, forks their first process, hands that over to the zygote, and is gone."""
    control = socket.socket(fileno=spec["control"])
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(_SOCKET)
        os.close(_PARENT)
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != spec["zygote"]:
            os._exit(1)
        if spec["cgroup"]:
            control.send(protocol.frame(protocol.BORN, b"%d" % os.getpid()))
            if control.recv(1) != protocol.GO:
                os._exit(1)
        linux.show_to_peers()  # the maps of a user namespace are written through /proc/self
        setup.take(setup.KEEPER, spec)
        spec["keeper_handle"] = os.pidfd_open(os.getpid())
        pid = os.fork()
        if pid == 0:
            init.main(spec, control)
        socket.send_fds(control, [protocol.frame(protocol.INIT)], [os.pidfd_open(pid)])
    except BaseException as error:
        tell(control, error)
    os._exit(0)
