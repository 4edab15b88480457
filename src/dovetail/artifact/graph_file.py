"""A model on a GPU as bytes: its compiled graph, its constants, and what its caller sees of it.

The C runtime's programs work on memory of the host and of plug-ins; a GPU's is PyTorch's. A file
of such a model has one blob, these bytes, which a process with PyTorch reads and links as it links
what it has compiled itself: segments on the GPU and on the host, in one graph or on several GPUs.

Four bytes that tell them apart, the length of a JSON head, the head, the graph, the tensors.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dovetail.artifact.guards import InputGuards
from dovetail.artifact.interface import ModelInterface, Role
from dovetail.artifact.spec_tree import spec_of, tree_of
from dovetail.compiled import CompiledGraph, decode, encode
from dovetail.compiled.graph import CompiledPart
from dovetail.compiled.tensors import tensor_from_bytes, tensor_to_bytes
from dovetail.errors import CannotSave, InvalidArtifact, InvalidCompiledGraph, UnsupportedArtifact
from dovetail.ir.encode import desc_from_json, desc_to_json
from dovetail.ir.tensor import TensorDesc

_MAGIC = b"DVTG"
VERSION = 1
_HEAD = struct.Struct("<4sIQ")  # magic, version, bytes of the head
_KINDS = ("user", "constant", "state")
_UNREADABLE = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError),
    *(struct.error, RecursionError, InvalidCompiledGraph),
)


def is_on_gpu(part: CompiledPart) -> bool:
    """Whether a graph takes, gives or computes tensors of a GPU."""
    descs = [given.desc for given in part.inputs]
    descs += [desc for each in part.segments for c in each.segment.calls for desc in c.outputs]
    return any(isinstance(d, TensorDesc) and d.device.startswith("cuda") for d in descs)


def graph_to_bytes(model: ModelInterface, graph: CompiledGraph) -> bytes:
    """A model and its graph, which takes as many inputs as the model has roles."""
    try:
        code = encode(graph)
        tensors = {key: tensor_to_bytes(key, value) for key, value in model.tensors.items()}
    except InvalidCompiledGraph as error:
        raise CannotSave(f"{error}; without it the model can be exported") from None
    head = {
        "name": model.name,
        "graph": len(code),
        "roles": [[role.kind, role.key] for role in model.roles],
        "tensors": [[key, desc, len(data)] for key, (desc, data) in tensors.items()],
        "writes": [list(each) for each in model.writes],
        "guards": _guards_to_json(model.guards),
        "arguments": tree_of(model.in_spec, _leaves()),
        "results": tree_of(model.out_spec, _leaves()),
        "returned": [list(each) for each in model.returned.items()],
    }
    text = json.dumps(head, separators=(",", ":")).encode()
    start = _HEAD.pack(_MAGIC, VERSION, len(text))
    return b"".join([start, text, code, *(data for _, data in tensors.values())])


def graph_from_bytes(data: bytes) -> tuple[ModelInterface, CompiledGraph]:
    """What ``graph_to_bytes`` wrote, its constants on their devices; InvalidArtifact for others.

    UnsupportedArtifact where a device that holds one of them is not there.
    """
    try:
        head, graph, contents = _parts(memoryview(data))
        model = _interface(head, {})
        _check(model, graph)
        tensors = dict(_tensors(head["tensors"], contents))
        if tensors.keys() != {role.key for role in model.roles if role.kind != "user"}:
            raise ValueError("tensors that no input is")
    except _UNREADABLE as error:
        raise InvalidArtifact(f"the compiled graph cannot be read: {error!r:.300}") from None
    return replace(model, tensors=tensors), graph


def _parts(data: memoryview) -> tuple[dict[str, Any], CompiledGraph, memoryview]:
    magic, version, size = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != VERSION:
        raise ValueError("another form or version")
    start = _HEAD.size + size
    head = json.loads(bytes(data[_HEAD.size : start]))
    end = start + _count(head["graph"])
    return head, decode(bytes(data[start:end])), data[end:]


def _interface(head: Mapping[str, Any], tensors: Mapping[str, Any]) -> ModelInterface:
    leaves = len(head["guards"]["inputs"])
    return ModelInterface(
        name=str(head["name"]),
        roles=tuple(Role(_one_of(_KINDS, kind), str(key)) for kind, key in head["roles"]),
        tensors=tensors,
        writes=tuple((_one_of(_KINDS, kind), str(key)) for kind, key in head["writes"]),
        guards=_guards_from_json(head["guards"]),
        in_spec=spec_of(head["arguments"], leaves),
        out_spec=spec_of(head["results"]),
        returned={_count(out): _count(given) for out, given in head["returned"]},
    )


def _check(model: ModelInterface, graph: CompiledGraph) -> None:
    """ValueError where the parts of a file do not fit each other."""
    users = [role for role in model.roles if role.kind == "user"]
    state = {role.key for role in model.roles if role.kind == "state"}
    leaves, outputs = len(model.guards.inputs), graph.every.outputs
    if graph.once is not None or len(model.roles) != len(graph.every.inputs):
        raise ValueError("a graph of other inputs")
    if len(users) != leaves or len(model.writes) + model.out_spec.num_leaves != len(outputs):
        raise ValueError("arguments or results that the graph has not")
    for kind, key in model.writes:
        if key not in state if kind == "state" else not 0 <= int(key) < leaves:
            raise ValueError(f"a write to {key!r}")
    for out, given in model.returned.items():
        if out >= model.out_spec.num_leaves or given >= leaves:
            raise ValueError("a result that is no argument")


def _tensors(rows: Sequence[Any], contents: memoryview) -> Iterator[tuple[str, Any]]:
    offset = 0
    for key, desc, size in rows:
        end = offset + _count(size)
        if end > len(contents):
            raise ValueError("contents that end early")
        yield str(key), _tensor(str(key), desc, contents[offset:end])
        offset = end
    if offset != len(contents):
        raise ValueError("contents of no tensor")


def _tensor(key: str, desc: dict[str, Any], contents: memoryview) -> Any:
    try:
        return tensor_from_bytes(desc, contents)
    except (RuntimeError, AssertionError) as error:
        raise UnsupportedArtifact(
            f"the model keeps {key} on {desc['device']}, which this process has not: {error}"
        ) from None


def _leaves() -> Iterator[dict[str, Any]]:
    """Every leaf by its number: what it may be, guards say."""
    return ({"tensor": number} for number in itertools.count())


# ---- guards ------------------------------------------------------------------------------------


def _guards_to_json(guards: InputGuards) -> dict[str, Any]:
    inputs = [
        [name, desc_to_json(desc), _plain_to_json(guards.plain_value(n))]
        for n, (name, desc, _) in enumerate(guards.inputs)
    ]
    return {"inputs": inputs, "ranges": [[s, *ends] for s, ends in guards.ranges.items()]}


def _guards_from_json(data: Mapping[str, Any]) -> InputGuards:
    rows = [(str(n), desc_from_json(d), _plain_from_json(v)) for n, d, v in data["inputs"]]
    ranges = {
        str(symbol): (int(low), None if high is None else int(high))
        for symbol, low, high in data["ranges"]
    }
    return InputGuards.of_values(rows, ranges)


def _plain_to_json(value: tuple[Any, ...]) -> list[Any]:
    """A plain value that an argument must be, in a list; floating-point numbers in hexadecimal."""
    return [{"float": v.hex()} if isinstance(v, float) else v for v in value]


def _plain_from_json(data: Sequence[Any]) -> tuple[Any, ...]:
    if not isinstance(data, list) or len(data) > 1:
        raise TypeError("no plain value")
    found = tuple(float.fromhex(v["float"]) if isinstance(v, dict) else v for v in data)
    if not all(v is None or isinstance(v, bool | int | float | str) for v in found):
        raise TypeError("no plain value")
    return found


def _one_of(known: Sequence[str], value: Any) -> str:
    if value not in known:
        raise ValueError(f"{value!r}")
    return str(value)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value
