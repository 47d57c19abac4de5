"""What code shows beside what it prints: pictures, tables, formulas. Inner: loaded in cells and containers, so it needs
nothing but the standard library of Python 3.9; of matplotlib only what the code has imported itself.

An object is shown by its `_repr_mimebundle_`, its `_repr_html_` and the like, as notebooks do, and by its `repr`. Count
and size are bounded here for order's sake, and again by whoever receives it.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

MAX_DISPLAYS = 50
"""Of one run."""
MAX_BYTES = 2 << 20
"""Of one representation."""
MAX_TOTAL = 6 << 20
"""Of all displays of one run."""
MAX_TEXT = 64 << 10
"""Characters of a `repr`."""

_METHODS = {
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_svg_": "image/svg+xml",
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_latex_": "text/latex",
    "_repr_json_": "application/json",
}
CHART, TABLE = "application/vnd.redoma.chart+json", "application/vnd.redoma.table+json"
"""A figure of matplotlib and a table of pandas as data, in the form that `sessions.charts` has."""
TYPES = ("text/plain", *_METHODS.values(), CHART, TABLE)
"""What can be shown. Scripts, for one, can't."""
BINARY = ("image/png", "image/jpeg")
_PYPLOT = "matplotlib.pyplot"


class Displays:
    """What one run after the other shows. `show` is told the types and sizes of a display, their bytes in a row, and
    whether it is the value of the last expression. A run may show so many objects, of `MAX_TOTAL` bytes together.
    `charts` is the module that reads data out of figures and tables, where there is one."""

    def __init__(
        self,
        show: Callable[[list[tuple[str, int]], bytes, bool], None],
        charts: ModuleType | None = None,
    ) -> None:
        self._show, self._charts = show, charts
        self.begin()

    def begin(self, *, with_charts: bool = False) -> None:
        """A run begins. `with_charts`: figures are shown as data, too."""
        self._reader = self._charts if with_charts else None
        self._count, self._room = MAX_DISPLAYS, MAX_TOTAL

    def display(self, *objects: Any) -> None:
        """Show objects as a notebook does: by their richest representations, and as text."""
        for each in objects:
            self._put(bundle(each, plain=True))

    def result(self, value: Any) -> None:
        """Show the value of a last expression, if it has more to show than its `repr`."""
        shown = bundle(value, plain=False)
        if shown:
            shown.setdefault("text/plain", _plain(value))
            if self._reader is not None and (table := self._reader.table_of(value)) is not None:
                shown[TABLE] = table
            self._put(shown, is_value=True)

    def figures(self) -> None:
        """Show and close all open figures of matplotlib."""
        pyplot = sys.modules.get(_PYPLOT)
        if pyplot is None or not hasattr(pyplot, "get_fignums"):
            return
        for number in pyplot.get_fignums():
            figure = pyplot.figure(number)
            shown: dict[str, Any] = {"image/png": _png(figure), "text/plain": _plain(figure)}
            if self._reader is not None and (chart := self._reader.chart_of(figure)) is not None:
                shown[CHART] = chart
            self._put(shown)
        pyplot.close("all")

    def _put(self, shown: dict[str, Any], *, is_value: bool = False) -> None:
        self._count -= 1
        if self._count < 0:
            return
        parts: list[tuple[str, bytes]] = []
        for kind, content in shown.items():
            data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
            if len(data) > min(MAX_BYTES, self._room):
                note = f"<{kind} of {len(data):,} bytes, too large to return>".encode()
                kind, data = "text/plain", note
                if "text/plain" in shown:
                    continue
            self._room -= len(data)
            parts.append((kind, data))
        if parts:
            self._show([(kind, len(data)) for kind, data in parts], b"".join(data for _, data in parts), is_value)


def bundle(value: Any, *, plain: bool) -> dict[str, Any]:
    """Type → content, text or bytes, of all that an object has to show; with `plain`, its `repr` in any case."""
    shown: dict[str, Any] = {}
    if not isinstance(value, type):
        own = getattr(value, "_repr_mimebundle_", None)
        if callable(own):
            offered = own()
            offered = offered[0] if isinstance(offered, tuple) else offered
            for kind, content in (offered or {}).items():
                if kind in TYPES and content is not None:
                    shown[kind] = _content(kind, content)
        for method, kind in _METHODS.items():
            if kind not in shown and callable(own := getattr(value, method, None)):
                content = own()
                content = content[0] if isinstance(content, tuple) else content
                if content is not None:
                    shown[kind] = _content(kind, content)
        if not shown and _is_figure(value):
            shown["image/png"] = _png(value)
    if plain:
        shown.setdefault("text/plain", _plain(value))
    return shown


def _content(kind: str, content: Any) -> Any:
    """As the channel takes it: bytes of pictures, text of anything else."""
    if kind in BINARY:
        return bytes(content) if not isinstance(content, str) else base64.b64decode(content)
    if kind == "application/json":
        return json.dumps(content)
    return content if isinstance(content, str) else str(content)


def _plain(value: Any) -> str:
    return repr(value)[:MAX_TEXT]


def _is_figure(value: Any) -> bool:
    figure = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
    pyplot = sys.modules.get(_PYPLOT)
    if not isinstance(figure, type) or not isinstance(value, figure):
        return False
    # One that pyplot knows is shown with all the others at the end of the run.
    return pyplot is None or getattr(value, "number", None) not in pyplot.get_fignums()


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    return file.getvalue()


def watch_pyplot(displays: Displays) -> None:
    """Have `plt.show()` show figures here, from the moment that pyplot is imported."""

    def show(*args: Any, **kwargs: Any) -> None:  # a function: pyplot gives it a signature
        """Show all open figures, and close them."""
        displays.figures()

    if _PYPLOT in sys.modules:
        sys.modules[_PYPLOT].show = show  # type: ignore[attr-defined]
    else:
        sys.meta_path.insert(0, _Watch(show))


class _Watch:
    """Finds pyplot as everybody else would, and puts our `show` into it."""

    def __init__(self, show: Callable[..., None]) -> None:
        self._own = show

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _PYPLOT:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load, show = spec.loader.exec_module, self._own

        def exec_module(module: Any) -> None:
            load(module)
            module.show = show

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
