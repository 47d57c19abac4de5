"""What was written anew because the module that has it takes long to load: the same as there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redoma import Request
from redoma.backends.jail.guest import as_json
from redoma.lib.mounts import _unescape
from redoma.lib.patterns import lazy_pattern
from redoma.redaction.redactor import _as_json

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(plain)
def test_a_report_is_written_as_json_writes_it(data: Any) -> None:
    assert as_json(data) == json.dumps(data)


def test_a_report_of_anything_else_is_refused() -> None:
    with pytest.raises(TypeError, match="object is not plain data"):
        as_json([object()])


@given(st.text(alphabet="\\01478 a\n") | st.text())
def test_names_in_mountinfo_are_read_as_an_expression_would(field: str) -> None:
    assert _unescape(field) == re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)


def test_the_id_of_a_request_is_a_random_uuid() -> None:
    ids = {Request(code="1").id for _ in range(1000)}
    assert len(ids) == 1000
    for each in ids:
        assert uuid.UUID(each).version == 4
        assert uuid.UUID(each).variant == uuid.RFC_4122
        assert uuid.UUID(each).hex == each


@given(st.text(alphabet=st.characters(codec=None)) | st.text(alphabet='\x00\x1b\x7f"\\/\n\ud800é'))
def test_a_text_that_is_redacted_by_its_name_is_written_as_json_writes_it(text: str) -> None:
    assert _as_json(text) == json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")


@given(st.text(alphabet="ab1 \n"))
def test_a_pattern_that_is_compiled_later_finds_the_same(text: str) -> None:
    now, later = re.compile(r"(a+)(\d)?", re.IGNORECASE), lazy_pattern(r"(a+)(\d)?", re.IGNORECASE)
    for name in ("match", "search", "fullmatch"):
        ours, theirs = getattr(later, name)(text), getattr(now, name)(text)
        assert (ours and ours.span()) == (theirs and theirs.span())
    assert later.sub("-", text) == now.sub("-", text)
    assert later.findall(text) == now.findall(text)
    assert later.split(text) == now.split(text)
    assert later.groups == now.groups


def test_tls_works_again_once_it_is_wanted(tmp_path: Path) -> None:
    """A handshake with ourselves, in a process that has loaded asyncio without it."""
    program = textwrap.dedent("""
        import sys
        from redoma.lib.extras import load_small, restore_tls
        load_small()
        import asyncio
        assert "ssl" not in sys.modules and asyncio.base_events.ssl is None
        restore_tls()
        import ssl
        key = sys.argv[1]
        server_side, client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=key)
        server_side.load_cert_chain(key)

        async def greet(reader, writer):
            writer.write(b"hello")
            writer.close()

        async def main():
            server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=server_side)
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_side, server_hostname="me")
            print(await reader.read())
            writer.close()
            server.close()

        asyncio.run(main())
        """)
    key = tmp_path / "key.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=me"]
    request += ["-addext", "subjectAltName=DNS:me"]
    subprocess.run([*request, "-keyout", key, "-out", tmp_path / "cert"], check=True, capture_output=True)
    key.write_text(key.read_text() + (tmp_path / "cert").read_text())
    done = subprocess.run([sys.executable, "-c", program, key], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("b'hello'\n", 0), done.stderr


def test_what_is_loaded_later_is_there_once_it_is_used() -> None:
    """In a process that has loaded asyncio without it: through asyncio, and by its own name."""
    program = textwrap.dedent("""
        import sys
        from redoma.lib.extras import load_small
        load_small()
        import asyncio, pathlib, uuid
        later = {"inspect", "linecache", "platform", "subprocess", "textwrap", "traceback", "urllib.parse"}
        later |= {"asyncio.sslproto", "asyncio.staggered", "msgspec._json_schema", "msgspec.inspect"}
        later |= {"msgspec.msgpack", "msgspec.toml", "msgspec.yaml"}
        assert not later & set(sys.modules), later & set(sys.modules)
        assert asyncio.iscoroutinefunction(asyncio.sleep)
        assert "inspect" in sys.modules and "subprocess" not in sys.modules
        assert pathlib.Path("/a b").as_uri() == "file:///a%20b"
        assert uuid.UUID(int=1).int == 1

        async def main():
            process = await asyncio.create_subprocess_exec("echo", "hello", stdout=asyncio.subprocess.PIPE)
            out, _ = await process.communicate()
            assert out == b"hello\\n"
            asyncio.current_task().print_stack(file=sys.stdout)

        asyncio.run(main(), debug=True)
        import msgspec
        assert msgspec.json.schema(int) == {"type": "integer"}
        assert msgspec.json.schema_components([int])[0] == ({"type": "integer"},)
        assert msgspec.inspect.type_info(int) == msgspec.inspect.IntType()
        assert msgspec.toml.decode(b"a = 1") == {"a": 1}
        assert msgspec.yaml.decode(b"a: 1") == {"a": 1}
        assert msgspec.msgpack.decode(msgspec.msgpack.encode([1])) == [1]
        import platform, subprocess, traceback, urllib.parse
        assert (subprocess.PIPE, subprocess.STDOUT, subprocess.DEVNULL) == (-1, -2, -3)
        assert platform.system() == "Linux" and urllib.parse.quote("a b") == "a%20b"
        """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Stack for <Task" in done.stdout
