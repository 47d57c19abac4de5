"""What the record gets of a result can be written, and a shortcut finds exactly what the slow way finds."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from redoma.pipeline.results import encodable, escaped

TEXT = st.text(st.characters(codec=None), max_size=20)
"""Any text, also with lone surrogates, as names of files may hold them."""
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN)
def test_the_shortcut_of_encodable_is_the_slow_way(value: Any) -> None:
    assert msgspec.json.encode(encodable(value)) == msgspec.json.encode(escaped(value))


@given(TEXT)
def test_text_that_is_no_utf_8_is_escaped_and_other_text_is_kept(text: str) -> None:
    told = encodable(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        assert told == text.encode("utf-8", "backslashreplace").decode()
    else:
        assert told == text
