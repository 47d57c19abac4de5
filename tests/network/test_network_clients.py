"""Programs that know nothing of Redoma get through its proxy unchanged: each reads from a host over HTTPS, which is
read on the way (a rule with methods), and is refused another host with words that say why."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from network_stage import AUTHORITY, Host, hosts

from redoma import Executor, Result

PYTHON = {
    "urllib": "from urllib.request import urlopen\nprint(urlopen({url!r}).read().decode())",
    "http": "import os, http.client as h\nc = h.HTTPSConnection('127.0.0.1', 3128)\nc.set_tunnel({host!r}, {port})\n"
    "c.request('GET', '/x')\nprint(c.getresponse().read().decode())",
    "requests": "import requests\nprint(requests.get({url!r}).text)",
    "httpx": "import httpx\nprint(httpx.get({url!r}).text)",
    "aiohttp": "import aiohttp, asyncio\nasync def main():\n  async with aiohttp.ClientSession(trust_env=True) as s:\n"
    "    print(await (await s.get({url!r})).text())\nasyncio.run(main())",
}
COMMANDS = {
    "curl": ["curl", "-sS", "{url}"],
    "curl with HTTP/2": ["curl", "-sS", "--http2", "{url}"],
    "curl by SOCKS": ["curl", "-sS", "--proxy", "socks5h://127.0.0.1:3128", "{url}"],
    "wget": ["wget", "-nv", "-O", "-", "{url}"],
    "node's https": ["node", "-e", "const h=require('https'),p=require('http');p.request({host:'127.0.0.1',port:3128,"
                     "method:'CONNECT',path:'{at}',headers:{Host:'{at}'}}).on('connect',(r,s)=>h.get({socket:s,agent:false,"
                     "servername:'{host}',host:'{host}',path:'/x',headers:{Host:'{at}'}},r=>r.pipe(process.stdout))).end()"],
    "node's fetch": ["node", "-e", "fetch('{url}').then(r=>r.text()).then(console.log).catch(e=>console.log(e.cause))"],
}  # fmt: skip


def run(
    jail: Executor,
    name: str,
    host: Host,
    network: list[str],
    *,
    backend: str = "auto",
    packages: str = "",
    **more: Any,
) -> Result:
    """Let a client read from a host. `packages` is a directory with Python's, if it doesn't find them by itself."""
    url, words = f"https://{host.url}/x", {"host": host.name, "port": host.port, "at": host.url}
    if name in PYTHON:
        path = f"import sys; sys.path.append({packages!r})\n" if packages else ""
        code = path + PYTHON[name].format(url=url, **words)
        return jail.run(code, network=network, policy="none", timeout=60, backend=backend, **more)
    argv = [
        word.replace("{url}", url).replace("{at}", host.url).replace("{host}", host.name) for word in COMMANDS[name]
    ]
    if shutil.which(argv[0]) is None:
        pytest.fail(f"{argv[0]} is not installed: scripts/setup dev installs it")
    return jail.command(argv, network=network, policy="none", memory="2GiB", timeout=60, backend=backend, **more)


@pytest.mark.parametrize("name", [*PYTHON, *COMMANDS])
def test_it_reads_from_the_host_that_is_named(jail: Executor, api: Host, name: str) -> None:
    result = run(jail, name, api, [f"GET {api.rule}"])
    assert '"path": "/x"' in result.stdout, result.stderr + str(result.network)
    assert [(one.host, one.path, one.status) for one in result.network] == [("api.test", "/x", 200)]


@pytest.mark.parametrize("name", [*PYTHON, *COMMANDS])
def test_another_host_is_refused_and_the_program_can_say_why(jail: Executor, api: Host, name: str) -> None:
    result = run(jail, name, api, ["GET other.test"])
    assert '"path": "/x"' not in result.stdout
    assert [one.decision for one in {one.why: one for one in result.network}.values()] == ["denied"]
    if name not in ("curl", "curl with HTTP/2", "curl by SOCKS", "wget", "node's https", "http"):
        assert f"--allow-host {api.url}" in result.stdout + result.stderr
    assert not api.seen


@pytest.mark.parametrize("name", ["urllib", "requests", "curl"])
def test_a_tunnel_is_verified_by_the_program_itself(jail: Executor, api: Host, name: str) -> None:
    """A host that is allowed whole is not read: its own certificate reaches the program."""
    env = dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"), "/workspace/own.pem")
    own = {"own.pem": AUTHORITY.certificate}
    refused = run(jail, name, api, [api.rule])
    trusted = run(jail, name, api, [api.rule], env=env, files=own)
    assert '"path": "/x"' not in refused.stdout
    assert '"path": "/x"' in trusted.stdout, trusted.stderr
    assert trusted.network[0].method == "CONNECT"


@pytest.fixture
def index(trusted: None) -> Iterator[Host]:
    with hosts("index.test", tls=AUTHORITY) as (host,):
        yield host


def test_git_clones_over_https(jail: Executor, index: Host, tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", *identity, *words], check=True, capture_output=True, cwd=tmp_path)

    git("init", "work")
    (tmp_path / "work" / "file").write_text("content\n")
    git("-C", "work", "add", "file")
    git("-C", "work", "commit", "-m", "first")
    git("clone", "--bare", "work", "repo.git")
    git("-C", "repo.git", "update-server-info")
    for file in (tmp_path / "repo.git").rglob("*"):
        if file.is_file():
            index.files[f"/{file.relative_to(tmp_path)}"] = file.read_bytes()
    script = f"git clone -q https://{index.url}/repo.git got && cat got/file"
    result = jail.run(script, "bash", network=[f"GET {index.rule}"], policy="none")
    assert result.stdout == "content\n", result.stderr


def test_git_sends_a_token_that_it_never_has(jail: Executor, index: Host) -> None:
    from redoma import Secret

    script = f'git -c http.extraHeader="Authorization: Bearer $TOKEN" ls-remote https://{index.url}/repo.git'
    secrets = {"TOKEN": Secret("gl-r34lV4lue", hosts=("index.test",))}
    result = jail.run(script, "bash", network=[index.rule], secrets=secrets, policy="none")
    assert index.seen[0]["headers"]["authorization"] == "Bearer gl-r34lV4lue", result.stderr


def test_pip_installs_from_an_index(jail: Executor, index: Host) -> None:
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny.py", "answer = 42\n")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    index.files["/simple/tiny/"] = b'<a href="/tiny-1.0-py3-none-any.whl">tiny-1.0-py3-none-any.whl</a>'
    index.files["/tiny-1.0-py3-none-any.whl"] = wheel.getvalue()
    command = ["python3", "-m", "pip", "install", "-q", "--no-cache-dir", "--target", "/tmp/got",
               "--index-url", f"https://{index.url}/simple", "tiny"]  # fmt: skip
    script = f"""
import subprocess, sys
done = subprocess.run([sys.executable, *{command[1:]!r}], capture_output=True, text=True)
print(done.stderr, file=sys.stderr)
sys.path.insert(0, "/tmp/got")
import tiny
print(tiny.answer)
"""
    result = jail.run(script, network=[f"GET {index.rule}"], policy="none", timeout=60)
    assert result.stdout == "42\n", result.stderr


def test_npm_asks_its_registry(jail: Executor, index: Host) -> None:
    if shutil.which("npm") is None:
        pytest.fail("npm is not installed: scripts/setup dev installs it")
    index.files["/tiny"] = json.dumps(
        {"name": "tiny", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {"name": "tiny", "version": "1.0.0"}}}
    ).encode()
    command = ["npm", "view", "tiny", "version", f"--registry=https://{index.url}/", "--update-notifier=false"]
    result = jail.command(command, network=[f"GET {index.rule}"], policy="none", memory="2GiB", timeout=60)
    assert result.stdout.strip() == "1.0.0", result.stderr
