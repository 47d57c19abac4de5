"""A run's own directory on the host: created with its files, and removed whatever the run did to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..lib.errors import BackendError
from ..lib.files import remove_tree


@contextmanager
def scratch(files: Mapping[str, bytes]) -> Iterator[Path]:
    """Yield a private directory that holds `files`, and remove it at the end. `Request` has checked the paths:
    relative, no `..`.
    """
    import tempfile

    try:
        directory = Path(tempfile.mkdtemp(prefix="redoma-"))
    except OSError as error:
        raise BackendError("no scratch directory could be made", why=str(error), next="free space in TMPDIR") from error
    try:
        try:
            for name, content in files.items():
                path = directory / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        except OSError as error:
            raise BackendError(
                "a file of the request could not be placed", why=str(error), next="check its name and the free space"
            ) from error
        yield directory
    finally:
        try:
            remove_tree(directory)
        except OSError as error:
            raise BackendError(f"{directory} could not be removed", why=str(error), next="remove it by hand") from error
