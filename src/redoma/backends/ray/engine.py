"""Ray itself: connect this process to a cluster, and find or create the actors of its nodes."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from ...lib.errors import BackendUnavailable
from ...lib.extras import pip_install
from . import protocol
from .link import ask

_CONNECT = 5.0  # seconds


class Invitation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a machine needs to join a cluster, or to use it."""

    address: str
    """Host and port of the head."""
    token: str
    """The token for Ray: whoever has it can run anything on every node."""
    key: str
    """The key for our messages, in hexadecimal. It never leaves the machines it was copied to."""


class RayCluster:
    """A Ray cluster. `token` is the file with Ray's token; `actor` returns the class of the nodes' actors."""

    def __init__(self, invitation: Invitation, token: str, actor: Callable[[], type]) -> None:
        self._address, self._token, self._class = invitation.address, token, actor
        self.key = bytes.fromhex(invitation.key)
        self._own = False

    def connect(self) -> None:
        """Connect this process, unless it is connected already. Raises `BackendUnavailable`."""
        # Ray reads these variables itself, in C++ and at import. There is no other way to pass the token.
        os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN_PATH"] = "token", self._token
        try:
            import ray
        except ImportError as error:
            raise BackendUnavailable(
                "Ray can't be used here", why="the package ray is not installed", next=pip_install("redoma[ray]")
            ) from error
        if ray.is_initialized():
            return
        _use_token()
        host, _, port = self._address.rpartition(":")
        try:  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=_CONNECT).close()
        except (OSError, ValueError) as error:
            raise BackendUnavailable(
                f"the cluster at {self._address} can't be reached",
                why=str(error),
                next="start it with `redoma cluster start`, or join it from this machine with `redoma cluster join`",
            ) from error
        log = logging.getLogger("ray")
        level = log.level
        log.setLevel(logging.ERROR)  # it warns that it can't handle SIGTERM, but we do
        try:
            ray.init(
                address=self._address,
                namespace=protocol.NAMESPACE,
                log_to_driver=False,
                configure_logging=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:
            raise BackendUnavailable(
                f"the cluster at {self._address} can't be used",
                why=" ".join(str(error).split())[:300],
                next="a machine that uses a cluster has to be a node of it: `redoma cluster join`",
            ) from error
        finally:
            log.setLevel(level)
        self._own = True

    def disconnect(self) -> None:
        """Close the connection, if `connect` opened it."""
        if self._own:
            import ray

            self._own = False
            ray.shutdown()

    def nodes(self) -> set[str]:
        return {node["NodeID"] for node in self._listed() if node["Alive"] and node["Resources"].get(protocol.RESOURCE)}

    def _listed(self) -> list[dict[str, Any]]:
        import ray

        listed: list[dict[str, Any]] = ray.nodes()
        return listed

    def actor(self, node: str) -> Any:
        """Return the actor of a node; create it if there is none."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options: dict[str, Any] = {
            "name": f"redoma-{node}",
            "namespace": protocol.NAMESPACE,
            "lifetime": "detached",
            "get_if_exists": True,
            "num_cpus": 0,
            "resources": {protocol.RESOURCE: 1},
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
            "max_concurrency": 4096,
            "max_restarts": 0,  # `actor` creates a new one, which can't be mistaken for the old one
        }
        return ray.remote(self._class()).options(**options).remote(node)

    def survey(self, drain: dict[str, bool] | None = None) -> list[Surveyed]:
        """Return what every node reports about itself. `drain`: nodes that first begin (True) or stop (False) to drain.
        Raises `BackendUnavailable`.
        """
        self.connect()
        seal = protocol.Seal(self.key)

        async def one(node: dict[str, Any]) -> Surveyed:
            found = Surveyed(id=node["NodeID"], address=node["NodeManagerAddress"], alive=node["Alive"])
            if not found.alive or not node["Resources"].get(protocol.RESOURCE):
                return msgspec.structs.replace(found, why="it runs nothing of Redoma" if found.alive else "it is gone")
            try:
                handle = await asyncio.to_thread(self.actor, found.id)
                wanted = protocol.Ask(drain=(drain or {}).get(found.id))
                answer = await ask(handle, seal, found.id, protocol.NO_LINK, wanted, 60.0)
            except Exception as error:
                return msgspec.structs.replace(found, why=str(error) or type(error).__name__)
            return msgspec.structs.replace(found, about=answer if isinstance(answer, protocol.About) else None)

        async def everybody() -> list[Surveyed]:
            return list(await asyncio.gather(*map(one, self._listed())))

        try:
            return asyncio.run(everybody())
        finally:
            self.disconnect()


def _use_token() -> None:
    """Make Ray read the mode and the token again: it may have been imported, or have used another cluster, before.

    Ray has no public way to do that. The names are those of Ray 2.60, to which the extra `ray` is pinned.
    """
    from ray._private.authentication.authentication_token_setup import _enable_token_auth

    _enable_token_auth()
    # Not in the type information of Ray's compiled module.
    importlib.import_module("ray._raylet").AuthenticationTokenLoader.instance().reset_cache()


class Surveyed(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the cluster as Ray lists it, and what it reports about itself."""

    id: str
    address: str
    alive: bool
    about: protocol.About | None = None
    why: str = ""
    """Why it reported nothing."""
