"""From a segment back to an FX graph, for a backend that is a function on FX graphs."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import torch
from torch import fx

from dovetail.capture.ops import resolve_op
from dovetail.errors import UnsupportedGraph
from dovetail.ir import Arg, Attr, Dim, Real, Ref, ScalarDesc, Segment, Size, Table, TensorDesc
from dovetail.ir.size import real_of


def graph_module(segment: Segment) -> fx.GraphModule:
    """An FX graph that computes what the segment computes."""
    return _Writer(segment).module()


def example_inputs(segment: Segment) -> list[Any]:
    """Zeros of the right shape, dtype and strides for each input; symbols count as 2."""
    return [_example(i.desc) for i in segment.inputs]


def to_torch(attr: Attr) -> Any:
    """The PyTorch constant an attribute names."""
    if attr.kind == "device":
        return _device(attr.value)
    if attr.kind == "op":
        return resolve_op(attr.value)
    try:
        return _constants()[attr.kind, attr.value]
    except KeyError:
        raise UnsupportedGraph(f"this PyTorch has no {attr.kind} {attr.value!r}") from None


@functools.cache
def _constants() -> dict[tuple[str, str], Any]:
    """PyTorch's constants by kind and name: a name from a file is only looked up here."""
    kinds = (torch.dtype, torch.layout, torch.memory_format)
    return {
        (type(value).__name__, name): value
        for name, value in vars(torch).items()
        if isinstance(value, kinds)
    }


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError:
        raise UnsupportedGraph(f"this PyTorch has no device {name!r}") from None


_ROUNDINGS = {"floor": math.floor, "ceil": math.ceil, "trunc": torch.sym_int, "round": round}
_REALS: dict[str, Any] = {
    "real_add": operator.add,
    "real_sub": operator.sub,
    "real_mul": operator.mul,
    "real_div": operator.truediv,
    "real_pow": operator.pow,
    "real_max": torch.sym_max,
    "real_min": torch.sym_min,
    "real_sqrt": torch.sym_sqrt,
}


class _Writer:
    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.values: dict[str, fx.Node] = {}

    def module(self) -> fx.GraphModule:
        for given in self.segment.inputs:
            self.values[given.name] = self.graph.placeholder(given.name)
        for call in self.segment.calls:
            args = tuple(map(self.arg, call.args))
            kwargs = {k: self.arg(v) for k, v in call.kwargs.items()}
            node = self.graph.call_function(resolve_op(call.op), args, kwargs)
            self.values[call.name] = node
            for symbol, path in call.binds:
                self.values[symbol] = self.bind(node, path)
        outputs = tuple(map(self.arg, self.segment.outputs))
        self.graph.output(outputs[0] if self.segment.bare else outputs)
        return fx.GraphModule(self.root, self.graph, class_name=self.segment.name)

    def bind(self, node: fx.Node, path: tuple[tuple[str, int], ...]) -> fx.Node:
        for kind, value in path:
            if kind in ("size", "stride"):
                node = self.graph.call_method(kind, (node, value))
            elif kind == "storage_offset":
                node = self.graph.call_method(kind, (node,))
            elif kind == "item":
                node = self.graph.call_function(operator.getitem, (node, value))
            else:
                fn = operator.floordiv if kind == "div" else int
                node = self.graph.call_function(fn, (node, value) if kind == "div" else (node,))
        return node

    def arg(self, value: Arg) -> Any:
        if isinstance(value, Ref):
            node = self.values[value.name]
            for index in value.path:
                node = self.graph.call_function(operator.getitem, (node, index))
            return node
        if isinstance(value, tuple):
            return list(map(self.arg, value))
        if isinstance(value, Table):
            return {key: self.arg(item) for key, item in value.items}
        if isinstance(value, Attr):
            return to_torch(value)
        if isinstance(value, Size):
            return self.size(value)
        if isinstance(value, Real):
            return self.real(value.bits)
        if isinstance(value, Segment):
            if value.captures:
                raise UnsupportedGraph(f"the subgraph {value.name} holds tensors of its own")
            setattr(self.root, value.name, graph_module(value))
            return self.graph.get_attr(value.name)
        return value

    def size(self, value: Size) -> fx.Node:
        if value.is_symbol:
            return self.values[value.args[0]]
        if value.op in _ROUNDINGS:
            return self.graph.call_function(_ROUNDINGS[value.op], (self.real(value.args[0]),))
        fn = {"max": torch.sym_max, "min": torch.sym_min}.get(value.op) or getattr(
            operator, value.op
        )
        return self.graph.call_function(fn, tuple(map(self.arg, value.args)))

    def real(self, bits: Dim) -> fx.Node | float:
        """A number of floating point, by the expression of its bits."""
        if isinstance(bits, int):
            return real_of(bits)
        if bits.is_symbol:
            return self.values[bits.args[0]]
        if bits.op == "real":
            return self.graph.call_function(torch.sym_float, (self.arg(bits.args[0]),))
        args = tuple(map(self.real, bits.args))
        return self.graph.call_function(_REALS[bits.op], args)


def _example(desc: Any) -> Any:
    if isinstance(desc, TensorDesc):
        shape = [d if isinstance(d, int) else 2 for d in desc.shape]
        dtype, device = getattr(torch, desc.dtype), torch.device(desc.device)
        if all(isinstance(d, int) for d in (*desc.shape, *desc.strides)):
            return torch.empty_strided(shape, desc.strides, dtype=dtype, device=device).zero_()
        return torch.zeros(shape, dtype=dtype, device=device)
    if isinstance(desc, ScalarDesc):
        return {"int": 2, "float": 1.0, "bool": True}[desc.kind]
    return None
