"""Segments as bytes: JSON with every kind of value tagged. Reading it runs nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dovetail.errors import SizeError, UnsupportedGraph
from dovetail.ir import argument_json
from dovetail.ir.argument_json import arg_from_json
from dovetail.ir.call import Arg, OpCall, Ref, Table
from dovetail.ir.quantization import quantization_from_json, quantization_to_json
from dovetail.ir.real import Real
from dovetail.ir.segment import Input, Segment
from dovetail.ir.size import Dim, Size, parse_size
from dovetail.ir.tensor import Desc, ScalarDesc, TensorDesc

if TYPE_CHECKING:
    from dovetail.ir.layout import Layout

FORMAT = "dovetail-segment-1"
# What reading bytes that hold no segment can raise.
_DAMAGE = (ValueError, LookupError, TypeError, RecursionError, AttributeError, SizeError)


def segment_to_bytes(segment: Segment) -> bytes:
    """A segment as bytes; ``segment_from_bytes`` gives an equal one back."""
    data = {"format": FORMAT, "segment": SegmentWriter().segment(segment)}
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()


def segment_from_bytes(data: bytes) -> Segment:
    """The segment that ``segment_to_bytes`` wrote; UnsupportedGraph for anything else."""
    try:
        read = json.loads(data)
        if read["format"] != FORMAT:
            raise ValueError(f"format {read['format']!r}, expected {FORMAT!r}")
        return _SegmentReader().segment(read["segment"])
    except _DAMAGE as error:
        raise UnsupportedGraph(f"these bytes hold no segment: {error!r}") from None


def unbound_from_json(data: Any) -> Arg:
    """The argument that ``arg_to_json`` wrote; a reference has no descriptor."""
    return arg_from_json(data, _Unbound().tagged)


def desc_from_json(data: Any) -> Desc:
    """The descriptor that ``desc_to_json`` wrote."""
    return _SegmentReader().desc(data)


def arg_to_json(arg: Arg) -> Any:
    """An argument of a call as JSON has it."""
    return SegmentWriter().arg(arg)


def desc_to_json(desc: Desc) -> Any:
    """A descriptor as JSON has it."""
    return SegmentWriter().desc(desc)


class SegmentWriter:
    """A segment as JSON; whoever wants other names overrides ``name`` and ``dim``."""

    def name(self, name: str) -> str:
        """The name of a value or a symbol."""
        return name

    def dim(self, dim: Dim) -> int | str:
        """A size."""
        return dim if isinstance(dim, int) else str(dim)

    def segment(self, segment: Segment) -> dict[str, Any]:
        """A segment, or a subgraph."""
        return {
            "name": segment.name,
            "inputs": [[self.name(i.name), self.desc(i.desc), i.kind] for i in segment.inputs],
            "calls": [self.call(call) for call in segment.calls],
            "outputs": [self.arg(o) for o in segment.outputs],
            "bare": segment.bare,
            "captures": [self.arg(ref) for ref in segment.captures],
            **self.ranges(segment),
        }

    def ranges(self, segment: Segment) -> dict[str, Any]:
        """What is known of symbols, if anything."""
        rows = [[self.name(symbol), *ends] for symbol, *ends in segment.ranges]
        return {"ranges": rows} if rows else {}

    def call(self, call: OpCall) -> dict[str, Any]:
        """One call."""
        return {
            "name": self.name(call.name),
            "op": call.op,
            "args": [self.arg(a) for a in call.args],
            "kwargs": {k: self.arg(v) for k, v in call.kwargs.items()},
            "output": self.desc(call.output),
            "binds": [[self.name(symbol), [list(s) for s in path]] for symbol, path in call.binds],
            **({"candidate": call.candidate} if call.candidate else {}),
        }

    def arg(self, arg: Arg) -> Any:
        """An argument."""
        return argument_json.arg_to_json(arg, self._tagged)

    def _tagged(self, arg: Arg) -> Any:
        if isinstance(arg, Ref):
            return {"ref": [self.name(arg.name), *arg.path]}
        if isinstance(arg, Size):
            return {"size": self.dim(arg)}
        if isinstance(arg, Real):
            return {"real": self.dim(arg.bits)}
        if isinstance(arg, Table):
            return {"table": [[key, self.arg(value)] for key, value in arg.items]}
        if isinstance(arg, Segment):
            return {"segment": self.segment(arg)}
        raise UnsupportedGraph(f"cannot write an argument of type {type(arg).__name__}")

    def desc(self, desc: Desc) -> Any:
        """A descriptor."""
        if isinstance(desc, TensorDesc):
            return {
                "dtype": desc.dtype,
                "shape": [self.dim(d) for d in desc.shape],
                "strides": [self.dim(d) for d in desc.strides],
                "device": desc.device,
                **({} if desc.layout is None else {"layout": self.layout(desc.layout)}),
                **self.quantization(desc),
            }
        if isinstance(desc, ScalarDesc):
            return {"scalar": desc.kind, "size": None if desc.size is None else self.dim(desc.size)}
        return None if desc is None else [self.desc(d) for d in desc]

    def quantization(self, desc: TensorDesc) -> dict[str, Any]:
        """What a quantised tensor stands for; nothing of others."""
        if desc.quantization is None:
            return {}
        made = quantization_to_json(desc.quantization, lambda r: [self.name(r.name), *r.path])
        return {"quantization": made}

    def layout(self, layout: Layout) -> dict[str, Any]:
        """What a tensor is the memory of; how many steps there are is its own shape."""
        shape = [self.dim(d) for d in layout.shape]
        return {"shape": shape, "before": list(layout.before), "parts": list(layout.order)}


class _SegmentReader:
    """Gives each reference the descriptor of the value it names."""

    def segment(self, data: dict[str, Any]) -> Segment:
        outer = getattr(self, "descs", {})
        self.descs: dict[str, Desc] = {}
        inputs = tuple(self.input(*row) for row in data["inputs"])
        calls = tuple(self.call(row) for row in data["calls"])
        outputs = tuple(self.arg(o) for o in data["outputs"])
        self.descs = outer
        captures = tuple(self.arg(ref) for ref in data["captures"])
        rows = data.get("ranges", [])
        ranges = tuple((str(symbol), int(low), int(high)) for symbol, low, high in rows)
        head = str(data["name"]), inputs, calls, outputs
        return Segment(*head, bool(data["bare"]), captures, ranges)

    def input(self, name: str, desc: Any, kind: str) -> Input:
        self.descs[name] = self.desc(desc)
        return Input(name, self.descs[name], kind)

    def call(self, data: dict[str, Any]) -> OpCall:
        binds = tuple((s, tuple((str(k), int(v)) for k, v in path)) for s, path in data["binds"])
        args = tuple(self.arg(a) for a in data["args"])
        kwargs = {str(k): self.arg(v) for k, v in data["kwargs"].items()}
        output = self.desc(data["output"])
        self.descs[data["name"]] = output
        head = str(data["name"]), str(data["op"]), args, kwargs, output, binds
        return OpCall(*head, str(data.get("candidate", "")))

    def arg(self, data: Any) -> Arg:
        return arg_from_json(data, self.tagged)

    def tagged(self, tag: str, value: Any) -> Arg:
        match tag:
            case "ref":
                return self.ref(str(value[0]), tuple(map(int, value[1:])))
            case "table":
                return Table(tuple((str(key), self.arg(item)) for key, item in value))
            case "segment":
                return self.segment(value)
        raise ValueError(f"unknown argument kind {tag!r}")

    def ref(self, name: str, path: tuple[int, ...]) -> Ref:
        desc = self.descs[name]
        for index in path:
            desc = desc[index] if isinstance(desc, tuple) else None
        return Ref(name, desc, path)

    def desc(self, data: Any) -> Desc:
        if isinstance(data, list):
            return tuple(map(self.desc, data))
        if data is None:
            return None
        if "scalar" in data:
            size = data["size"]
            return ScalarDesc(data["scalar"], None if size is None else self.dim(size))
        shape, strides = (tuple(map(self.dim, data[key])) for key in ("shape", "strides"))
        made = TensorDesc(str(data["dtype"]), shape, strides, str(data["device"]))
        if "quantization" in data:
            made = replace(made, quantization=quantization_from_json(data["quantization"], _named))
        return self.with_layout(made, data["layout"]) if "layout" in data else made

    def with_layout(self, memory: TensorDesc, data: Any) -> TensorDesc:
        from dovetail.ir.layout import Layout

        shape, before = map(self.dim, data["shape"]), map(int, data["before"])
        parts = [(int(axis), int(step)) for axis, step in data["parts"]]
        return replace(memory, layout=Layout.in_memory(tuple(shape), tuple(before), parts, memory))

    def dim(self, data: int | str) -> Dim:
        return parse_size(data) if isinstance(data, str) else int(data)


def _named(data: Any) -> Ref:
    """The value of a scale; it may be defined behind the tensor that it is of."""
    return Ref(str(data[0]), None, tuple(map(int, data[1:])))


class _Unbound(_SegmentReader):
    """Reads arguments that stand outside a segment."""

    def ref(self, name: str, path: tuple[int, ...]) -> Ref:
        return Ref(name, None, path)
