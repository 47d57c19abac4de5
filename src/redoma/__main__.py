"""`python -m redoma` is the command line."""

from __future__ import annotations

from .frontends.cli import main

if __name__ == "__main__":
    main()
