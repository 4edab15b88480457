"""A hook of MkDocs: pages that are files of the sources, and links to files outside ``docs``.

Links in ``docs`` work where the sources are read. On the site those to a page that stands for the
file go there, and others become the path as text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Files of the sources that are pages of the site.
PAGES = {
    "src/dovetail/artifact/SPEC.md": "format.md",
    "native/include/dovetail_plugin.h": "abi.md",
}
_LINK = re.compile(r"\[([^\]]*)\]\(((?!https?:|#)[^)\s]+)\)")
_FROM_SPEC = "src/dovetail/artifact"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page's text with links that the site can follow."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")
    if page.file.src_uri == "format.md":
        markdown = (ROOT / "src/dovetail/artifact/SPEC.md").read_text()
        folder = _FROM_SPEC
    if page.file.src_uri == "abi.md":
        header = (ROOT / "native/include/dovetail_plugin.h").read_text()
        markdown = markdown.replace("HEADER", header)
    return _LINK.sub(lambda found: _link(found, folder, page.file.src_uri), markdown)


def _link(found: re.Match[str], folder: str, page: str) -> str:
    text, target = found.group(1), found.group(2)
    path, _, anchor = target.partition("#")
    place = posixpath.normpath(posixpath.join(folder, path))
    if place in PAGES:
        place = f"docs/{PAGES[place]}"
    if place.startswith("docs/") and (ROOT / place).is_file():
        inside = posixpath.relpath(place, posixpath.dirname(f"docs/{page}"))
        return f"[{text}]({inside}{'#' if anchor else ''}{anchor})"
    plain = text.strip("`")
    return f"`{plain}`" if plain == place else f"{text} (`{place}`)"
