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
    "native/include/dovetail.h": "c_api.md",
    "src/dovetail/ir/kernel.py": "kernel_ir.md",
}
_LINK = re.compile(r"\[([^\]]*)\]\(((?!https?:|#)[^)\s]+)\)")
_FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_FROM_SPEC = "src/dovetail/artifact"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page's text with links that the site can follow."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")
    if page.file.src_uri == "format.md":
        markdown = (ROOT / "src/dovetail/artifact/SPEC.md").read_text()
        folder = _FROM_SPEC
    for source, name in PAGES.items():
        if source.endswith(".h") and page.file.src_uri == name:
            markdown = markdown.replace("HEADER", (ROOT / source).read_text())
    if page.file.src_uri == "kernel_ir.md":
        for what, table in _tables().items():
            markdown = markdown.replace(f"TABLE OF {what}", table)
    parts = _FENCED.split(markdown)  # every second part is code, where brackets are no links
    for n in range(0, len(parts), 2):
        parts[n] = _LINK.sub(lambda found: _link(found, folder, page.file.src_uri), parts[n])
    return "".join(parts)


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


def _tables() -> dict[str, str]:
    """The tables of kernel IR, as its modules have them."""
    from dovetail.ir.dtypes import DTYPES
    from dovetail.ir.ops import OPERATIONS, REDUCTIONS

    operations = [
        (o.name, o.arity, _TAKES[o.rule], o.in_c("float32"), o.numpy, o.expansion)
        for o in OPERATIONS.values()
    ]
    reductions = [(r.name, r.operation, _BEGINS.get(r.start, r.start)) for r in REDUCTIONS.values()]
    types = [(t.name, t.bits, t.compute, t.c, t.rounding) for t in DTYPES.values() if t.compute]
    heads = "operation | operands | types | C, for float32 | NumPy | in other operations"
    return {
        "OPERATIONS": _table(heads, operations),
        "REDUCTIONS": _table("reduction | joins by | begins with", reductions),
        "TYPES": _table("type | bits | computed in | C | rounded to by", types),
    }


_TAKES = {
    "float": "floating-point numbers",
    "number": "numbers",
    "any": "any, bool too",
    "integer": "integers",
    "bits": "integers, bool",
    "single": "float32",
    "cast": "any to any",
    "test": "a floating-point number to bool",
    "compare": "two of a type to bool",
    "select": "bool and two of a type",
    "check": "int64, int64 and bool to int64",
    "bits_of": "int64 to float64",
}
_BEGINS = {"least": "the least of the type", "greatest": "the greatest of the type"}


def _table(heads: str, rows: list[tuple[object, ...]]) -> str:
    lines = [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"]
    for row in rows:
        cells = [f"`{cell}`" if isinstance(cell, str) and cell else str(cell) for cell in row]
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return "\n".join(lines)
