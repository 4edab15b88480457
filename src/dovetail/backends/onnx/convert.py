"""A segment as an ONNX model, and which calls can be part of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from dovetail.backends.onnx import linear, ops, reduce, shapes
from dovetail.backends.onnx.writer import (
    METADATA,
    TYPES,
    ModelWriter,
    NotInOnnx,
    Results,
    Rule,
    Rules,
    tensor,
)
from dovetail.errors import UnsupportedGraph
from dovetail.ir import OpCall, Ref, Segment, Size
from dovetail.ir.encode import segment_to_bytes
from dovetail.ir.tensor import TensorDesc

OPSET, IR_VERSION = 20, 9


@cache
def all_rules() -> Mapping[str, Rule]:
    """What each operator becomes, by its name without the namespace."""
    rules = Rules()
    for family in (ops, shapes, reduce, linear):
        for name, rule in family.RULES.items():
            rules.add(name)(rule)
    return rules


def refusal(call: OpCall) -> str:
    """Why a call cannot be part of a model; empty when it can."""
    found = all_rules().get(call.op.removeprefix("aten."))
    if found is None or not call.op.startswith("aten."):
        return "no ONNX for it"
    if call.binds:
        return "it defines a size that depends on data"
    for desc in (*call.inputs, *call.outputs):
        if desc.dtype not in TYPES:
            return f"no {desc.dtype}"
        if desc.device != "cpu":
            return f"a tensor on {desc.device}"
    if any(0 in desc.shape for desc in (*call.inputs, *call.outputs[:1])):
        return "a tensor without elements, which the engine takes for one element in places"
    try:
        found(_on_trial(call), call)
    except NotInOnnx as reason:
        return str(reason)
    return ""


def _on_trial(call: OpCall) -> ModelWriter:
    """A writer that knows what one call needs, for the sake of asking its rule."""
    writer = ModelWriter()
    for ref in call.refs():
        writer.names[ref.name, ref.path] = ref.name or "operand"
    described = [desc.symbols() for desc in (*call.inputs, *call.outputs)]
    for symbols in (call.symbols(), *described):
        writer.symbols |= {symbol: symbol for symbol in symbols}
    return writer


def to_model(segment: Segment) -> bytes:
    """A segment as the bytes of an ONNX model that carries the segment with it."""
    writer = ModelWriter()
    inputs = [_input(writer, given.name, given.desc, given.kind) for given in segment.inputs]
    rules = all_rules()
    for call in segment.calls:
        results = rules[call.op.removeprefix("aten.")](writer, call)
        for path, name in _paths(results):
            if name is not None:
                writer.names[call.name, path] = name
    outputs = [
        _output(writer, n, out) for n, out in enumerate(segment.outputs) if isinstance(out, Ref)
    ]
    graph = writer.helper.make_graph(
        _needed(writer.nodes, {out.name for out in outputs}),
        segment.name,
        inputs,
        outputs,
        initializer=list(writer.initializers.values()),
    )
    opset = writer.helper.make_opsetid("", OPSET)
    model = writer.helper.make_model(
        graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="dovetail"
    )
    writer.helper.set_model_props(model, {METADATA: segment_to_bytes(segment).decode()})
    return bytes(model.SerializeToString())


def _needed(nodes: Sequence[Any], wanted: set[str]) -> list[Any]:
    """The nodes that outputs depend on: a rule may have made results that nobody uses."""
    kept = []
    for node in reversed(nodes):
        if wanted & set(node.output):
            kept.append(node)
            wanted |= set(node.input)
    return kept[::-1]


def _paths(results: Results) -> list[tuple[tuple[int, ...], str | None]]:
    if isinstance(results, str):
        return [((), results)]
    return [((n,), name) for n, name in enumerate(results)]


def _input(writer: ModelWriter, name: str, desc: Any, kind: str) -> Any:
    """An input; what sizes it tells is noted."""
    made = f"in.{name}"
    writer.outside.add(made)
    if kind == "size":
        writer.symbols[name] = made
        return writer.helper.make_tensor_value_info(made, TYPES["int64"], [1])
    if not isinstance(desc, TensorDesc):
        raise UnsupportedGraph(f"the input {name} is no tensor")
    writer.names[name, ()] = made
    for axis, dim in enumerate(desc.shape):
        if isinstance(dim, Size) and dim.is_symbol and dim.args[0] not in writer.symbols:
            shape = writer.node("Shape", made, start=axis, end=axis + 1)
            writer.symbols[dim.args[0]] = shape
    dims = [d if isinstance(d, int) else str(d) for d in desc.shape]
    return writer.helper.make_tensor_value_info(made, TYPES[desc.dtype], dims)


def _output(writer: ModelWriter, number: int, out: Ref) -> Any:
    """An output; under a name of its own where its value is an input or another output too."""
    desc = tensor(out)
    name = writer.value(out)
    if name in writer.outside or name in writer.given:
        writer.nodes.append(writer.helper.make_node("Identity", [name], [f"out.{number}"]))
        name = f"out.{number}"
    writer.given.add(name)
    dims = [d if isinstance(d, int) else str(d) for d in desc.shape]
    return writer.helper.make_tensor_value_info(name, TYPES[desc.dtype], dims)
