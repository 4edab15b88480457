"""Segments with their names taken out: two that differ in names alone have the same form.

One-to-one renaming is all that happens, so equal forms mean that one's names can be replaced by the
other's. The reverse is not promised: where names decide an order (of the terms of a size), two such
segments may have different forms.
"""

from __future__ import annotations

import json
import re
from typing import Any

from dovetail.ir.encode import segment_to_bytes
from dovetail.ir.segment import Segment
from dovetail.ir.size import UNKNOWN

_NAME = re.compile(r"[^\W\d]\w*")
# What has a meaning of its own in a size.
_KEPT = frozenset({"max", "min", str(UNKNOWN)})


def canonical_bytes(segment: Segment) -> bytes:
    """The bytes of a segment whose values and symbols are numbered in order of appearance."""
    data = json.loads(segment_to_bytes(segment))
    return json.dumps(_Renaming().segment(data["segment"]), separators=(",", ":")).encode()


class _Renaming:
    """One numbering for a segment and its subgraphs, so that scopes stay what they are."""

    def __init__(self) -> None:
        self.numbers: dict[str, str] = {}

    def name(self, name: str) -> str:
        return name if name in _KEPT else self.numbers.setdefault(name, f"n{len(self.numbers)}")

    def segment(self, data: dict[str, Any]) -> dict[str, Any]:
        return {
            "inputs": [[self.name(n), self.desc(desc), kind] for n, desc, kind in data["inputs"]],
            "calls": [self.call(row) for row in data["calls"]],
            "outputs": [self.arg(out) for out in data["outputs"]],
            "bare": data["bare"],
            "captures": [self.arg(ref) for ref in data["captures"]],
        }

    def call(self, data: dict[str, Any]) -> dict[str, Any]:
        return {
            "name": self.name(data["name"]),
            "op": data["op"],
            "args": [self.arg(a) for a in data["args"]],
            "kwargs": {key: self.arg(a) for key, a in data["kwargs"].items()},
            "output": self.desc(data["output"]),
            "binds": [[self.name(symbol), path] for symbol, path in data["binds"]],
        }

    def arg(self, data: Any) -> Any:
        if isinstance(data, list):
            return [self.arg(a) for a in data]
        if not isinstance(data, dict):
            return data
        ((kind, value),) = data.items()
        match kind:
            case "ref":
                value = [self.name(value[0]), *value[1:]]
            case "size":
                value = self.dim(value)
            case "table":
                value = [[key, self.arg(item)] for key, item in value]
            case "segment":
                value = self.segment(value)
        return {kind: value}

    def desc(self, data: Any) -> Any:
        if isinstance(data, list):
            return [self.desc(d) for d in data]
        if data is None:
            return None
        if "scalar" in data:
            return {**data, "size": None if data["size"] is None else self.dim(data["size"])}
        shape, strides = ([self.dim(d) for d in data[key]] for key in ("shape", "strides"))
        return {**data, "shape": shape, "strides": strides}

    def dim(self, data: int | str) -> int | str:
        if isinstance(data, int):
            return data
        return _NAME.sub(lambda found: self.name(found[0]), data)
