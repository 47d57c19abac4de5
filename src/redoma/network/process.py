"""The process of the proxies: serves one proxy for each run that Redoma hands over. `backends/hosts.py` starts it.

It is the only one that reads what hostile code and hosts send, and, beside Redoma itself, the only one that has the
values of secrets. The authority that it vouches with never leaves it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl

from .authority import Authority
from .credentials import Credentials
from .messages import Broken, Ended, ProxyJob, Ready, Recorded, frame, read_job
from .proxy import Proxy

_HELLO_TIME = 60.0


class Proxies:
    """Serves the proxies of all runs, until Redoma hangs up or ends."""

    def __init__(self) -> None:
        self._authority: Authority | None = None
        self._runs: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()

    async def serve(self, control: socket.socket, parent: int) -> None:
        """Take runs from `control`: a listening socket and a connection each. `parent` is a pidfd of Redoma."""
        loop = asyncio.get_running_loop()
        control.setblocking(False)
        loop.add_reader(control, self._take, control)
        loop.add_reader(parent, self._over.set)
        await self._over.wait()
        for run in self._runs:
            run.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)

    def _take(self, control: socket.socket) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(control, 1, 2, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        sockets = [socket.socket(fileno=number) for number in descriptors]
        if len(sockets) != 2:
            for one in sockets:
                one.close()
            if not data:  # Redoma has hung up
                self._over.set()
            return
        run = asyncio.get_running_loop().create_task(self._run(*sockets))
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)

    async def _run(self, listener: socket.socket, connection: socket.socket) -> None:
        with listener:
            reader, writer = await asyncio.open_connection(sock=connection)
            try:
                async with asyncio.timeout(_HELLO_TIME):
                    job = await read_job(reader)
                proxy = self._proxy(listener, job, writer)
                async with proxy:
                    writer.write(frame(Ready(proxy.certificate)))
                    await reader.read(1)  # nothing comes: it ends with the run
                for record in proxy.sums:
                    writer.write(frame(Recorded(record)))
                writer.write(frame(Ended()))
                await writer.drain()
            except (Broken, OSError):  # Redoma doesn't want it any more, or has seen that we failed
                pass
            finally:
                writer.close()

    def _proxy(self, listener: socket.socket, job: ProxyJob, writer: asyncio.StreamWriter) -> Proxy:
        if self._authority is None or self._authority.is_old:
            self._authority = Authority()
        ours = self._authority  # the one that the guest was told to trust, for as long as it runs
        return Proxy(
            listener,
            job.rules,
            credentials=Credentials(job.held),
            authority=lambda: ours,
            max_bytes=job.max_bytes,
            max_connections=job.max_connections,
            place=job.place,
            trust=lambda: trusted(job.cafile, job.capath),
            recorded=lambda record: writer.write(frame(Recorded(record))),
        )


def trusted(cafile: str, capath: str) -> ssl.SSLContext:
    """Return a context that verifies hosts by these authorities; by those that OpenSSL knows if none are given."""
    return ssl.create_default_context(cafile=cafile or None, capath=capath or None)


def main(control: int, parent: int) -> None:
    """Serve until the end. `control` and `parent` are descriptors: see `Proxies.serve`."""
    with socket.socket(fileno=control) as channel:
        asyncio.run(_serve(channel, parent))
    os._exit(0)  # a thread may still wait for a name service


async def _serve(control: socket.socket, parent: int) -> None:
    await Proxies().serve(control, parent)
