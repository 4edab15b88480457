"""Kernel IR's operations as expressions of Triton's language; operands are names of variables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dovetail.ir.dtypes import COMPUTED, DTYPES, FLOATS
from dovetail.ir.ops import CHECKS, OPERATIONS

# Functions of float32 whose results are rounded to 16 bits: an error of 1e-5 does not show there.
SHORT = {
    "exp": "short_exp",
    "exp_normal": "short_exp",
    "sigmoid": "short_sigmoid",
    "tanh": "short_tanh",
}
NAMES = {name: f"tl.{name}" for name in COMPUTED} | {"bool": "tl.int1"}


def has(op: str) -> bool:
    """Whether Triton has a word for an operation; others are expanded."""
    return bool(OPERATIONS[op].triton) or bool(OPERATIONS[op].c) or op in ("cast", *CHECKS)


def apply(op: str, dtype: str, args: Sequence[str], *, short: bool = False) -> str:
    """An operation on operands of one type; ``short``: its result is rounded to 16 bits."""
    if short and dtype == "float32" and op in SHORT:
        return f"{SHORT[op]}({args[0]})"
    template = OPERATIONS[op].in_triton(dtype)
    if "{" in template:
        bits = DTYPES[dtype].bits
        return template.format(*args, type=NAMES[dtype], bits=bits, last=bits - 1)
    if template.isidentifier():
        return f"libdevice.{template}({', '.join(args)})"
    return f"{args[0]} {template} {args[1]}"


def cast(value: str, have: str, want: str) -> str:
    """A conversion with C's rules, as ATen does it."""
    if have == want:
        return value
    if want == "bool":
        return f"({value} != 0)"
    # Out of range is undefined; small integers are taken from 32 bits, as eager does.
    small = have in FLOATS and want not in FLOATS and DTYPES[want].bits < 32
    return f"{value}{'.to(tl.int32)' if small else ''}.to({NAMES[want]})"


def number(value: float | int | bool, dtype: str) -> str:
    """A constant, as exact as Python has it."""
    if dtype not in FLOATS:
        return str(int(value))
    if math.isnan(value) or math.isinf(value):
        return f'float("{float(value)}")'
    return repr(float(value))
