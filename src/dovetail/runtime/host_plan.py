"""A host call as libtorch's C functions take it, so that it runs without Python.

The dispatcher's C interface takes each argument as one 64-bit word, by the type that the
operator's schema gives it. What it has no word for (a ``Scalar``, a result that is no tensor) is
left to Python, but for the few operators that have C functions of their own. So are strings:
PyTorch loses a few bytes of memory each time it takes one (2.10 to 2.13 at least).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dovetail.capture._torch.operators import operator_types, schema_of
from dovetail.capture.to_fx import to_torch
from dovetail.ir.argument_json import arg_from_json
from dovetail.ir.call import Attr
from dovetail.ir.size import INT64_MAX, INT64_MIN

# operator, overload, its own function or "", arguments, results, whether they come as one list
Description = tuple[str, str, str, tuple["Word", ...], int, bool]
# "none", "tensor", "number", "word", "some" or "list", and what belongs to it
Word = tuple[str, Any]

# Operators with a C function of their own; numbers among their arguments are passed as doubles.
DIRECT = {
    "aten.mm.default": "mm",
    "aten.bmm.default": "bmm",
    "aten.addmm.default": "addmm",
    "aten.baddbmm.default": "baddbmm",
    "aten.add.Tensor": "add",
    "aten.sub.Tensor": "sub",
    "aten.convolution.default": "convolution",
}
_CONSTANTS = {
    "ScalarTypeType": "dtype",
    "LayoutType": "layout",
    "MemoryFormatType": "memory_format",
}
_NONE: Word = ("none", None)


def _fits(value: int) -> bool:
    """Whether C passes an integer on as it is."""
    return INT64_MIN <= value <= INT64_MAX


class _NoWord(Exception):
    """An argument or result that the C interface cannot take."""


def describe(
    op: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Description | None:
    """One call, its arguments as the file has them; None where it must go through Python."""
    if not isinstance(target, operator_types()[0]):
        return None
    schema = schema_of(target)
    try:
        words = tuple(
            _word(formal.real_type, _given(formal, place, args, kwargs), formal.N, op in DIRECT)
            for place, formal in enumerate(schema.arguments)
        )
        results, as_list = _results(schema.returns)
    except _NoWord:
        return None
    return schema.name, schema.overload_name, DIRECT.get(op, ""), words, results, as_list


def _given(formal: Any, place: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if not formal.kwarg_only and place < len(args):
        return args[place]
    if formal.name in kwargs:
        return kwargs[formal.name]
    if not formal.has_default_value():
        raise _NoWord  # Python says what is missing
    return formal.default_value


def _results(returns: Sequence[Any]) -> tuple[int, bool]:
    kinds = [r.real_type.kind() for r in returns]
    if kinds == ["ListType"] and returns[0].real_type.getElementType().kind() == "TensorType":
        return 1, True
    if not kinds or set(kinds) != {"TensorType"}:
        raise _NoWord
    return len(kinds), False


def _word(kind: Any, data: Any, length: int | None, direct: bool) -> Word:
    match kind.kind():
        case "OptionalType":
            if data is None:
                return _NONE
            return "some", (_word(kind.getElementType(), data, length, direct),)
        case "ListType":
            items = data if isinstance(data, list | tuple) else [data] * (length or 0)
            if not items and data not in ([], ()):
                raise _NoWord
            return "list", tuple(_word(kind.getElementType(), i, None, direct) for i in items)
        case "TensorType":
            return "tensor", _place(data, "tensor")
        case "NumberType" if direct:
            return "word", _double(_plain(data))
    return _plain_word(kind.kind(), data)


def _plain_word(kind: str, data: Any) -> Word:
    if kind in ("IntType", "SymIntType") and isinstance(data, dict) and set(data) == {"number"}:
        return "number", _place(data, "number")
    if kind == "FloatType" and isinstance(data, dict) and set(data) == {"double"}:
        return "number", _place(data, "double")  # its bits
    value = _plain(data)
    if kind == "BoolType" and isinstance(value, bool):
        return "word", int(value)
    if kind in ("IntType", "SymIntType") and isinstance(value, int) and _fits(value):
        return "word", int(value)
    if kind == "FloatType":
        return "word", _double(value)
    if kind in _CONSTANTS:
        return "word", _constant(_CONSTANTS[kind], value)
    if kind == "DeviceObjType" and isinstance(value, Attr | torch.device):
        return "word", _device(to_torch(value) if isinstance(value, Attr) else value)
    raise _NoWord


def _place(data: Any, tag: str) -> int:
    if not isinstance(data, dict) or set(data) != {tag}:
        raise _NoWord
    place = int(data[tag])
    if place < 0:
        raise _NoWord
    return place


def _plain(data: Any) -> Any:
    """A value with nothing of the call in it; a schema's default is one already."""
    if isinstance(data, dict) and set(data) & {"tensor", "number", "double"}:
        raise _NoWord
    return arg_from_json(data)


def _double(value: Any) -> int:
    """The bits of a number as a double, if a double holds it exactly."""
    if not isinstance(value, int | float):
        raise _NoWord
    try:
        real = float(value)
    except OverflowError:
        raise _NoWord from None
    if isinstance(value, int) and int(real) != value:
        raise _NoWord
    return int.from_bytes(struct.pack("<d", real), "little")


def _constant(kind: str, value: Any) -> str:
    """The name by which libtorch's C functions know a dtype, layout or memory format."""
    if not isinstance(value, Attr) or value.kind != kind:
        raise _NoWord
    name = str(to_torch(value)).removeprefix("torch.")
    return f"{kind}_{name}"


def _device(device: torch.device) -> int:
    if device.type != "cpu":
        raise _NoWord
    return (-1 if device.index is None else device.index) & 0xFFFFFFFF
