"""Functions of math that are functions of the module, which kernels call."""

from __future__ import annotations

from dovetail.codegen.llvm import scalar
from dovetail.codegen.llvm.emit import Code, Val, vector_type
from dovetail.codegen.llvm.math import erf_plus_one

ERF_PLUS_ONE = "erf_plus_one"  # no operation of kernels: a sum that schedules name


def write(c: Code, op: str, dtype: str, args: tuple[Val, ...]) -> Val:
    """An operation where it is needed."""
    if op == ERF_PLUS_ONE:
        return erf_plus_one(c, args[0])
    return scalar.apply(c, op, dtype, args)


def call(c: Code, op: str, dtype: str, args: tuple[Val, ...]) -> Val:
    """Call a function of math, and note it for the module."""
    args = c.alike(*args)
    # By dovetail's type: LLVM's are of no sign, and a power of int8 is none of uint8.
    name, to = f"math.{op}.{dtype}.{args[0].lanes}", vector_type(dtype, args[0].lanes)
    given = tuple(Val(f"%a{n}", a.dtype, a.lanes) for n, a in enumerate(args))
    c.outline(name, to, given, lambda inside: f"{to} {write(inside, op, dtype, given).text}")
    text = ", ".join(f"{a.type} {a.text}" for a in args)
    return c.new(f"call {to} @{name}({text})", dtype, args[0].lanes)
