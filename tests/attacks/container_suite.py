"""Which of the attacks on the jail also apply to a container; and for each of the others, why not."""

from __future__ import annotations

import jail_kernel
import jail_outputs
from jail_suite import ATTACKS

_NOWHERE = {
    "what waits in a container has the run's own rights and knows nothing: to harm it is to harm oneself": (
        "lists the descriptors of its parent",
        "reads the memory of its parent",
        "opens the memory of its init",
        "reads the map of its init's memory",
        "lists its init's descriptors",
        "goes through its init's root",
        "slows its init down",
        "puts its init last in the queue for the disk",
        "has its init killed first when memory is short",
        "kills its init",
    ),
    "nothing but output and files comes back from a container, no report and no value": (
        *(name for name in ATTACKS if name.endswith(" where its report should be")),
        "returns an object that lies about itself",
        "returns a value of a million parts",
        "returns something whose text has no end",
    ),
    "a container has no user namespace of its own unless its engine is set up for that": (
        "takes the file watches of its user",
        "shares the host's user namespace",
        "is root on the host",
        "maps more users to itself",
        "becomes another user",
    ),
    "these are there, and empty: tests/backends/docker/test_docker_hidden.py looks into them": (
        "reads what the kernel tells of the machine",
        "finds the kernel's memory or its triggers",
    ),
    "without privileges neither does any good, and no engine mounts an image otherwise": (
        "finds a file system that is not read-only",
        "finds a file system that honours setuid programs or devices",
    ),
    "what a container has used is known as of the last look, which may be half a second ago": (
        "hides the processor time of its children",
        "hides the processor time of children that it disowns",
    ),
    "an engine is asked twice a second what was used: test_docker_runs.py has one that takes longer": (
        *(name for name, attack in ATTACKS.items() if "cpu" in attack.limits),
    ),
    "its directory is below the container's own /tmp, which has the name of the host's": (
        "finds paths of the host in its own memory map",
    ),
    "it finds the directory of its own script": ("finds another place to write to",),
    "the end of a program takes its time on a busy machine, and until then it may write": (
        "goes on writing after its end",
    ),
}

_NOT_IN_GVISOR = {
    "it reaches gVisor's kernel, which is the run's own, and not the host's": (
        *(attack.name for attack in jail_kernel.ATTACKS),
        "asks the kernel to open files by their handles",
        "looks into /sys",
        "finds devices of the host",
        "sees the host's control groups",
        "makes a device",
        "makes the null device and opens it",
        "types into a terminal",
        "pastes into a console",
        "opens a socket for netlink",
        "has the kernel load a protocol",
        "puts a program of its own on a socket",
        "changes what its init may use",
        "stops its init",
        "kills whoever reports on it",
    ),
    "it goes by the errno of a read-only file system, and gVisor refuses for another reason first": (
        *(name for name in ATTACKS if name.startswith("writes to ")),
    ),
    "it is after how the host reads output and files, which is the same whichever kernel they come from": (
        *(attack.name for attack in jail_outputs.ATTACKS),
        *(name for name, attack in ATTACKS.items() if "output_total" in attack.limits),
        "returns an exception whose name is a book",
    ),
    "gVisor's file systems have no limit on files, and its processes none of their own: such requests are refused": (
        *(name for name, attack in ATTACKS.items() if {"files", "processes"} & set(attack.limits)),
    ),
}
_NOT_IN_GVISOR_BUT = {"writes to an inherited descriptor"}


def applicable(runtime: str) -> list[str]:
    waived = {name for names in _NOWHERE.values() for name in names}
    if runtime == "runsc":
        waived |= {name for names in _NOT_IN_GVISOR.values() for name in names} - _NOT_IN_GVISOR_BUT
    assert waived <= set(ATTACKS), f"there is no such attack: {waived - set(ATTACKS)}"
    return [name for name in ATTACKS if name not in waived]
