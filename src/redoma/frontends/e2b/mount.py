"""The interface as a part of a service: at /e2b, and optionally on its own port."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ..http.mounts import Mount
from .app import Endpoint

if TYPE_CHECKING:
    from ..http.service import Service

_endpoints: WeakKeyDictionary[Service, Endpoint] = WeakKeyDictionary()


def endpoint(service: Service) -> Endpoint:
    """Return the endpoint of a service, always the same one."""
    if service not in _endpoints:
        _endpoints[service] = Endpoint(service)
    return _endpoints[service]


def mount(service: Service) -> Mount:
    """Return the mount of the interface at /e2b."""
    found = endpoint(service)
    return Mount("/e2b", found, found.lifespan)
