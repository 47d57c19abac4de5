"""What tells of the machine is hidden in a container: an engine by itself shows most of it."""

from __future__ import annotations

import json

from docker_bench import docker, run

from redoma.backends.docker import DockerBackend

_TELLING = [
    "cmdline",
    "version",
    "kallsyms",
    "modules",
    "partitions",
    "diskstats",
    "interrupts",
    "iomem",
    "keys",
    "swaps",
]
_LOOK = f"""
import json, os
told = {{}}
for name in {_TELLING!r}:
    try:
        told[name] = len(open('/proc/' + name).read())
    except OSError:
        told[name] = 0
for place in ('/sys', '/proc/sys', '/proc/bus', '/proc/fs', '/dev/mqueue'):
    told[place] = len(os.listdir(place))
print(json.dumps(told))
"""
_NEEDED = """
import os
print(os.cpu_count() > 0, 'processor' in open('/proc/cpuinfo').read(), 'MemTotal' in open('/proc/meminfo').read())
print(float(open('/proc/uptime').read().split()[0]) > 0, 'cpu ' in open('/proc/stat').read())
print('proc' in open('/proc/filesystems').read(), '/tmp' in open('/proc/mounts').read())
"""


async def test_nothing_of_the_machine_shows(backend: DockerBackend) -> None:
    hidden = json.loads((await run(backend, _LOOK)).stdout)
    assert {name: size for name, size in hidden.items() if size} == {}
    shown = json.loads(docker("run", "--rm", "--network", "none", "python:3.11-slim", "python3", "-c", _LOOK))
    assert sum(map(bool, shown.values())) > 10, "an engine by itself shows it, or this proves nothing"


async def test_what_programs_look_at_is_there(backend: DockerBackend) -> None:
    assert (await run(backend, _NEEDED)).stdout.split() == ["True"] * 7
