"""What can be missing, and what is said then: what happened, why, and what to do."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiodocker
import pytest
from docker_bench import docker, ours, run

from redoma import BackendError, InvalidRequest
from redoma.backends.docker import Box, DockerBackend
from redoma.backends.docker.container import Container
from redoma.backends.docker.engine import CannotStart, NoHosts, NoImage, NoInit, readable_errors
from redoma.lib.errors import BackendUnavailable
from redoma.lib.extras import pip_install

_EMPTY = "redoma-test/empty:1"


async def _refused(engine: str, box: Box, **given: object) -> BackendError:
    backend = DockerBackend(box, host=engine)
    try:
        with pytest.raises(BackendError) as told:
            await run(backend, **({"code": "1"} | given))  # type: ignore[arg-type]
    finally:
        await backend.aclose()
    assert ours() == []
    return told.value


async def test_an_image_that_is_missing_is_not_fetched(engine: str) -> None:
    told = await _refused(engine, Box(python="redoma-test/no-such-image:1"))
    assert isinstance(told, BackendUnavailable)
    assert "'redoma-test/no-such-image:1' is not there" in told.what
    assert told.next == "docker pull redoma-test/no-such-image:1, or set `pull: true`"
    asked = await _refused(engine, Box(python="127.0.0.1:9/redoma-test:1", pull=True))
    assert "127.0.0.1:9" in str(asked)  # it was tried, at a registry that isn't there


async def test_an_image_without_what_is_needed_is_named(engine: str) -> None:
    told = await _refused(engine, Box(python="bash:5.2-alpine"))
    assert str(told) == (
        "the image 'bash:5.2-alpine' can't be used: it has no python3. Next: use one that has, such as python:3.11-slim"
    )
    nothing = io.BytesIO()
    tarfile.open(fileobj=nothing, mode="w").close()
    docker("import", "-", _EMPTY, given=nothing.getvalue())
    try:
        told = await _refused(engine, Box(bash=_EMPTY), language="bash")
        assert "it has no sh" in told.why
    finally:
        docker("rmi", _EMPTY)


async def test_an_engine_without_its_init_runs_commands_without_it(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, inits = Container.start, []

    async def without_init(container: Container) -> None:
        if not container.inspected["HostConfig"].get("Init"):
            return await start(container)
        inits.append(container.name)
        with readable_errors(**container._about):
            raise aiodocker.DockerError(500, 'exec: "docker-init": executable file not found in $PATH')

    monkeypatch.setattr(Container, "start", without_init)
    backend = DockerBackend(Box.plain("bash:5.2-alpine"), host=engine)
    try:
        for _ in range(2):
            assert (await run(backend, argv=("echo", "ran"))).stdout == "ran\n"
        absent = await run(backend, argv=("docker-init",))
        assert absent.ending == ("error", 127)
    finally:
        await backend.aclose()
    assert len(inits) == 1  # it is asked once


@pytest.mark.parametrize(
    ("message", "about", "kind"),
    [
        ("No such image: a:1", {"image": "a:1"}, NoImage),
        ('exec: "docker-init": executable file not found in $PATH', {"program": "ls", "init": "docker-init"}, NoInit),
        ('exec: "docker-init": executable file not found in $PATH', {"program": "docker-init"}, CannotStart),
        ("bind source path does not exist: /v/hosts", {"hosts": "/v/hosts"}, NoHosts),
        ("error mounting /v/hosts: no such file or directory", {"hosts": "/v/hosts", "program": "sh"}, NoHosts),
        ("bind source path does not exist: /data", {"hosts": "/v/hosts"}, BackendError),
    ],
)
def test_what_the_engine_says_becomes_one_kind_of_error(
    message: str, about: dict[str, str], kind: type[BackendError]
) -> None:
    with pytest.raises(BackendError) as told, readable_errors(**about):
        raise aiodocker.DockerError(500, message)
    assert type(told.value) is kind


async def test_a_runtime_a_user_or_a_volume_that_is_not_there_is_named(engine: str) -> None:
    told = await _refused(engine, Box(runtime="no-such-runtime"))
    assert "no runtime 'no-such-runtime'" in told.what
    assert "daemon.json" in told.next
    told = await _refused(engine, Box(user="no-such-user"))
    assert "'no-such-user' is not in the image 'python:3.11-slim'" in told.what
    told = await _refused(engine, Box(volumes=("/no/such/directory:/data:ro",)))
    assert "/no/such/directory" in told.why
    assert not os.path.exists("/no/such/directory")  # noqa: ASYNC240 - which the engine makes, where it is asked in another way
    for volume in ("/a", "/a:b", ":/b", "/a:/b:rwx"):
        with pytest.raises(InvalidRequest, match="/srv/data:/data:ro"):
            Box(volumes=(volume,))


def test_where_no_engine_is_capabilities_say_so(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match="no socket") as told:
        DockerBackend(host=f"unix://{tmp_path}/none.sock").capabilities()
    assert "DOCKER_HOST" in told.value.next


@pytest.mark.parametrize(
    ("host", "why", "then"),
    [
        (
            "ssh://user@host",
            "no protocol that is spoken",
            "ssh -nNT -L /tmp/engine.sock:/var/run/docker.sock user@host",
        ),
        ("npipe:////./pipe/docker_engine", "no protocol that is spoken", "write it with one of unix://, tcp://"),
        ("foo", "no protocol that is spoken", "write it with one of unix://, tcp://"),
        ("tcp://[::1", "Invalid IPv6 URL", "write it"),
        ("http://127.0.0.1:99999", "Port out of range", "write it"),
        ("tcp://:2375", "it names no host", "write it"),
        ("unix://", "it names no socket", "write it"),
        ("unix:///etc/passwd/x", "there is no socket", "DOCKER_HOST"),
        (f"unix:///{'x' * 5000}", "File name too long", "DOCKER_HOST"),
    ],
)
async def test_an_address_that_can_not_be_used_is_named_before_anything_is_tried(
    host: str, why: str, then: str, monkeypatch: pytest.MonkeyPatch, redoma_command: Callable[..., Any]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    backend = DockerBackend()
    with pytest.raises(BackendUnavailable, match="no Docker engine answers") as told:
        backend.capabilities()
    assert why in told.value.why
    assert then in told.value.next
    assert backend.facts() == ()
    with pytest.raises(BackendUnavailable, match="no Docker engine answers"):
        await run(backend, "1")
    done = redoma_command("doctor", "--json")
    (found,) = [one for one in json.loads(done.stdout)["backends"] if one["name"] == "docker"]
    assert (found["works"], "Traceback" in done.stderr) == (False, False)


async def test_what_answers_and_is_no_engine_is_told_and_is_missing_for_the_doctor(tmp_path: Path) -> None:
    body = b""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        writer.close()

    server = await asyncio.start_unix_server(answer, tmp_path / "other.sock")
    try:
        for body in (b"[]", b"{}", b"nonsense", b'{"ApiVersion": "x"}', b"\xff"):  # noqa: B007 - read above
            backend = DockerBackend(host=f"unix://{tmp_path}/other.sock")
            with pytest.raises(BackendUnavailable, match="what answers there is not a Docker engine"):
                await run(backend, "1")
            (fact,) = await asyncio.to_thread(backend.facts)
            assert (fact.name, fact.state) == ("docker", "missing")
    finally:
        server.close()


async def test_docker_contexts_that_lead_nowhere_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONTEXT", "gone")
    backend = DockerBackend()
    with pytest.raises(BackendUnavailable, match="no Docker engine answers"):
        await run(backend, "1")
    (fact,) = await asyncio.to_thread(backend.facts)
    assert (fact.name, fact.state) == ("docker", "missing")


async def test_an_engine_that_has_gone_is_named(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "left.sock"))
    backend = DockerBackend(host=f"unix://{tmp_path}/left.sock")
    backend.capabilities()  # it looks as if one were there
    with pytest.raises(BackendUnavailable, match=r"no Docker engine answers: .*left\.sock"):
        await run(backend, "1")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody who may not use the engine")
@pytest.mark.parametrize(
    ("group", "mode", "entered", "says"),
    [
        ("daemon", 0o660, 0o755, "belongs to the group 'daemon'. Next: sudo usermod -aG daemon $USER"),
        ("daemon", 0o600, 0o755, "/guarded.sock. Next: use another engine"),  # the group may not, either
        ("root", 0o660, 0o755, "/guarded.sock. Next: use another engine"),  # nobody should be in that one
        ("daemon", 0o660, 0o700, "may not enter the directory of"),
    ],
)
def test_who_may_not_use_the_engine_is_told_what_would_help(group: str, mode: int, entered: int, says: str) -> None:
    directory = tempfile.mkdtemp(dir="/tmp")
    try:
        os.chmod(directory, entered)
        with socket.socket(socket.AF_UNIX) as held:
            held.bind(f"{directory}/guarded.sock")
            shutil.chown(f"{directory}/guarded.sock", group=group)
            os.chmod(f"{directory}/guarded.sock", mode)
            code = (
                "import os; from redoma.backends.docker.backend import DockerBackend\n"
                "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
                f"DockerBackend(host='unix://{directory}/guarded.sock').capabilities()"
            )
            ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    finally:
        shutil.rmtree(directory)
    assert "BackendUnavailable" in ended.stderr
    assert says in ended.stderr
    assert "-aG root" not in ended.stderr


def test_without_the_library_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['aiodocker'] = None\n"
        "import asyncio; from redoma import Request; from redoma.backends.docker import DockerBackend\n"
        "async def main():\n"
        "    backend = DockerBackend(host='unix:///x')\n"
        "    try: await backend.run(Request(code='1'), print)\n"
        "    finally: await backend.aclose()\n"
        "asyncio.run(main())"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"aiodocker is not installed. Next: {pip_install('redoma[docker]')}" in ended.stderr


async def test_an_engine_that_is_too_old_is_told(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps({"ApiVersion": "1.30"}).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        writer.close()

    server = await asyncio.start_unix_server(answer, tmp_path / "old.sock")
    try:
        with pytest.raises(BackendUnavailable, match=r"too old: it speaks version 1\.30"):
            await run(DockerBackend(host=f"unix://{tmp_path}/old.sock"), "1")
    finally:
        server.close()
