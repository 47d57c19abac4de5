"""Hooks of mkdocs: pages from the repository's root, and links that work both on the site and in the repository."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
FROM_ROOT = ("SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md")
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that live in the repository's root."""
    for name in FROM_ROOT:
        files.append(File.generated(config, name, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at pages of the site; a link to a file that is not on it, such as a test, becomes plain text."""
    source = page.file.src_uri
    home = ROOT / source if source in FROM_ROOT else ROOT / "docs" / source

    def rewritten(match: re.Match[str]) -> str:
        target = (home.parent / match[2]).resolve()
        if target.is_dir() and (target / "README.md").is_file():
            target /= "README.md"
        if not target.is_relative_to(ROOT):
            return match[0]
        path = target.relative_to(ROOT).as_posix()
        name = path if path in FROM_ROOT else path.removeprefix("docs/")
        if name in {"README.md"} or files.get_file_from_path(name) is None:
            return match[1]
        depth = source.count("/")
        return f"[{match[1]}]({'../' * depth}{name}{match[3] or ''})"

    return _LINK.sub(rewritten, markdown)
