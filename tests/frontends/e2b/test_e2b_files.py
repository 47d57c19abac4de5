"""files: their contents, their names, and what happens to them."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from e2b import (
    FilesystemEvent,
    FilesystemEventType,
    FileType,
    InvalidArgumentException,
    NotEnoughSpaceException,
    NotFoundException,
    SandboxException,
)
from e2b_code_interpreter import AsyncSandbox, Sandbox

from pace import SLOW
from serving import Serving

pytestmark = pytest.mark.usefixtures("pointed")


def test_what_was_written_is_read(shared: Sandbox) -> None:
    written = shared.files.write("a b/ü.txt", "text €")
    assert (written.name, written.type, written.path) == ("ü.txt", FileType.FILE, "/home/user/a b/ü.txt")
    assert shared.files.read("a b/ü.txt") == "text €"
    assert shared.files.read("/home/user/a b/ü.txt", format="bytes") == "text €".encode()
    with shared.files.read("~/a b/ü.txt", format="stream") as stream:
        assert b"".join(stream) == "text €".encode()
    assert shared.run_code("open('/home/user/a b/ü.txt').read()").text == "text €"
    shared.files.write("a b/ü.txt", b"")
    assert shared.files.read("a b/ü.txt") == ""
    shared.files.write("/tmp/elsewhere", "1")
    assert shared.commands.run("cat /tmp/elsewhere").stdout == "1"


@pytest.mark.parametrize("options", [{}, {"use_octet_stream": True}, {"gzip": True}])
def test_long_contents_arrive_whole(shared: Sandbox, options: dict[str, Any]) -> None:
    content = bytes(range(256)) * 12_000
    shared.files.write("long", content, **options)
    assert shared.files.read("long", format="bytes", gzip=bool(options.get("gzip"))) == content


def test_contents_may_come_in_pieces_and_many_files_at_once(shared: Sandbox) -> None:
    shared.files.write("pieces", io.BytesIO(b"x" * 1_000_000))
    shared.files.write("iterated", (bytes([65 + n]) * 1000 for n in range(3)))
    assert shared.files.get_info("pieces").size == 1_000_000
    assert shared.files.read("iterated") == "A" * 1000 + "B" * 1000 + "C" * 1000
    for use_octet_stream in (False, True):
        written = shared.files.write_files(
            [{"path": "many/1", "data": "one"}, {"path": "/home/user/many/2", "data": b"two"}],
            use_octet_stream=use_octet_stream,
        )
        assert [each.path for each in written] == ["/home/user/many/1", "/home/user/many/2"]
        assert [shared.files.read(f"many/{n}") for n in (1, 2)] == ["one", "two"]
        shared.files.remove("many")
    assert shared.files.write_files([]) == []


def test_lists_and_descriptions(sandbox: Sandbox) -> None:
    sandbox.files.write("top/one.txt", "12345")
    sandbox.files.write("top/deep/er/two.txt", "2")
    sandbox.commands.run("chmod 640 top/one.txt; ln -s one.txt top/link")
    by_name = {each.name: each for each in sandbox.files.list("top")}
    assert set(by_name) == {"one.txt", "deep", "link"}
    one = by_name["one.txt"]
    assert (one.path, one.type, one.size, one.mode) == ("/home/user/top/one.txt", FileType.FILE, 5, 0o640)
    assert (one.permissions, one.owner, one.group) == ("-rw-r-----", "user", "user")
    assert abs(one.modified_time.timestamp() - time.time()) < 60 * SLOW
    assert (by_name["deep"].type, by_name["deep"].permissions) == (FileType.DIR, "drwxr-xr-x")
    assert (by_name["link"].type, by_name["link"].symlink_target) == (FileType.SYMLINK, "/home/user/top/one.txt")
    deep = [each.path.removeprefix("/home/user/top/") for each in sandbox.files.list("top", depth=3)]
    assert sorted(deep) == ["deep", "deep/er", "deep/er/two.txt", "link", "one.txt"]
    assert sandbox.files.get_info("top/one.txt") == one
    assert sandbox.files.get_info("top").type is FileType.DIR
    assert sandbox.files.exists("top/one.txt")
    assert not sandbox.files.exists("top/none.txt")
    assert not sandbox.files.exists("top/one.txt/below")


def test_directories_names_and_removing(shared: Sandbox) -> None:
    assert shared.files.make_dir("made/in/one") is True
    assert shared.files.make_dir("made/in/one") is False
    shared.files.write("made/file", "1")
    moved = shared.files.rename("made/file", "made/else/where")
    assert (moved.path, shared.files.exists("made/file")) == ("/home/user/made/else/where", False)
    shared.files.remove("made/else/where")
    shared.files.remove("made")
    assert not shared.files.exists("made")
    shared.files.remove("made")  # nothing to do


def test_errors_are_the_sdks_own(shared: Sandbox) -> None:
    shared.files.write("file", "1")
    shared.files.make_dir("directory")
    missing: list[Callable[[], object]] = [
        lambda: shared.files.read("none"),
        lambda: shared.files.list("none"),
        lambda: shared.files.get_info("none"),
        lambda: shared.files.rename("none", "other"),
        lambda: shared.files.watch_dir("none"),
    ]
    for use in missing:
        with pytest.raises(NotFoundException):
            use()
    senseless: list[Callable[[], object]] = [
        lambda: shared.files.read("directory"),
        lambda: shared.files.write("directory", "1"),
        lambda: shared.files.list("file"),
        lambda: shared.files.make_dir("file"),
        lambda: shared.files.list(".", depth=0),
        lambda: shared.files.write("x", "1", metadata={"a": "b"}),
    ]
    for wrong in senseless:
        with pytest.raises(InvalidArgumentException):
            wrong()
    with pytest.raises(SandboxException, match=r"[Rr]ead-only|denied"):
        shared.files.write("/etc/passwd", "root::0:0::/:/bin/sh")


def test_a_full_disk_is_said_to_be_full(sandbox: Sandbox) -> None:
    piece = bytes(1 << 20)
    with pytest.raises(NotEnoughSpaceException):
        sandbox.files.write("large", (piece for _ in range(100)))
    assert sandbox.files.list(".") == []  # nothing is left of it
    assert sandbox.run_code("1 + 1").text == "2"


def test_watching_a_directory(sandbox: Sandbox) -> None:
    sandbox.files.write("watched/before", "1")
    watch = sandbox.files.watch_dir("watched", recursive=True, include_entry=True)
    sandbox.files.write("watched/new", "1")
    first = watch.get_new_events()
    assert (FilesystemEventType.CREATE, "new") in [(each.type, each.name) for each in first]
    assert first[0].entry is not None
    assert first[0].entry.path == "/home/user/watched/new"
    sandbox.files.write("watched/before", "longer")
    sandbox.files.make_dir("watched/in")
    sandbox.commands.run("chmod 600 watched/new; echo 1 > watched/in/deep")
    seen = {(each.type, each.name) for each in watch.get_new_events()}
    assert (FilesystemEventType.WRITE, "before") in seen
    assert (FilesystemEventType.CHMOD, "new") in seen
    assert (FilesystemEventType.CREATE, "in/deep") in seen
    sandbox.files.rename("watched/new", "watched/renamed")
    sandbox.files.remove("watched/before")
    seen = {(each.type, each.name) for each in watch.get_new_events()}
    assert (FilesystemEventType.RENAME, "new") in seen
    assert (FilesystemEventType.REMOVE, "before") in seen
    assert watch.get_new_events() == []
    watch.stop()
    with pytest.raises(SandboxException):
        watch.get_new_events()


def test_signed_addresses_work_without_a_key_for_exactly_that_file(service: Serving, sandbox: Sandbox) -> None:
    sandbox.files.write("shared.txt", "for you")
    url = sandbox.download_url("shared.txt", use_signature_expiration=100)
    answer = httpx.get(url, timeout=60 * SLOW)
    assert (answer.status_code, answer.content) == (200, b"for you")
    assert "attachment" in answer.headers["Content-Disposition"]
    assert "nosniff" in answer.headers["X-Content-Type-Options"]
    absolute = sandbox.download_url("/home/user/shared.txt", user="user")
    assert httpx.get(absolute, timeout=60 * SLOW).content == b"for you"
    for wrong in (
        url.replace("shared.txt", "other.txt"),
        url.replace("signature=v1_", "signature=v1_A"),
        url.replace("signature_expiration=", "signature_expiration=9"),
        sandbox.download_url("shared.txt", use_signature_expiration=-5),
        url.partition("?")[0] + "?path=shared.txt",
    ):
        assert httpx.get(wrong, timeout=60 * SLOW).status_code in (400, 401)
    upload = sandbox.upload_url("sent.txt", use_signature_expiration=100)
    sent = httpx.post(upload, files={"file": ("sent.txt", b"sent")}, timeout=60 * SLOW)
    assert sent.status_code == 200
    assert sandbox.files.read("sent.txt") == "sent"
    assert httpx.get(upload, timeout=60 * SLOW).status_code == 401  # an address to write is none to read


def test_all_of_it_works_on_a_port_of_its_own(service: Serving) -> None:
    where: Any = {"api_url": service.e2b_url, "sandbox_url": service.e2b_url}
    sandbox = Sandbox.create(**where)
    try:
        sandbox.files.write("a", "1")
        assert sandbox.run_code("open('a').read()").text == "1"
        assert sandbox.commands.run("cat a").stdout == "1"
        assert httpx.get(sandbox.download_url("a"), timeout=60 * SLOW).content == b"1"
    finally:
        sandbox.kill()


async def test_the_same_calls_without_blocking(asandbox: AsyncSandbox) -> None:
    files = asandbox.files
    await files.make_dir("watched")
    events: list[tuple[FilesystemEventType, str]] = []
    left: list[Any] = []
    all_there = asyncio.Event()

    def heard(event: FilesystemEvent) -> None:
        events.append((event.type, event.name))
        if len({name for _, name in events}) == 3:
            all_there.set()

    watch = await files.watch_dir("watched", on_event=heard, on_exit=left.append)
    await files.write("watched/a", "1")
    await files.write_files([{"path": "watched/b", "data": "2"}, {"path": "watched/c", "data": b"3"}])
    await asyncio.wait_for(all_there.wait(), 30 * SLOW)
    assert {(FilesystemEventType.CREATE, name) for name in "abc"} <= set(events)
    await watch.stop()
    assert await files.read("watched/a") == "1"
    async with await files.read("watched/c", format="stream") as stream:
        assert b"".join([chunk async for chunk in stream]) == b"3"
    assert {each.name for each in await files.list("watched")} == {"a", "b", "c"}
    assert await files.exists("watched/a")
    assert (await files.get_info("watched/a")).size == 1
    assert (await files.rename("watched/a", "d")).path == "/home/user/d"
    await files.remove("d")
    with pytest.raises(NotFoundException):
        await files.read("d")

    async def pieces() -> Any:
        for n in range(3):
            yield bytes([65 + n]) * 1000

    await files.write("pieces", pieces())
    assert (await files.get_info("pieces")).size == 3000
