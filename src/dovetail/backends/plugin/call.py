"""Operator calls in the words of ``dovetail_plugin.h``: tensors, and attributes by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from dovetail.capture._torch.operators import schema_of
from dovetail.capture.ops import OpOverload, is_random, is_write, resolve_op
from dovetail.errors import UnsupportedGraph
from dovetail.ir import Arg, Attr, OpCall, Ref, Size, TensorDesc
from dovetail.ir.dtypes import DTYPES
from dovetail.ir.quantization import Quantization
from dovetail.ir.tensor import Desc

DYNAMIC = -(2**63)  # DVP_DYNAMIC
# DLPack's type code and bits of the types that plug-ins are given.
PLUGIN_DTYPES: Mapping[str, tuple[int, int]] = {
    name: (row.dlpack, row.bits)
    for name, row in DTYPES.items()
    if row.compute
    or row.kind == "complex"
    or name in ("float8_e4m3fn", "float8_e5m2", "int4", "uint4")
}
# Operators whose result is its argument's memory, seen differently.
_VIEWS = frozenset(
    f"aten.{op}"
    for op in [
        "_unsafe_view.default",
        "alias.default",
        "detach.default",
        "expand.default",
        "permute.default",
        "select.int",
        "slice.Tensor",
        "squeeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "t.default",
        "transpose.int",
        "unsqueeze.default",
        "view.default",
    ]
)
_RESHAPE = "aten.reshape.default"
# A tensor as _native reads it: (code, bits, shape, strides, slot, byte offset).
Tensor = tuple[int, int, tuple[int, ...], tuple[int, ...], int, int]
# How a value and a number of a call are given; the two differ between asking and running.
GiveTensor = Callable[[Ref], Any]
GiveNumber = Callable[[Size], Any]
# The last are how many inputs are scales and zero points, and what each quantised operand stands
# for, as _native reads it.
Description = tuple[
    str,
    tuple[Any, ...],
    tuple[Any, ...],
    tuple[tuple[str, Any, int], ...],
    int,
    tuple[tuple[Any, ...], ...],
]
# DVP_TYPE_...: what an attribute is in PyTorch's schema, beside how it is written.
_ATTRIBUTE_TYPES = {
    "bool": 1,
    "ScalarType": 2,
    "Device": 3,
    "Layout": 4,
    "MemoryFormat": 5,
}


def is_view(call: OpCall) -> bool:
    """Whether a call only looks at its argument's memory differently, in a way we can follow."""
    if call.op not in (*_VIEWS, _RESHAPE) or call.binds or not isinstance(call.args[0], Ref):
        return False
    given, made = call.args[0].desc, call.output
    if not isinstance(given, TensorDesc) or not isinstance(made, TensorDesc):
        return False
    # Between dense tensors a reshape moves nothing; otherwise it may.
    moves = call.op == _RESHAPE and not (given.is_contiguous and made.is_contiguous)
    return _is_plain(given) and _is_plain(made) and not moves


def _is_plain(desc: TensorDesc) -> bool:
    known = len(desc.strides) == desc.rank and "?" not in desc.symbols()
    return known and desc.device == "cpu" and desc.dtype in PLUGIN_DTYPES


def view_offset(
    call: OpCall, shape: Sequence[int], strides: Sequence[int], number: Callable[[Any], int]
) -> int:
    """How many elements into its argument a view starts, given the argument's layout."""
    if call.op not in ("aten.select.int", "aten.slice.Tensor"):
        return 0
    dim = int(_argument(call, 1, "dim", 0))
    is_slice = call.op == "aten.slice.Tensor"
    start = number(_argument(call, 2, "start" if is_slice else "index", 0) or 0)
    start += shape[dim] if start < 0 else 0
    return strides[dim] * (min(max(start, 0), shape[dim]) if is_slice else start)


def _argument(call: OpCall, position: int, name: str, default: Any) -> Any:
    if position < len(call.args):
        return call.args[position]
    return call.kwargs.get(name, default)


def describe(
    call: OpCall,
    tensor: GiveTensor | None = None,
    number: GiveNumber | None = None,
    outputs: tuple[Any, ...] | None = None,
) -> Description:
    """What ``query_op`` and ``execute`` are told; UnsupportedGraph for what has no words there."""
    if call.binds:
        raise UnsupportedGraph("a size depends on its result")
    give = _Describer(tensor or _undetermined, number or (lambda _: DYNAMIC))
    for name, kind, value in _arguments(call):
        give.argument(name, kind, value)
    made = [desc for _, desc in results(call.output)] if call.output is not None else []
    if outputs is None:  # nothing is known while operators are being taken apart
        outputs = tuple(map(_output, made))
    hidden, quantization = give.quantization(call.op, made)
    return call.op, tuple(give.inputs), outputs, tuple(give.attributes), hidden, quantization


class _Describer:
    def __init__(self, tensor: GiveTensor, number: GiveNumber) -> None:
        self.tensor, self.number = tensor, number
        self.inputs: list[Tensor | None] = []
        self.attributes: list[tuple[str, Any, int]] = []
        self.descs: list[Desc] = []  # of the inputs

    def argument(self, name: str, kind: str, value: Arg) -> None:
        if isinstance(value, Ref):
            self._input(value)
        elif value is None and kind == "Optional[Tensor]":
            self._input(None)
        elif kind in ("List[Tensor]", "List[Optional[Tensor]]"):
            for item in value:
                self._input(item)
            self.attributes.append((name, len(value), 0))
        else:
            declared = kind.removeprefix("Optional[").removesuffix("]")
            number = _ATTRIBUTE_TYPES.get(declared, 0)
            self.attributes.append((name, self._attribute(name, value), number))

    def _input(self, ref: Ref | None) -> None:
        if ref is not None and not isinstance(ref.desc, TensorDesc):
            raise UnsupportedGraph("a number that is computed at run time is an argument")
        self.inputs.append(None if ref is None else self.tensor(ref))
        self.descs.append(None if ref is None else ref.desc)

    def quantization(
        self, op: str, made: Sequence[Desc]
    ) -> tuple[int, tuple[tuple[Any, ...], ...]]:
        """How many scales are added to the inputs, and what each quantised operand stands for.

        Conversions between real and quantised numbers have all of it as arguments.
        """
        found, first = [], len(self.inputs)
        if not op.startswith("quantized_decomposed."):
            for operand, desc in enumerate((*self.descs, *made)):
                if isinstance(desc, TensorDesc) and desc.quantization is not None:
                    found.append(self._quantized(operand, desc, desc.quantization))
        return len(self.inputs) - first, tuple(found)

    def _quantized(self, operand: int, desc: TensorDesc, given: Quantization) -> tuple[Any, ...]:
        scale, scales = self._blocks(given.scale, desc, given)
        zero, zeros = self._blocks(given.zero_point, desc, given)
        limits = given.least, given.greatest
        real = PLUGIN_DTYPES[given.real]
        return (operand, given.block, float(scale), int(zero), scales, zeros, *limits, *real)

    def _blocks(
        self, value: float | Ref, desc: TensorDesc, given: Quantization
    ) -> tuple[float, int]:
        """One number for all elements, or the place of the tensor that has one for each block."""
        if not isinstance(value, Ref):
            return value, -1
        tensor = self.tensor(value)
        if isinstance(tensor, tuple):  # else it is its name or number among the segment's values
            sizes = tuple(d if isinstance(d, int) else DYNAMIC for d in desc.shape)
            tensor = (*tensor[:2], *given.spread(sizes, tensor[3]), *tensor[4:])
        self.inputs.append(tensor)
        return 0, len(self.inputs) - 1

    def _attribute(self, name: str, value: Arg) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Attr):
            return value.value
        if isinstance(value, Size):
            return self.number(value)
        if isinstance(value, tuple | list):
            items = tuple(self._attribute(name, v) for v in value)
            if all(isinstance(i, int | float | Size) for i in items):
                return items
        raise UnsupportedGraph(f"the argument {name} is a {type(value).__name__}")


def _arguments(call: OpCall) -> Iterator[tuple[str, str, Arg]]:
    """Every argument of the operator's schema: name, type, and its value in this call."""
    for position, (name, kind, default) in enumerate(_schema(call.op)):
        if position < len(call.args):
            yield name, kind, call.args[position]
        else:
            yield name, kind, call.kwargs.get(name, default)


@cache
def _schema(op: str) -> tuple[tuple[str, str, Any], ...]:
    target = resolve_op(op)
    if not isinstance(target, OpOverload):
        raise UnsupportedGraph("it is no operator of PyTorch's dispatcher")
    if is_write(target):
        raise UnsupportedGraph("it writes to its arguments")
    if is_random(target):
        raise UnsupportedGraph("it draws random numbers, which must be PyTorch's")
    # `real_type` tells a dtype, a device and a layout from the int that `type` has for each.
    return tuple((a.name, str(a.real_type), _default(a)) for a in schema_of(target).arguments)


def _default(argument: Any) -> Any:
    value = argument.default_value if argument.has_default_value() else None
    if value is None or isinstance(value, bool | int | float | str | tuple | list):
        return value
    return str(value).removeprefix("torch.")


def results(desc: Desc, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Desc]]:
    """Each value of a call's result, with its path."""
    if isinstance(desc, tuple):
        for index, item in enumerate(desc):
            yield from results(item, (*path, index))
    else:
        yield path, desc


def _output(desc: Desc) -> Tensor | None:
    if desc is None:
        return None
    if not isinstance(desc, TensorDesc):
        raise UnsupportedGraph("a result is a number, not a tensor")
    return _described(desc)


def _undetermined(ref: Ref) -> Tensor:
    assert isinstance(ref.desc, TensorDesc)
    return _described(ref.desc)


def _described(desc: TensorDesc) -> Tensor:
    if desc.device != "cpu":
        raise UnsupportedGraph(f"a tensor is on {desc.device}, and only host memory is sent")
    narrow = desc.dtype in ("int4", "uint4") and desc.quantization is None  # PyTorch's own
    if narrow or not _is_plain(desc):
        raise UnsupportedGraph(f"a tensor is {desc}, which has no description in the interface")
    shape = tuple(d if isinstance(d, int) else DYNAMIC for d in desc.shape)
    strides = tuple(d if isinstance(d, int) else DYNAMIC for d in desc.strides)
    return (*PLUGIN_DTYPES[desc.dtype], shape, strides, -1, 0)
