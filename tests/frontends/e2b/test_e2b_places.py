"""Where the interface is: below a service, on a port of its own, and behind a domain of one's own with TLS."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import ssl
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from e2b_code_interpreter import Sandbox

from pace import SLOW
from serving import Serving

DOMAIN = "sandboxes.example.org"
PROGRAM = """
import asyncio
from e2b_code_interpreter import AsyncSandbox, Sandbox

with Sandbox.create() as sandbox:
    assert sandbox.get_host(3000) == f"3000-{sandbox.sandbox_id}.sandboxes.example.org"
    sandbox.files.write("a.txt", "1")
    assert sandbox.run_code("open('a.txt').read()").text == "1"
    assert sandbox.commands.run("cat a.txt").stdout == "1"
    print(sandbox.download_url("a.txt"))

async def main():
    sandbox = await AsyncSandbox.create()
    assert (await sandbox.run_code("6 * 7")).text == "42"
    assert (await sandbox.commands.run("echo hi")).stdout == "hi\\n"
    await sandbox.kill()

asyncio.run(main())
"""


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


def _dated(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    return builder.not_valid_before(now - day).not_valid_after(now + day)


class Front:
    """What stands before a service: a proxy that takes every name for its own, ends TLS, and passes on what it gets."""

    def __init__(self, place: Path, port: int) -> None:
        self.ca = place / "ca.pem"
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self._certificate(place))
        self._port = port
        self._server: asyncio.Server | None = None
        self.url = ""
        self.names: set[str] = set()

    async def __aenter__(self) -> Front:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()

    def _certificate(self, place: Path) -> Path:
        """A certificate for all names below the domain, by an authority of our own."""
        authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        ours = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority")])
        its = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, DOMAIN)])
        names = x509.SubjectAlternativeName([x509.DNSName(f"*.{DOMAIN}")])
        top = _dated(x509.CertificateBuilder(ours, ours, authority.public_key(), x509.random_serial_number()))
        top = top.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        leaf = _dated(x509.CertificateBuilder(ours, its, key.public_key(), x509.random_serial_number()))
        leaf = leaf.add_extension(names, critical=False)
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        self.ca.write_bytes(top.sign(authority, hashes.SHA256()).public_bytes(pem))
        both = place / "both.pem"
        secret = key.private_bytes(pem, form, serialization.NoEncryption())
        both.write_bytes(secret + leaf.sign(authority, hashes.SHA256()).public_bytes(pem))
        return both

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.names.add(head.split()[1].decode().partition(":")[0])
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await writer.start_tls(self._context)
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))


async def test_it_works_by_a_domain_and_tls_alone(service: Serving, tmp_path: Path) -> None:
    async with Front(tmp_path, int(service.e2b_url.rpartition(":")[2])) as front:
        given = {"E2B_DOMAIN": DOMAIN, "E2B_API_KEY": service.key("agent"), "SSL_CERT_FILE": str(front.ca)}
        others = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
        program = PROGRAM.replace("Sandbox.create()", f"Sandbox.create(proxy={front.url!r})")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            env=others | given,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(120 * SLOW):
            out, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()[-3000:]
        assert f"api.{DOMAIN}" in front.names
        assert any(name.startswith(("49983-", "49999-")) for name in front.names)
        assert out.startswith(b"https://49983-")


@pytest.mark.usefixtures("pointed")
def test_a_server_that_stops_does_not_wait_for_idle_sandboxes(tmp_path: Path) -> None:
    serving = Serving(tmp_path / "own")
    key = serving.key("agent")
    serving.start()
    where = f"{serving.url}/e2b"
    sandbox = Sandbox.create(api_key=key, api_url=where, sandbox_url=where)
    watch = sandbox.files.watch_dir(".")
    assert watch.get_new_events() == []
    assert sandbox.run_code("1").text == "1"
    assert serving.stop() == 0
    errors = serving.log.read_text() if serving.log.exists() else ""
    assert "bug" not in errors
