"""The page's HTML: the report as JSON, the layout of its graphs, our script and the library's.

Nothing of a report becomes markup or script. It lies in the page as JSON without a ``<``, is read
by ``JSON.parse`` and set as text; the policy lets no script, style or request be but our own.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any

from dovetail.page.layout import layered

LIBRARY = "cytoscape.min.js"
SCRIPTS = ("model.js", "graph.js", "details.js", "panels.js", "main.js")
# What Cytoscape.js would add itself, which the policy forbids: it looks for it first.
_GRAPH_STYLE = ".__________cytoscape_container { position: relative; }"
_PLACE = re.compile(r"@([A-Z_]+)@")
# JSON has these within strings alone, where an escape says the same.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def page_html(report: Mapping[str, Any], title: str) -> str:
    """One self-contained page for the data of a report."""
    library, style = _static(LIBRARY), _static("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(map(_static, SCRIPTS)) + "\n})();\n"
    parts = {
        "POLICY": _policy(scripts=(library, script), styles=(style, _GRAPH_STYLE)),
        "TITLE": html.escape(title.encode(errors="replace").decode()),
        "STYLE": style,
        "GRAPH_STYLE": _GRAPH_STYLE,
        "DATA": embedded(page_data(report, title)),
        "LIBRARY": library,
        "SCRIPT": script,
    }
    return _PLACE.sub(lambda place: parts[place[1]], _static("page.html"))


def page_data(report: Mapping[str, Any], title: str) -> dict[str, Any]:
    """What the page's script reads: the report, each text of a stage once, positions of nodes."""
    texts: dict[str, int] = {}
    compilations = [_with_texts(c, texts) for c in report["compilations"]]
    graphs = [graph for c in report["compilations"] for graph in c["graphs"]]
    sizes = [0 if graph["kind"].endswith("once") else len(graph["calls"]) for graph in graphs]
    return {
        "title": title,
        "report": {**report, "compilations": compilations},
        "texts": list(texts),
        "layouts": [graph_layout(graph) for graph in graphs],
        "first": sizes.index(max(sizes)) if sizes else 0,
    }


def graph_layout(graph: Mapping[str, Any]) -> list[tuple[float, float]]:
    """A position for each input, each call, and the output where there is one."""
    calls = graph["calls"]
    names = [given["name"] for given in graph["inputs"]] + [call["name"] for call in calls]
    places = {name: n for n, name in enumerate(names)}
    reads = [[] for _ in graph["inputs"]] + [call["reads"] for call in calls]
    if graph["outputs"]:
        reads.append(graph["outputs"])
    edges = [(places[r], n) for n, each in enumerate(reads) for r in each if r in places]
    return layered(len(reads), edges)


def embedded(value: Any) -> str:
    """JSON that may stand in a script element: no sign of markup, all of it ASCII."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&]", lambda sign: _ESCAPES[sign[0]], text)


def _finite(value: Any) -> Any:
    """A value with null for numbers that JSON has not."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _with_texts(compilation: Mapping[str, Any], texts: dict[str, int]) -> dict[str, Any]:
    """A compilation whose stages name their texts by number: what one makes the next is given."""

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    stages = [
        {**stage, "before": number(stage["before"]), "after": number(stage["after"])}
        for stage in compilation["stages"]
    ]
    return {**compilation, "stages": stages}


def _policy(scripts: Iterable[str], styles: Iterable[str]) -> str:
    """The page's Content-Security-Policy: what stands in it, by hash, and nothing else."""

    def hashes(texts: Iterable[str]) -> str:
        digests = (hashlib.sha256(text.encode()).digest() for text in texts)
        return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {hashes(scripts)}; style-src {hashes(styles)}; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _static(name: str) -> str:
    return resources.files("dovetail.page").joinpath("static", name).read_text(encoding="utf-8")
