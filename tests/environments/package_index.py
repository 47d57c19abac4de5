"""A package index on this machine's loopback, with packages that are made for tests."""

from __future__ import annotations

import base64
import hashlib
import io
import ssl
import tarfile
import threading
import zipfile
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def wheel(
    name: str, version: str, files: Mapping[str, str], *, scripts: str = "", needs: str = ""
) -> tuple[str, bytes]:
    """The file name and content of a wheel with these files."""
    about = f"{name}-{version}.dist-info"
    requires = f"Requires-Dist: {needs}\n" if needs else ""
    content = {
        **files,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **({f"{about}/entry_points.txt": f"[console_scripts]\n{scripts}\n"} if scripts else {}),
    }
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},"
        f"{len(text.encode())}\n"
        for path, text in content.items()
    )
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in {**content, f"{about}/RECORD": f"{record}{about}/RECORD,,\n"}.items():
            archive.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), text)
    return f"{name}-{version}-py3-none-any.whl", made.getvalue()


def source(name: str, version: str, backend: str) -> tuple[str, bytes]:
    """The file name and content of a source package that builds itself with this code: what a setup.py is, without a
    need for setuptools. A wheel of the same name is in it, as `made.whl`, for the code to give away."""
    _, made = wheel(name, version, {f"{name}.py": "built = True\n"})
    files = {
        "pyproject.toml": b'[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        + f'[project]\nname = "{name}"\nversion = "{version}"\n'.encode(),
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        "backend.py": backend.encode(),
        "made.whl": made,
    }
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        for path, content in files.items():
            about = tarfile.TarInfo(f"{name}-{version}/{path}")
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return f"{name}-{version}.tar.gz", whole.getvalue()


GIVE_THE_WHEEL = """
import os, shutil

def build_wheel(directory, config_settings=None, metadata_directory=None):
    attack()
    name = "{name}-{version}-py3-none-any.whl"
    shutil.copy("made.whl", os.path.join(directory, name))
    return name
"""
"""The end of a backend, after the definition of `attack`."""


class PackageIndex:
    """Serves a simple index, and keeps what it was asked for."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.files: dict[str, bytes] = {}
        self.seen: list[tuple[str, str]] = []
        """Method and path of each request."""
        self.authorization: list[str] = []
        index = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                index.seen.append((self.command, self.path))
                index.authorization.append(self.headers.get("Authorization", ""))
                status, kind, body = index.answer(self.path)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_HEAD = do_POST = do_PUT = answer  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/simple/"

    def add(self, file: tuple[str, bytes]) -> None:
        self.files[file[0]] = file[1]

    def answer(self, path: str) -> tuple[int, str, bytes]:
        _, place, *rest = path.split("/")
        if place == "files" and rest[0] in self.files:
            return 200, "application/octet-stream", self.files[rest[0]]
        own = [name for name in self.files if place == "simple" and name.startswith(f"{rest[0].replace('-', '_')}-")]
        if not own:
            return 404, "text/plain", b"no such package"
        links = (
            f'<a href="/files/{name}#sha256={hashlib.sha256(self.files[name]).hexdigest()}">{name}</a><br>'
            for name in own
        )
        return 200, "text/html", f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
