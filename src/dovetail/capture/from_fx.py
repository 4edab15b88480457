"""From functional FX graphs to segments: FX ends here."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from dovetail.capture._torch.symbols import size_hint, symbol_range, unbacked_bindings
from dovetail.capture.ops import OpOverload, op_name
from dovetail.capture.reals import CONVERT, SCALAR_TENSOR, folded, number_of
from dovetail.capture.sizes import is_symbolic, to_dim
from dovetail.errors import SizeError, UnsupportedGraph
from dovetail.ir import (
    Arg,
    Attr,
    Desc,
    Dim,
    Input,
    OpCall,
    Real,
    Ref,
    ScalarDesc,
    Segment,
    Size,
    Table,
    TensorDesc,
)
from dovetail.ir.call import leaves
from dovetail.ir.real import Number
from dovetail.ir.size import INT64_MAX, INT64_MIN, UNKNOWN, symbols_of

_INT = frozenset({int})
_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})
_PLAIN = frozenset({type(None), bool, int, float, complex, str})
_ATTRS: tuple[tuple[type, str], ...] = (
    (torch.dtype, "dtype"),
    (torch.device, "device"),
    (torch.layout, "layout"),
    (torch.memory_format, "memory_format"),
)


def describe(value: Any) -> Desc:
    """The descriptor of a fake (or real) value."""
    if isinstance(value, torch.Tensor):
        return _describe_tensor(value)
    if is_symbolic(value):
        return _describe_symbol(value)
    if isinstance(value, bool | int | float):
        return ScalarDesc(type(value).__name__)
    if isinstance(value, tuple | list):
        return tuple(map(describe, value))
    return None


def _describe_tensor(value: torch.Tensor) -> TensorDesc:
    strides = _dims(value.stride()) if value.layout is torch.strided else ()
    return _desc_of(value.dtype, _dims(value.shape), strides, value.device)


@functools.lru_cache(maxsize=1 << 14)
def _desc_of(
    dtype: Any, shape: tuple[Dim, ...], strides: tuple[Dim, ...], device: Any
) -> TensorDesc:
    """One descriptor for all values that are alike, of which a graph has many."""
    return TensorDesc(str(dtype).removeprefix("torch."), shape, strides, str(device))


def _dims(sizes: Any) -> tuple[Dim, ...]:
    plain = tuple(sizes)
    return plain if _INT.issuperset(map(type, plain)) else tuple(map(_dim, plain))


def _dim(value: Any) -> Dim:
    """A dimension; one whose expression we cannot write is unknown."""
    try:
        return to_dim(value)
    except SizeError:
        return UNKNOWN


def is_unknown(desc: Desc) -> bool:
    """Whether a descriptor holds a dimension that we cannot write as an expression."""
    return isinstance(desc, TensorDesc) and UNKNOWN in (*desc.shape, *desc.strides)


def _describe_symbol(value: Any) -> ScalarDesc:
    kind = {torch.SymInt: "int", torch.SymFloat: "float", torch.SymBool: "bool"}[type(value)]
    try:
        return ScalarDesc(kind, to_dim(value) if kind == "int" else None)
    except SizeError:
        return ScalarDesc(kind)


KEPT = "dovetail_kept"  # mark of an input that is the same tensor from call to call


class GraphReader:
    """Reads the nodes of one FX graph as calls, keeping track of which symbols are bound.

    A node that computes a size becomes no call: wherever it is used stands its expression, as
    long as every symbol in it is bound by an input or by an earlier call.
    """

    def __init__(self, gm: fx.GraphModule, bound: Iterable[str] = ()) -> None:
        self.gm = gm
        self.bound = set(bound)
        self.args: dict[fx.Node, Arg] = {}
        self.held: dict[str, Number] = {}  # by tensors of one float64
        self.inputs: list[Input] = []
        self.constants: dict[str, Any] = {}
        for node in gm.graph.find_nodes(op="placeholder"):
            self._bind_placeholder(node)
        for node, arg in self.args.items():
            desc = arg.desc if isinstance(arg, Ref) else None
            if isinstance(desc, ScalarDesc) and isinstance(desc.size, Size):
                if desc.size.symbols() <= self.bound:  # a product of sizes that tensors show
                    self.args[node] = desc.size

    def _bind_placeholder(self, node: fx.Node) -> None:
        desc = describe(node.meta.get("val"))
        kind = "constant" if node.meta.get(KEPT) else "tensor"
        kind = "scalar" if isinstance(desc, ScalarDesc) else kind
        if isinstance(desc, ScalarDesc) and isinstance(desc.size, Size) and desc.size.is_symbol:
            self.bound.add(desc.size.args[0])
            self.args[node] = desc.size
        else:
            self.args[node] = Ref(node.name, desc)
        if isinstance(desc, TensorDesc):
            self.bound |= {s.args[0] for s in desc.shape if isinstance(s, Size) and s.is_symbol}
        self.inputs.append(Input(node.name, desc, kind))

    def read(self, node: fx.Node) -> OpCall | None:
        """The call a node stands for, or None when it is a size, an element or a constant."""
        if node.op == "get_attr":
            self._read_attribute(node)
            return None
        if node.op != "call_function":
            raise UnsupportedGraph(f"{node.op} {node.target} in a functional graph")
        if node.target is operator.getitem and self._read_getitem(node):
            return None
        desc = describe(node.meta.get("val"))
        if isinstance(desc, ScalarDesc) and desc.size is not None and not _is_impure(node):
            if symbols_of(desc.size) <= self.bound:
                self.args[node] = desc.size
                return None
        if isinstance(desc, ScalarDesc) and self._read_number(node):
            return None
        return self._read_call(node, desc)

    def _read_number(self, node: fx.Node) -> bool:
        """Note what a function of Python's gives, where that is known by an expression."""
        if node.kwargs or _is_impure(node):
            return False
        found = number_of(op_name(node.target), tuple(map(self.arg, node.args)))
        needed = found.symbols() if isinstance(found, Size | Real) else frozenset()
        if found is None or not needed <= self.bound:
            return False
        self.args[node] = found
        return True

    def _read_call(self, node: fx.Node, desc: Desc) -> OpCall:
        name = node.name
        call = OpCall(
            name,
            op_name(node.target),
            tuple(map(self.arg, node.args)),
            {key: self.arg(value) for key, value in node.kwargs.items()},
            desc,
            self._bind(node) if node.meta.get("unbacked_bindings") else (),
        )
        self.args[node] = Ref(name, desc)
        return self._as_number(call)

    def _as_number(self, call: OpCall) -> OpCall:
        """A call that makes a tensor of one number computed from sizes, as just that."""
        found = folded(call, self.held)
        if found is not None:
            self.held[call.name] = found
        elif call.op == CONVERT and isinstance(call.args[0], Ref):
            found = self.held.get(call.args[0].name)
        desc = call.output
        if not isinstance(found, Real) or not isinstance(desc, TensorDesc):
            return call
        if desc.dtype not in _FLOATS:
            return call
        form = {"dtype": Attr("dtype", desc.dtype), "device": Attr("device", desc.device)}
        return replace(call, op=SCALAR_TENSOR, args=(found,), kwargs=form)

    def _bind(self, node: fx.Node) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
        """The symbols that a call's result defines, which are bound from here on."""
        binds = tuple(_resolve_binding(*b, node) for b in unbacked_bindings(node).items())
        self.bound |= {symbol for symbol, _ in binds}
        return binds

    def _read_attribute(self, node: fx.Node) -> None:
        value = _attribute(self.gm, str(node.target))
        if isinstance(value, fx.GraphModule):
            segment, held = subgraph_of(value, str(node.target), self.bound)
            self.args[node] = segment
            self.constants |= held
        elif isinstance(value, torch.Tensor):
            self.constants[node.name] = value
            self.args[node] = Ref(node.name, describe(node.meta.get("val", value)))
        else:
            raise UnsupportedGraph(f"the constant {node.target} is a {type(value).__name__}")

    def _read_getitem(self, node: fx.Node) -> bool:
        source, index = node.args
        base = self.args[source]
        if not isinstance(base, Ref) or not isinstance(index, int):
            return False
        element = base.desc[index] if isinstance(base.desc, tuple) else None
        self.args[node] = Ref(base.name, element, (*base.path, index))
        return True

    def arg(self, value: Any) -> Arg:
        """An FX argument as ours."""
        if isinstance(value, fx.Node):
            return self.args[value]
        if type(value) in _PLAIN:
            return value
        if isinstance(value, tuple | list):
            return tuple(map(self.arg, value))
        if isinstance(value, dict):
            return Table(tuple((str(key), self.arg(item)) for key, item in value.items()))
        if is_symbolic(value):
            return self._symbolic(value)
        for kind, name in _ATTRS:
            if isinstance(value, kind):
                return Attr(name, str(value).removeprefix("torch."))
        if isinstance(value, OpOverload):
            return Attr("op", op_name(value))
        if isinstance(value, int | float | str):  # of a class of its own, such as an enumeration's
            return value
        raise UnsupportedGraph(f"an argument of type {type(value).__name__}")

    def _symbolic(self, value: Any) -> Arg:
        try:
            size = to_dim(value)
        except SizeError as error:
            raise UnsupportedGraph(str(error)) from None
        if not symbols_of(size) <= self.bound:
            raise UnsupportedGraph(f"nothing binds the symbols of {size}")
        return size


def segment_of(gm: fx.GraphModule, name: str) -> Segment:
    """A whole graph as one segment; nested graphs become nested segments."""
    segment, constants = subgraph_of(gm, name)
    if constants:
        raise UnsupportedGraph(f"the graph {name} holds tensors of its own")
    return segment


def subgraph_of(
    gm: fx.GraphModule, name: str, bound: Iterable[str] = ()
) -> tuple[Segment, dict[str, Any]]:
    """A nested graph as a segment, and the tensors it holds, which the one around it must hold.

    It takes them as its last inputs and captures them by name.
    """
    reader = GraphReader(gm, bound)
    calls = [call for node in body(gm) if (call := reader.read(node)) is not None]
    outputs = reader.arg(outputs_of(gm))
    descs = {held: describe(value) for held, value in reader.constants.items()}
    inputs = [*map(_as_size_input, reader.inputs)]
    inputs += [Input(held, desc, "constant") for held, desc in descs.items()]
    captures = tuple(Ref(f"{name}.{held}", desc) for held, desc in descs.items())
    bare = isinstance(gm.graph.output_node().args[0], fx.Node)
    segment = Segment(name, tuple(inputs), tuple(calls), outputs, bare, captures)
    return segment, {f"{name}.{held}": value for held, value in reader.constants.items()}


def _as_size_input(given: Input) -> Input:
    """An input that binds a symbol is named after it."""
    desc = given.desc
    if isinstance(desc, ScalarDesc) and isinstance(desc.size, Size) and desc.size.is_symbol:
        return Input(desc.size.args[0], desc, "size")
    return given


def body(gm: fx.GraphModule) -> list[fx.Node]:
    """The nodes between the inputs and the output."""
    return [n for n in gm.graph.nodes if n.op not in ("placeholder", "output")]


_SMALLEST, _LARGEST = 2, 1 << 62  # what PyTorch takes for granted of a size


def outputs_of(gm: fx.GraphModule) -> tuple[Any, ...]:
    """What a graph returns, as a flat tuple."""
    result = gm.graph.output_node().args[0]
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def size_hints(gm: fx.GraphModule) -> dict[str, int]:
    """What each symbol of the inputs was in the example call."""
    found: dict[str, int] = {}
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        for size in sizes:
            dim = _dim(size) if isinstance(size, torch.SymInt) else 0
            if isinstance(dim, Size) and dim.is_symbol and dim.args[0] not in found:
                hint = size_hint(size)
                found |= {} if hint is None else {dim.args[0]: hint}
    return found


def size_ranges(gm: fx.GraphModule) -> dict[str, tuple[int, int]]:
    """The least and the greatest value of those symbols of the inputs that have ends.

    PyTorch compiles for sizes of 2 or more, which says nothing by itself. A number that is no
    size may be below zero.
    """
    found: dict[str, tuple[int, int]] = {}
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        for size in sizes:
            dim = _dim(size) if isinstance(size, torch.SymInt) else 0
            if not isinstance(dim, Size) or not dim.is_symbol or dim.args[0] in found:
                continue
            low, high = symbol_range(size)
            lowest = 0 if isinstance(value, torch.Tensor) else INT64_MIN
            least, greatest = lowest if low is None else low, INT64_MAX if high is None else high
            if least < 0 or least > _SMALLEST or greatest < _LARGEST:
                found[dim.args[0]] = max(least, lowest), min(greatest, INT64_MAX)
    return found


def needed_symbols(calls: Iterable[OpCall], outputs: Iterable[Arg]) -> set[str]:
    """Symbols that calls, their subgraphs, and outputs need but do not bind themselves."""
    needed: set[str] = set()
    made: set[str] = set()
    for call in calls:
        needed |= call.symbols() - made
        for sub in call.subgraphs():
            needed |= needed_symbols(sub.calls, sub.outputs) - set(sub.symbols()) - made
        made |= {symbol for symbol, _ in call.binds}
    for out in leaves(tuple(outputs)):
        if isinstance(out, Size | Real):
            needed |= out.symbols() - made
    return needed


def _is_impure(node: fx.Node) -> bool:
    return bool(node.meta.get("unbacked_bindings")) or node.is_impure()


def _resolve_binding(
    symbol: str, path: tuple[tuple[str, int], ...], node: fx.Node
) -> tuple[str, tuple[tuple[str, int], ...]]:
    """Fold a method step and the index after it: ``.size`` then ``[0]`` is ("size", 0)."""
    steps: list[tuple[str, int]] = []
    for kind, value in path:
        if kind == "item" and steps and steps[-1] in (("size", -1), ("stride", -1)):
            steps[-1] = (steps[-1][0], value)
        else:
            steps.append((kind, value))
    known = {"item", "size", "stride", "storage_offset", "div", "bool"}
    if any(k not in known or (k in ("size", "stride") and v < 0) for k, v in steps):
        raise UnsupportedGraph(f"{node.name} defines {symbol} in an unknown way")
    return symbol, tuple(steps)


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module
