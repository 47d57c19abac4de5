"""What the proxy of a run costs: one request through it beside the same request directly, and many at once.

    python benchmarks/network.py [--rounds 300]

Host, client and proxy are processes of their own on this machine's loopback; ways take turns, request by request, on
connections that are kept. `squid` and `mitmdump` take part if they are installed. Then 200 connections at once go
through the proxy of one run in a cell, while another thread of the same executor makes small runs: their latency, and
their processor time in this process, beside those without the load, and beside a run of as many processes that only
compute: on few processors whatever works takes time from others.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from redoma import Config, Executor
from redoma.config import AuditConfig
from redoma.models.network import host_rules
from redoma.network.authority import Authority
from redoma.network.proxy import Proxy

BODY = b"x" * 1024
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 1024\r\n\r\n" + BODY

CLIENT = """
import json, socket, ssl, sys, time
told = json.loads(sys.argv[1])

def connect(way):
    stream = socket.create_connection(("127.0.0.1", way["port"]))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if way["tunnel"]:
        stream.sendall(f"CONNECT {way['tunnel']} HTTP/1.1\\r\\nHost: {way['tunnel']}\\r\\n\\r\\n".encode())
        answer = b""
        while b"\\r\\n\\r\\n" not in answer:
            answer += stream.recv(65536)
        assert b" 200 " in answer, answer
    if way["trust"]:
        context = ssl.create_default_context(cadata=way["trust"])
        stream = context.wrap_socket(stream, server_hostname="host.test")
    return stream

ways = {name: (connect(way), way["request"].encode(), []) for name, way in told["ways"].items()}
for number in range(told["rounds"] + 20):
    for stream, request, times in ways.values():
        began = time.perf_counter()
        stream.sendall(request)
        got = 0
        while got < 1024:
            got += len(stream.recv(65536))
        if number >= 20:
            times.append(time.perf_counter() - began)
print(json.dumps({name: times for name, (_, _, times) in ways.items()}))
"""


def host(listener: socket.socket, tls: ssl.SSLContext | None) -> None:
    """A host that answers every request with a kilobyte."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(ANSWER)

    async def serve() -> None:
        async with await asyncio.start_server(answer, sock=listener, ssl=tls, backlog=512) as server:
            await server.serve_forever()

    asyncio.run(serve())


@contextlib.contextmanager
def others(place: Path) -> Iterator[dict[str, int]]:
    """Other proxies that are installed, by name, with the ports where they listen."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name, command in (("squid", squid), ("mitmdump", mitmdump)):
            if (program := shutil.which(name)) is not None:
                with socket.create_server(("127.0.0.1", 0)) as free:
                    found[name] = free.getsockname()[1]
                stack.enter_context(started(command(program, found[name], place), found[name]))
        yield found


def mitmdump(program: str, port: int, place: Path) -> list[str]:
    options = ["--quiet", "--listen-host", "127.0.0.1", "--listen-port", str(port)]
    return [program, *options, "--set", f"confdir={place}/mitmproxy", "--set", "flow_detail=0"]


def squid(program: str, port: int, place: Path) -> list[str]:
    place.chmod(0o755)  # it gives its rights up before it reads its list of hosts
    (place / "squid.conf").write_text(
        f"http_port 127.0.0.1:{port}\nhttp_access allow all\ncache deny all\naccess_log none\ncache_log /dev/null\n"
        f"pid_filename {place}/squid.pid\nhosts_file {place}/hosts\nlogfile_rotate 0\n"
    )
    (place / "hosts").write_text("127.0.0.1 host.test\n")
    return [program, "-N", "-f", str(place / "squid.conf")]


@contextlib.contextmanager
def started(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


async def one_by_one(rounds: int, plain: int, secure: int, theirs: Authority, other: dict[str, int]) -> None:
    ours, sockets = Authority(), [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    context = ssl.create_default_context(cadata=theirs.certificate.decode())
    whole = host_rules([f"host.test:{port}=127.0.0.1" for port in (plain, secure)])
    read = host_rules([f"GET host.test:{secure}=127.0.0.1/**"])

    def proxy(which: int, rules: object) -> Proxy:
        return Proxy(
            sockets[which],
            rules,  # type: ignore[arg-type]
            authority=lambda: ours,
            max_bytes=1 << 40,
            max_connections=300,
            trust=lambda: context,
        )

    def get(target: str) -> str:
        return f"GET {target} HTTP/1.1\r\nHost: host.test:{plain if 'http' in target else secure}\r\n\r\n"

    ports = [one.getsockname()[1] for one in sockets]
    http, tunnel = f"http://host.test:{plain}/x", f"host.test:{secure}"
    certificates = theirs.certificate.decode(), ours.certificate.decode()
    ways = {
        "direct": {"port": plain, "tunnel": "", "trust": "", "request": get(http).replace(http, "/x")},
        "proxy": {"port": ports[0], "tunnel": "", "trust": "", "request": get(http)},
        **{
            # By its address: mitmdump asks the name service, which has no host.test.
            name: {"port": port, "tunnel": "", "trust": "", "request": get(http.replace("host.test", "127.0.0.1"))}
            for name, port in other.items()
        },
        "TLS, direct": {"port": secure, "tunnel": "", "trust": certificates[0], "request": get("/x")},
        "TLS, tunnel": {"port": ports[0], "tunnel": tunnel, "trust": certificates[0], "request": get("/x")},
        "TLS, read": {"port": ports[1], "tunnel": tunnel, "trust": certificates[1], "request": get("/x")},
    }
    async with proxy(0, whole), proxy(1, read):
        told = json.dumps({"ways": ways, "rounds": rounds})
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT, told, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await client.communicate()
    print(f"one request of 1 KiB on a kept connection, µs ({rounds} rounds)")
    for name, times in json.loads(out).items():
        ordered = sorted(time * 1e6 for time in times)
        p50, p90 = statistics.median(ordered), ordered[len(ordered) * 9 // 10]
        print(f"  {name:12} p50 {p50:7.0f}   p90 {p90:7.0f}")


MANY = """
import socket, sys, threading, time
host, streams = sys.argv[1], []
for _ in range(200):
    stream = socket.create_connection(("127.0.0.1", 3128))
    streams.append(stream)
began, done = time.perf_counter(), 0
while time.perf_counter() - began < 4:
    for stream in streams:
        stream.sendall(f"GET http://{host}/x HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n".encode())
    for stream in streams:
        got = 0
        while got < 1024:
            got += len(stream.recv(65536))
        done += 1
print(f"{done / (time.perf_counter() - began):.0f}")
"""

BUSY = """
import os, time
for _ in range(2):
    if os.fork() == 0:
        break
began = time.perf_counter()
while time.perf_counter() - began < 4:
    pass
"""
"""Three processes that compute: as many as work for the connections, which are the run, the proxies and the host."""


def proxy_memory(field: str) -> float:
    """The memory of the process of the proxies, in MB: `VmRSS` now, or `VmHWM` at its peak."""
    found = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            if b"hosts_process" in (status.parent / "cmdline").read_bytes():
                fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
                found += int(fields[field].split()[0]) if int(fields["PPid"]) == os.getpid() else 0
    return found / 1024


class Beside:
    """What was measured of small runs beside a load: their times in ms, and Redoma's processor time for each."""

    def __init__(self) -> None:
        self.times, self.spent = list[float](), 0.0

    def measure(self, executor: Executor, seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            time.sleep(0.03)
            began, before = time.perf_counter(), time.process_time()
            executor.run("1 + 1", policy="none")
            self.times.append((time.perf_counter() - began) * 1e3)
            self.spent += time.process_time() - before

    def __str__(self) -> str:
        ordered = sorted(self.times)
        p50, p90 = statistics.median(ordered), ordered[len(ordered) * 9 // 10]
        return f"p50 {p50:5.1f}   p90 {p90:5.1f}   Redoma's processor time {self.spent * 1e3 / len(ordered):.2f} a run"


def at_once(plain: int, place: Path, turns: int) -> None:
    config = Config(audit=AuditConfig(directory=place / "audit"), state=place / "state")
    rule = f"host.test:{plain}=127.0.0.1"

    def load(code: str) -> str:
        limits = {"open_files": 512, "connections": 256}
        done = executor.run(code, args=rule.split("=")[:1], network=[rule], policy="none", limits=limits)
        return done.stdout.strip() or done.stderr

    with Executor(config) as executor:
        load("")  # starts the process of the proxies
        Beside().measure(executor, 1)
        ours, proxies = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, proxy_memory("VmRSS")
        found = {"alone": Beside(), "beside three that compute": Beside(), "beside 200 connections": Beside()}
        served = list[str]()
        for _ in range(turns):
            found["alone"].measure(executor, 2.5)
            for name, code in (("beside three that compute", BUSY), ("beside 200 connections", MANY)):
                thread = threading.Thread(target=lambda code=code: served.append(load(code)))
                thread.start()
                time.sleep(1)
                found[name].measure(executor, 2.5)
                thread.join()
        ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - ours
        peak = proxy_memory("VmHWM")
    print(f"200 connections at once, through the proxy of one run, {turns} turns")
    print(f"  requests a second  {', '.join(filter(None, served))}")
    print(f"  memory, in MB      Redoma {ours / 1024:+.1f}; its proxies {proxies:.1f} before, {peak:.1f} at their peak")
    print("  another run, in ms")
    for name, beside in found.items():
        print(f"    {name:26} {beside}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
    theirs = Authority()
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    contexts = [None, theirs.context("host.test")]
    fork = multiprocessing.get_context("fork")  # nothing else runs yet
    for listener, context in zip(listeners, contexts, strict=True):
        fork.Process(target=host, args=(listener, context), daemon=True).start()
    plain, secure = (one.getsockname()[1] for one in listeners)
    with tempfile.TemporaryDirectory(prefix="redoma-network-") as directory:
        with others(Path(directory)) as other:
            asyncio.run(one_by_one(options.rounds, plain, secure, theirs, other))
        at_once(plain, Path(directory), options.turns)


if __name__ == "__main__":
    main()
