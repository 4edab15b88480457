"""Arguments of calls as JSON, each kind that JSON has no form for under a tag.

What names a value, and what else a form of its own needs, is written and read by the functions
that callers give; a Program names its buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.errors import InvalidProgram
from dovetail.ir.call import Arg, Attr, Ref
from dovetail.ir.real import Real, as_real
from dovetail.ir.size import Size, parse_size


def _write_for_program(arg: Any) -> Any:
    if isinstance(arg, Ref):
        return {"buffer": arg.name}
    if isinstance(arg, Size):
        return {"size": str(arg)}
    if isinstance(arg, Real):
        return {"real": str(arg)}
    raise InvalidProgram(f"a host call cannot take an argument of type {type(arg).__name__}")


def _read_for_program(tag: str, value: Any) -> Arg:
    if tag != "buffer":
        raise ValueError(f"unknown tag {tag!r}")
    return Ref(str(value))


def arg_to_json(arg: Any, write: Callable[[Any], Any] = _write_for_program) -> Any:
    """An argument as JSON; ``write`` is asked for references, sizes and kinds unknown here."""
    if arg is None or isinstance(arg, bool | int | str):
        return arg
    if isinstance(arg, float):
        return {"float": arg.hex()}
    if isinstance(arg, complex):
        return {"complex": [arg.real.hex(), arg.imag.hex()]}
    if isinstance(arg, tuple | list):
        return [arg_to_json(a, write) for a in arg]
    if isinstance(arg, Attr):
        return {"attr": [arg.kind, arg.value]}
    return write(arg)


def arg_from_json(data: Any, read: Callable[[str, Any], Arg] = _read_for_program) -> Arg:
    """What ``arg_to_json`` wrote; ``read`` turns tags unknown here into values."""
    if isinstance(data, list):
        return tuple([arg_from_json(item, read) for item in data])
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
        case "real":
            return as_real(parse_size(value))
        case "attr":
            return Attr(str(value[0]), str(value[1]))
    return read(tag, value)
