"""Every field of an `exec.docker` entry, in the container that runs: as the engine tells it, and as it is inside."""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import redoma
from redoma import BackendError, Config, Executor, Refused, config

IMAGE = "python:3.11-slim"
LOOK = r"""
import json, os, sys

def first(*paths):
    for path in paths:
        try:
            return open(path).read().split()[0]
        except OSError:
            pass

def writes(path):
    try:
        open(path, "w").close()
        return "yes"
    except OSError as error:
        return error.strerror

def size(path):
    try:
        facts = os.statvfs(path)
        return facts.f_blocks * facts.f_frsize
    except OSError:
        return None

status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
group = "/sys/fs/cgroup/"
print(json.dumps({
    "cwd": os.getcwd(), "env": dict(os.environ), "uid": os.getuid(), "gid": os.getgid(),
    "argv": sys.argv[1:],
    "privileges": status["NoNewPrivs"], "capabilities": int(status["CapBnd"], 16),
    "memory": first(group + "memory/memory.limit_in_bytes", group + "memory.max"),
    "quota": first(group + "cpu/cpu.cfs_quota_us", group + "cpu.max"),
    "processes": first(group + "pids/pids.max", group + "pids.max"),
    "root": writes("/new"), "data": writes("/data/new"), "kept": writes("/kept/new"),
    "seen": os.path.exists("/kept/file") and open("/kept/file").read(),
    "scratch": size("/scratch"), "scratched": writes("/scratch/new"),
    "interfaces": sorted(os.listdir("/sys/class/net")), "network": os.readlink("/proc/self/ns/net"),
}), flush=True)
input()
"""
COMMAND = ["python3", "-c", LOOK, "a b", "$HOME"]
CHOWN, NET_BIND_SERVICE, NET_RAW = 1 << 0, 1 << 10, 1 << 13


class Seen(NamedTuple):
    told: dict[str, Any]
    """By `docker inspect`, while it ran."""
    inside: dict[str, Any]
    after: str
    """What the engine says of its state when it has ended; nothing if it is not there any more."""

    @property
    def host(self) -> dict[str, Any]:
        found: dict[str, Any] = self.told["HostConfig"]
        return found


def docker(engine: str, *arguments: str) -> str:
    done = subprocess.run(["docker", "--host", engine, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def configured(directory: Path, entry: str) -> Config:
    file = directory / "redoma.yaml"
    file.write_text(
        f"version: '1.0'\nnamespace: app\nentries:\n  - name: box\n    kind: exec.docker\n{entry}\n"
        f"audit: {{directory: {directory}/audit}}\n"
    )
    return config.load(file, cwd=directory, env={"HOME": str(directory)})


def look(engine: str, directory: Path, entry: str) -> Seen:
    """Run what looks around in a container, and ask the engine meanwhile."""
    mark = uuid.uuid4().hex
    with Executor(configured(directory, entry)) as executor, redoma.exec.get("app:box", executor) as box:
        process = box.exec(COMMAND, {"env": {"MARK": mark}}, policy="none")
        process.start()
        inside = json.loads(process.stdout_stream().read())
        ours = docker(engine, "ps", "-q", "--filter", f"label=redoma.pid={os.getpid()}").split()
        listed = json.loads(docker(engine, "inspect", *ours))
        (told,) = [each for each in listed if f"MARK={mark}" in each["Config"]["Env"]]
        process.write_stdin("\n")
        assert process.wait() == 0
        after = docker(engine, "inspect", "--format", "{{.State.Status}}", told["Id"])
        deadline = time.monotonic() + 60
        while told["HostConfig"]["AutoRemove"] and after and time.monotonic() < deadline:
            time.sleep(0.1)
            after = docker(engine, "inspect", "--format", "{{.State.Status}}", told["Id"])
    assert docker(engine, "inspect", told["Id"]) == "[]", "a container is left when its executor is closed"
    return Seen(told, inside, after)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of the host that two volumes show."""
    directory = tmp_path_factory.mktemp("shared")
    directory.chmod(0o777)  # the user inside is not the one outside
    (directory / "file").write_text("of the host")
    return directory


@pytest.fixture(scope="module")
def full(engine: str, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """With every field set."""
    return look(
        engine,
        tmp_path_factory.mktemp("full"),
        f"""\
    image: {IMAGE}
    host: {engine}
    default_work_dir: /srv
    default_env: {{GREETING: hello, MARK: "replaced by the caller's"}}
    network_mode: none
    volumes: ["{shared}:/data", "{shared}:/kept:ro"]
    user: "1234:2345"
    memory_limit: 64MiB
    cpu_quota: 50000
    auto_remove: true
    read_only_rootfs: true
    no_new_privileges: true
    cap_drop: [ALL]
    cap_add: [CHOWN, CAP_NET_BIND_SERVICE]
    pids_limit: 23
    tmpfs: {{/scratch: "size=1m,uid=1234,mode=700"}}
    runtime: runc
""",
    )


@pytest.fixture(scope="module")
def plain(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """With nothing but an image: the engine is the one of DOCKER_HOST."""
    return look(engine, tmp_path_factory.mktemp("plain"), f"    image: {IMAGE}\n")


def test_image(full: Seen) -> None:
    assert full.told["Config"]["Image"] == IMAGE
    assert full.inside["argv"] == ["a b", "$HOME"]  # the words as they are, with no shell between


def test_default_work_dir(full: Seen, plain: Seen) -> None:
    assert (full.told["Config"]["WorkingDir"], full.inside["cwd"]) == ("/srv", "/srv")
    assert plain.inside["cwd"] == "/"


def test_default_env(full: Seen) -> None:
    assert "GREETING=hello" in full.told["Config"]["Env"]
    assert full.inside["env"]["GREETING"] == "hello"
    assert len(full.inside["env"]["MARK"]) == 32  # that of the call wins
    assert {name for name in full.inside["env"] if name in os.environ} <= {"PATH", "HOME", "LANG", "LC_CTYPE"}


def test_network_mode(full: Seen, plain: Seen, engine: str, tmp_path: Path) -> None:
    ours = os.readlink("/proc/self/ns/net")
    assert (full.host["NetworkMode"], full.inside["interfaces"]) == ("none", ["lo"])
    # What is on the bridge depends on the engine, and that of the tests has none; a network of its own it is.
    assert plain.host["NetworkMode"] == "bridge"
    assert plain.inside["network"] != ours
    host = look(engine, tmp_path, f"    image: {IMAGE}\n    network_mode: host\n")
    assert host.host["NetworkMode"] == "host"
    assert (host.inside["network"], host.inside["interfaces"]) == (ours, sorted(os.listdir("/sys/class/net")))


def test_volumes(full: Seen, plain: Seen, shared: Path) -> None:
    mounts = {mount["Destination"]: (mount["Source"], mount["RW"]) for mount in full.told["Mounts"]}
    assert mounts == {"/data": (str(shared), True), "/kept": (str(shared), False)}
    assert (full.inside["seen"], full.inside["data"]) == ("of the host", "yes")
    assert (shared / "new").exists()
    assert full.inside["kept"] == "Read-only file system"
    assert plain.told["Mounts"] == []


def test_user(full: Seen, plain: Seen) -> None:
    assert (full.told["Config"]["User"], full.inside["uid"], full.inside["gid"]) == ("1234:2345", 1234, 2345)
    assert (plain.told["Config"]["User"], plain.inside["uid"]) == ("", 0)  # the image's


def test_memory_limit(full: Seen, plain: Seen, engine: str, tmp_path: Path) -> None:
    assert (full.host["Memory"], int(full.inside["memory"])) == (64 << 20, 64 << 20)
    assert plain.host["Memory"] == 0
    assert plain.inside["memory"] == "max" or int(plain.inside["memory"]) > 1 << 60
    # A limit that was set for the executor's runs is one of its containers.
    set_by_limits = look(engine, tmp_path, f"    image: {IMAGE}\n    limits: {{memory: 48MiB, processes: 31}}\n")
    assert (set_by_limits.host["Memory"], set_by_limits.host["PidsLimit"]) == (48 << 20, 31)
    assert (set_by_limits.inside["memory"], set_by_limits.inside["processes"]) == (str(48 << 20), "31")


def test_cpu_quota(full: Seen, plain: Seen) -> None:
    assert (full.host["CpuQuota"], full.inside["quota"]) == (50000, "50000")
    assert plain.host["CpuQuota"] == 0
    assert plain.inside["quota"] in ("-1", "max")


def test_pids_limit(full: Seen, plain: Seen) -> None:
    assert (full.host["PidsLimit"], full.inside["processes"]) == (23, "23")
    assert plain.host["PidsLimit"] in (0, None, -1)
    assert plain.inside["processes"] == "max"


def test_auto_remove(full: Seen, plain: Seen) -> None:
    assert (full.host["AutoRemove"], full.after) == (True, "")
    assert (plain.host["AutoRemove"], plain.after) == (False, "exited")


def test_read_only_rootfs(full: Seen, plain: Seen) -> None:
    assert (full.host["ReadonlyRootfs"], full.inside["root"]) == (True, "Read-only file system")
    assert (plain.host["ReadonlyRootfs"], plain.inside["root"]) == (False, "yes")


def test_no_new_privileges(full: Seen, plain: Seen) -> None:
    assert (full.host["SecurityOpt"], full.inside["privileges"]) == (["no-new-privileges"], "1")
    assert (plain.host["SecurityOpt"] or [], plain.inside["privileges"]) == ([], "0")


def test_cap_drop_and_cap_add(full: Seen, plain: Seen) -> None:
    assert full.host["CapDrop"] == ["ALL"]
    assert [name.removeprefix("CAP_") for name in full.host["CapAdd"]] == ["CHOWN", "NET_BIND_SERVICE"]
    assert full.inside["capabilities"] == CHOWN | NET_BIND_SERVICE
    assert plain.inside["capabilities"] & NET_RAW  # the engine's own choice


def test_tmpfs(full: Seen, plain: Seen) -> None:
    assert full.host["Tmpfs"] == {"/scratch": "size=1m,uid=1234,mode=700"}
    assert (full.inside["scratch"], full.inside["scratched"]) == (1 << 20, "yes")
    assert plain.inside["scratch"] is None


def test_runtime(full: Seen) -> None:
    assert full.host["Runtime"] == "runc"


def test_host(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    with Executor(
        configured(tmp_path, f"    image: {IMAGE}\n    host: {engine}\n    network_mode: none\n")
    ) as executor:
        process = redoma.exec.get("app:box", executor).exec("echo there")
        process.start()
        assert process.stdout_stream().read_all() == "there\n"
    monkeypatch.setenv("DOCKER_HOST", engine)
    nobody = f"unix://{tmp_path}/nobody.sock"
    with Executor(configured(tmp_path, f"    image: {IMAGE}\n    host: {nobody}\n")) as executor:
        process = redoma.exec.get("app:box", executor).exec("echo there")
        with pytest.raises(BackendError, match=r"nobody\.sock"):
            process.start()


def test_pull_is_not_done_unless_asked_for(engine: str, tmp_path: Path) -> None:
    with Executor(configured(tmp_path, "    image: redoma.invalid/none:1\n")) as executor:
        process = redoma.exec.get("app:box", executor).exec("true")
        with pytest.raises(BackendError, match=r"redoma\.invalid/none:1.*pull"):
            process.start()


def test_command_whitelist(engine: str, tmp_path: Path) -> None:
    entry = f"    image: {IMAGE}\n    network_mode: none\n    command_whitelist: [id -u]\n    user: '1234'\n"
    with Executor(configured(tmp_path, entry)) as executor:
        box = redoma.exec.get("app:box", executor)
        process = box.exec("id -u")
        process.start()
        assert process.stdout_stream().read_all() == "1234\n"
        for command in ("id", "id -u ", ["id", "-u", "-n"], "id -u; id"):
            with pytest.raises(Refused, match="app:box does not allow this command; it allows: id -u"):
                box.exec(command)
        with pytest.raises(Refused, match="LD_PRELOAD could change"):
            box.exec("id -u", env={"LD_PRELOAD": "/x"})
