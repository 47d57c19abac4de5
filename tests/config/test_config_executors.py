"""Executors in `redoma.yaml`: every kind, every field, its default, and what is wrong with one and where."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_place import Place

from redoma import config
from redoma.config import DockerEntry, InvalidFile, JailEntry, MontyEntry, NativeEntry
from redoma.models import MiB


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def entries(place: Place, *listed: str) -> dict[str, config.Entry]:
    lines = "".join(f"  - {{name: e{number}, {entry}}}\n" for number, entry in enumerate(listed))
    loaded = place.load(place.named(f"version: '1.0'\nnamespace: app\nentries:\n{lines}"))
    return {address.removeprefix("app:"): entry for address, entry in loaded.entries.items()}


EVERYTHING = """\
version: "1.0"
namespace: app
entries:
  - name: box
    kind: exec.docker
    image: python:3.11-slim
    host: unix:///run/other.sock
    default_work_dir: /srv
    default_env: {A: b}
    command_whitelist: [git status]
    caller_env: [C]
    network_mode: none
    volumes: ["/a:/b", "/a:/c:ro", "./data:/d", "~/e:/e:ro"]
    user: "1000:1000"
    memory_limit: 256MiB
    cpu_quota: 50000
    auto_remove: true
    read_only_rootfs: true
    no_new_privileges: true
    cap_drop: [ALL]
    cap_add: [NET_BIND_SERVICE, CAP_CHOWN, cap_kill]
    pids_limit: 20
    tmpfs: {/tmp: "size=64m,mode=1777", /run: ""}
    runtime: runsc
    pull: true
    limits: {time: 10, output_bytes: 1MiB}
"""


def test_every_field_of_a_container_is_read(place: Place) -> None:
    entry = place.load(place.named(EVERYTHING)).entries["app:box"]
    assert entry == DockerEntry(
        name="box",
        image="python:3.11-slim",
        host="unix:///run/other.sock",
        default_work_dir="/srv",
        default_env={"A": "b"},
        command_whitelist=("git status",),
        caller_env=("C",),
        network_mode="none",
        volumes=("/a:/b", "/a:/c:ro", f"{place.home}/data:/d", f"{place.home}/e:/e:ro"),
        user="1000:1000",
        memory_limit=256 * MiB,
        cpu_quota=50000,
        auto_remove=True,
        read_only_rootfs=True,
        no_new_privileges=True,
        cap_drop=("ALL",),
        cap_add=("NET_BIND_SERVICE", "CAP_CHOWN", "cap_kill"),
        pids_limit=20,
        tmpfs={"/tmp": "size=64m,mode=1777", "/run": ""},
        runtime="runsc",
        pull=True,
        limits={"time": 10.0, "output_bytes": MiB},
    )


def test_the_defaults_of_a_container_are_those_of_the_requirements(place: Place) -> None:
    entry = entries(place, "kind: exec.docker, image: x")["e0"]
    assert isinstance(entry, DockerEntry)
    assert (entry.host, entry.network_mode, entry.volumes, entry.user) == (None, "bridge", (), None)
    assert (entry.memory_limit, entry.cpu_quota, entry.pids_limit) == (0, 0, 0)
    assert (entry.auto_remove, entry.read_only_rootfs, entry.no_new_privileges) == (False, False, False)
    assert (entry.cap_drop, entry.cap_add, entry.tmpfs) == ((), (), {})
    assert (entry.default_work_dir, entry.default_env, entry.command_whitelist) == (None, {}, None)
    assert (entry.runtime, entry.pull, entry.limits, entry.caller_env) == (None, False, {}, ())


def test_the_other_kinds(place: Place) -> None:
    found = entries(
        place,
        "kind: exec.jail, default_work_dir: /workspace/x, command_whitelist: [ls], limits: {memory: 64MiB}",
        'kind: exec.monty, command_whitelist: ["don\'t"], default_env: {A: b}, limits: {time: 1}',
        "kind: exec.native, default_work_dir: x, limits: {cpu: 3}, caller_env: [A, B_2]",
    )
    assert found["e0"] == JailEntry(
        name="e0", default_work_dir="/workspace/x", command_whitelist=("ls",), limits={"memory": 64 * MiB}
    )
    # Montys commands are code, and are not split into words.
    assert found["e1"] == MontyEntry(
        name="e1", command_whitelist=("don't",), default_env={"A": "b"}, limits={"time": 1.0}
    )
    assert found["e2"] == NativeEntry(
        name="e2", default_work_dir=place.home / "x", limits={"cpu": 3.0}, caller_env=("A", "B_2")
    )


def test_docker_takes_6_mib_and_no_limit_at_all(place: Place) -> None:
    found = entries(place, *(f"kind: exec.docker, image: x, memory_limit: {size}" for size in ("6291456", "6MiB", "0")))
    assert [entry.memory_limit for entry in found.values()] == [6 * MiB, 6 * MiB, 0]  # type: ignore[union-attr]


LISTED = """\
# as a registry prints its entries
- name: shell
  kind: exec.native
  default_work_dir: /srv
  command_whitelist: [git status]
- name: box
  kind: exec.docker
  image: python:3.11-slim
"""


def test_a_file_that_is_a_list_holds_entries_of_the_namespace_app(place: Place) -> None:
    whole = "version: '1.0'\nnamespace: app\nentries:\n" + LISTED
    listed = place.load(place.named(LISTED))
    assert listed.entries == place.load(place.named(whole)).entries
    assert set(listed.entries) == {"app:shell", "app:box"}
    assert listed.origins["entries.app:box"].endswith("named.yaml:6")


def test_what_is_wrong_in_a_list_of_entries_is_told_with_its_place(place: Place) -> None:
    (problem,) = config.check(place.named("- name: a\n  kind: exec.native\n  comand_whitelist: [ls]\n"), env=place.env)
    assert (problem.line, problem.key) == (3, "entries[0].comand_whitelist")
    (problem,) = config.check(place.named("- ls\n"), env=place.env)
    assert (problem.line, problem.key) == (1, "entries[0]")
    twice = "- {name: a, kind: exec.native}\n- {name: a, kind: exec.jail}\n"
    (problem,) = config.check(place.named(twice), env=place.env)
    assert "there is already an entry 'app:a'" in problem.message


def test_a_list_that_was_only_found_defines_no_executor_until_it_is_trusted(place: Place) -> None:
    place.project_file.write_text("- {name: shell, kind: exec.native}\n")
    found = place.load()
    assert found.entries == {}
    assert "line 1 defines the executor 'app:shell', which runs on this host" in found.notices[0]
    config.trust(place.project_file, env=place.env)
    assert set(place.load().entries) == {"app:shell"}


DOCKER = "kind: exec.docker, image: x, "
WRONG = {
    "kind: exec.dcoker, image: x": ("kind", "did you mean 'exec.docker'?"),
    "kind: exec.docker": ("", "the key 'image' is missing"),
    "kind: exec.docker, image: ''": ("image", "text that is not empty"),
    "kind: exec.docker, image: [x]": ("image", "expected text, found a list"),
    DOCKER + "imge: y": ("imge", "did you mean 'image'?"),
    DOCKER + "host: /run/docker.sock": ("host", "spoken here | write it with one of unix://"),
    DOCKER + "network_mode: bridged": ("network_mode", "did you mean 'bridge'?"),
    DOCKER + "network_mode: container:x": ("network_mode", "expected one of bridge, host, none"),
    DOCKER + "volumes: /a:/b": ("volumes", "expected a list"),
    DOCKER + "volumes: ['/a']": ("volumes[0]", "is not a volume | write it as host:container or host:container:ro"),
    DOCKER + "volumes: ['/a:/b', '/a:/b:rw']": ("volumes[1]", "'/a:/b:rw' is not a volume"),
    DOCKER + "volumes: ['/a:/b:ro:z']": ("volumes[0]", "is not a volume"),
    DOCKER + "volumes: ['/a:b']": ("volumes[0]", "'b' is not a path inside"),
    DOCKER + "volumes: ['/a:/b/../c']": ("volumes[0]", "is not a path inside"),
    DOCKER + "volumes: [':/b']": ("volumes[0]", "is not a volume"),
    DOCKER + "volumes: ['data:/b']": ("volumes[0]", "'data' is not a path on the host"),
    DOCKER + "volumes: ['~other/x:/b']": ("volumes[0]", "is not a path on the host"),
    DOCKER + "user: 1000": ("user", 'put it in quotes: "1000"'),
    DOCKER + "memory_limit: -1": ("memory_limit", "a number of at least 0, found the number -1"),
    DOCKER + "memory_limit: lots": ("memory_limit", "a number of bytes"),
    DOCKER + "memory_limit: 1": ("memory_limit", "too little memory: Docker takes no less than 6MiB | write 6MiB or"),
    DOCKER + "memory_limit: 6291455": ("memory_limit", "Docker takes no less than 6MiB"),
    DOCKER + "memory_limit: 6MB": ("memory_limit", "6000000 bytes are too little memory"),
    DOCKER + "limits: {memory: 1MiB}": ("limits.memory", "Docker takes no less than 6MiB"),
    DOCKER + "cpu_quota: -100000": ("cpu_quota", "a number of at least 0"),
    DOCKER + "cpu_quota: 1": ("cpu_quota", "too little for anything to run | 100000 is one processor"),
    DOCKER + "pids_limit: -1": ("pids_limit", "a number of at least 0"),
    DOCKER + "pids_limit: 1MiB": ("pids_limit", "a whole number"),
    DOCKER + "auto_remove: 1": ("auto_remove", "true or false"),
    DOCKER + "read_only_rootfs: 'yes'": ("read_only_rootfs", "true or false"),
    DOCKER + "no_new_privileges: 0": ("no_new_privileges", "true or false"),
    DOCKER + "pull: always": ("pull", "true or false"),
    DOCKER + "cap_drop: [NET_RWA]": ("cap_drop[0]", "there is no capability 'NET_RWA' | did you mean 'NET_RAW'?"),
    DOCKER + "cap_add: [ALL, SYS]": ("cap_add[1]", "there is no capability 'SYS'"),
    DOCKER + "cap_add: ALL": ("cap_add", "expected a list"),
    DOCKER + "tmpfs: [/tmp]": ("tmpfs", "expected a mapping"),
    DOCKER + "tmpfs: {/tmp: 5}": ("tmpfs./tmp", "expected text"),
    DOCKER + "tmpfs: {tmp: ''}": ("tmpfs.tmp", "is not a path inside"),
    DOCKER + "default_work_dir: srv": ("default_work_dir", "is not a path inside"),
    DOCKER + "limits: {time: 0}": ("limits.time", "a limit is a positive number"),
    "kind: exec.jail, default_work_dir: ../x": ("default_work_dir", "is not a path inside"),
    "kind: exec.jail, limits: {memroy: 1}": ("limits.memroy", "did you mean 'memory'?"),
    "kind: exec.jail, limits: {memory: -5}": ("limits.memory", "a limit is a positive number"),
    "kind: exec.jail, image: x": ("image", "unknown key 'image'"),
    "kind: exec.native, caller_env: [A-B]": ("caller_env[0]", "names are letters, digits and _"),
    "kind: exec.native, limits: [time]": ("limits", "expected a mapping"),
    "kind: exec.monty, default_work_dir: /x": ("default_work_dir", "unknown key 'default_work_dir'"),
    "kind: exec.monty, command_whitelist: ['  ']": ("command_whitelist[0]", "it holds no command"),
}


@pytest.mark.parametrize("entry", WRONG)
def test_what_is_wrong_is_told_with_its_line_its_column_and_its_key(place: Place, entry: str) -> None:
    line = f"  - {{name: x, {entry}}}"
    (problem,) = config.check(place.named(f"namespace: a\nentries:\n{line}\n"), env=place.env)
    key, message = WRONG[entry]
    assert problem.key == f"entries[0]{'.' if key else ''}{key}"
    assert message in f"{problem.message} | {problem.hint}"
    last = key.rpartition(".")[2].partition("[")[0]
    at = line.index("{" if not key else f"{last}:" if f"{last}:" in line else last)
    assert problem.line == 3
    assert problem.column >= at + 1  # the key, or its value to the right of it
    with pytest.raises(InvalidFile):
        place.load(place.named(f"namespace: a\nentries:\n{line}\n"))


@pytest.mark.parametrize("kind", ["exec.native", "exec.docker, image: x", "exec.jail", "exec.monty"])
def test_a_project_that_nobody_trusts_defines_no_executor(place: Place, kind: str) -> None:
    place.user("namespace: app\nentries: [{name: shell, kind: exec.native, command_whitelist: [ls]}]\n")
    before = place.load()
    place.project_file.write_text(f"namespace: app\nentries:\n  - {{name: shell, kind: {kind}}}\n")
    found = place.load()
    assert found.entries == before.entries
    (notice,) = found.notices
    assert "line 3 defines the executor 'app:shell', which " in notice
    config.trust(place.project_file, env=place.env)
    assert place.load().entries != before.entries
