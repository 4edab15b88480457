"""Arguments of a Program's host calls as JSON, each kind that JSON has no form for under a tag."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.errors import InvalidProgram
from dovetail.ir.call import Arg, Attr, Ref
from dovetail.ir.size import Size, parse_size


def arg_to_json(arg: Arg, ref: Callable[[Ref], Any] | None = None) -> Any:
    """An argument as JSON; ``ref`` says how a buffer is written (by default its name)."""
    if arg is None or isinstance(arg, bool | int | str):
        return arg
    if isinstance(arg, float):
        return {"float": arg.hex()}
    if isinstance(arg, complex):
        return {"complex": [arg.real.hex(), arg.imag.hex()]}
    if isinstance(arg, tuple | list):
        return [arg_to_json(a, ref) for a in arg]
    if isinstance(arg, Ref):
        return ref(arg) if ref else {"buffer": arg.name}
    if isinstance(arg, Size):
        return {"size": str(arg)}
    if isinstance(arg, Attr):
        return {"attr": [arg.kind, arg.value]}
    raise InvalidProgram(f"a host call cannot take an argument of type {type(arg).__name__}")


def arg_from_json(data: Any, read: Callable[[str, Any], Arg] | None = None) -> Arg:
    """What ``arg_to_json`` wrote; ``read`` turns other tags into values."""
    if isinstance(data, list):
        return tuple(arg_from_json(item, read) for item in data)
    if not isinstance(data, dict):
        return data
    ((tag, value),) = data.items()
    match tag:
        case "float":
            return float.fromhex(value)
        case "complex":
            return complex(*map(float.fromhex, value))
        case "size":
            return parse_size(value)
        case "attr":
            return Attr(str(value[0]), str(value[1]))
        case "buffer":
            return Ref(str(value))
    if read is None:
        raise ValueError(f"unknown tag {tag!r}")
    return read(tag, value)
