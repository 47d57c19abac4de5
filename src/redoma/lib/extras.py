"""Optional packages: how to install those that are missing, and how to do without those that a short run doesn't need.

The command line imports this first of all, so it imports next to nothing itself.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def pip_install(what: str) -> str:
    """Return the command that installs a package next to Redoma; in a virtual environment, with its pip."""
    import shlex

    own = os.path.join(sys.prefix, "bin", "pip")
    pip = shlex.quote(own) if sys.prefix != sys.base_prefix and os.path.exists(own) else "pip"
    return f"{pip} install '{what}'"


class _Later(type(sys)):  # type: ignore[misc]  # a module: importing `types` for its name would take longer
    """A module that is loaded when something is used that it was not made with."""

    def __getattr__(self, name: str) -> Any:
        if name == "__path__":  # asked for by `from … import`; none of them is a package
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        __import__(self.__name__)
        return getattr(sys.modules[self.__name__], name)

    def function(self, name: str) -> Callable[..., Any]:
        """A function of it, which loads it when called."""
        return lambda *args, **named: self.__getattr__(name)(*args, **named)


def _later() -> dict[str, object]:
    """Modules that these import and a short run doesn't use, with what is taken from them at once."""
    unused = ["inspect", "linecache", "platform", "subprocess", "textwrap", "traceback", "urllib.parse"]
    unused += ["asyncio.sslproto", "asyncio.staggered"]
    unused += ["msgspec._json_schema", "msgspec.inspect", "msgspec.msgpack", "msgspec.toml", "msgspec.yaml"]
    modules = {name: _Later(name) for name in unused}
    modules["platform"].system = lambda: os.uname().sysname
    modules["subprocess"].__dict__.update(PIPE=-1, STDOUT=-2, DEVNULL=-3)
    for name, function in (
        ("msgspec._json_schema", "schema"),
        ("msgspec._json_schema", "schema_components"),
        ("traceback", "extract_stack"),
        ("urllib.parse", "quote_from_bytes"),
    ):
        setattr(modules[name], function, modules[name].function(function))
    return {name: module for name, module in modules.items() if name not in sys.modules}


def load_small() -> None:
    """Load msgspec, asyncio and pathlib without what a short run doesn't use of them, which is a third of it. Only for
    the command line, before anything else is loaded.

    Some modules are loaded when they are first used: see `_later`. Others are treated as if they were not installed:
    `ssl` and `typing_extensions`. So msgspec knows only the types of the standard library, and asyncio makes no TLS
    connections until `restore_tls`.
    """
    if {"asyncio", "msgspec", "ssl", "typing_extensions"} & set(sys.modules):
        return
    missing = {"ssl": None, "typing_extensions": None}  # None: the import fails
    _import(("asyncio", "pathlib", "msgspec"), instead={**missing, **_later()})


def import_without(name: str, unused: tuple[str, ...]) -> None:
    """Import a module. Those in `unused`, which it imports itself, are loaded when they are first used. None of them
    may be used while it is imported.
    """
    _import((name,), instead={other: _Later(other) for other in unused if other not in sys.modules})


def _import(names: tuple[str, ...], instead: dict[str, object]) -> None:
    """Import modules. Meanwhile some others that they import are replaced."""
    sys.modules.update(instead)  # type: ignore[arg-type]
    try:
        for name in names:
            __import__(name)
    finally:
        for name, module in instead.items():
            if sys.modules.get(name) is module:  # else it was used, and loaded
                del sys.modules[name]


def restore_tls() -> None:
    """Let asyncio make TLS connections, also after `load_small`."""
    import asyncio.base_events
    import asyncio.selector_events
    import ssl

    for module in (asyncio.base_events, asyncio.selector_events):  # `asyncio.sslproto` finds it when it is loaded
        module.ssl = ssl  # type: ignore[attr-defined]
