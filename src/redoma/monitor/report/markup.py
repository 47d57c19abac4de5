"""HTML that can't be forgotten to be escaped: whatever is not `Markup` is text."""

from __future__ import annotations

import html

from ...lib.sanitise import visible


class Markup(str):
    """Text that is HTML already. Made here and nowhere else."""

    __slots__ = ()


def text(content: str) -> Markup:
    """Text as what it is: nothing in it is markup, moves other text, or can't be seen."""
    return content if isinstance(content, Markup) else Markup(html.escape(visible(content), quote=True))


def element(name: str, /, *content: str, **attributes: str | float | None) -> Markup:
    """`class_` is `class`, and `stroke_width` is `stroke-width`; an attribute that is None is left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value if isinstance(value, str) else f"{value:g}")}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{''.join(map(text, content))}</{name}>")


def said(content: str) -> Markup:
    """What somebody else said: also where it is written from right to left it stays in its place."""
    return element("bdi", content)


def void(name: str, /, **attributes: str) -> Markup:
    """An element that has no end."""
    return Markup(str(element(name, **attributes)).removesuffix(f"</{name}>"))
