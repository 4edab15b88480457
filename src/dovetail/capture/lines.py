"""Lines of the user's code that calls come from."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from traceback import FrameSummary
from typing import Any

from torch import fx

from dovetail.capture.ops import OpOverload, op_name

_FRAME = re.compile(r'File "(.*?)", line (\d+), in (.*)\n?(?: {4}(.*))?')
_MOST_NOTED = 8  # lines of a note on an error
_LIBRARY = str(Path(fx.__file__).resolve().parents[1])  # PyTorch's own code is no line of a user's


def source_of(node: fx.Node) -> dict[str, Any] | None:
    """The innermost line outside PyTorch that a node comes from; None where it is not known."""
    return source_of_trace(node.meta.get("stack_trace") or "")


def source_of_trace(trace: str) -> dict[str, Any] | None:
    """The same of a stack as text."""
    frames = _FRAME.findall(trace)
    return _innermost(_line(file, int(line), name, code) for file, line, name, code in frames)


def traces_by_operator(gm: fx.GraphModule) -> dict[str, tuple[str, ...]]:
    """The stacks that the calls of each operator come from, as PyTorch wrote them down.

    Texts, not lines: a graph has thousands of calls, and lines are asked for where one fails.
    """
    found: dict[str, dict[str, None]] = {}
    for node in gm.graph.nodes:
        if isinstance(node.target, OpOverload) and node.meta.get("stack_trace"):
            found.setdefault(op_name(node.target), {})[node.meta["stack_trace"]] = None
    return {op: tuple(traces) for op, traces in found.items()}


def source_of_frames(frames: Iterable[FrameSummary]) -> dict[str, Any] | None:
    """The same of a stack."""
    return _innermost(_line(f.filename, f.lineno or 0, f.name, f.line or "") for f in frames)


def module_of(node: fx.Node) -> str:
    """The path of the module that a node comes from, such as ``layers.0.linear``; "" for none."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    entries = list(stack.values())
    path = str(entries[-1][0]) if entries else ""
    plain = re.sub(r"^L\['\w+'\]\.?", "", path)
    return re.sub(r"_modules\['([^']+)'\]|\['([^']+)'\]|\[(\d+)\]", r"\1\2\3", plain)


def note_lines(error: Exception, gm: fx.GraphModule, names: Collection[str]) -> None:
    """Add to an error the lines that the nodes of these names come from."""
    sources = (source_of(node) for node in gm.graph.nodes if node.name in names)
    lines = dict.fromkeys("{file}:{line}: {code}".format(**source) for source in sources if source)
    if not lines:
        return
    shown = [*lines][:_MOST_NOTED]
    more = [f"and {len(lines) - len(shown)} more"] if len(lines) > len(shown) else []
    error.add_note("\n  ".join(["it was compiling these lines:", *shown, *more]))


def _line(file: str, line: int, function: str, code: str) -> dict[str, Any]:
    return {"file": file, "line": line, "function": function, "code": code.strip()}


def _innermost(lines: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    found = list(lines)
    own = [line for line in found if not line["file"].startswith(_LIBRARY)]
    return (own or found)[-1] if found else None
