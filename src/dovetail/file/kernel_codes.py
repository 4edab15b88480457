"""Kernel IR's numbers in a file: operations, folds, types, roles, and what operands each takes.

``native/src/kernel_ops.h`` holds the same tables for the C decoder; a test compares them. Numbers
are part of the file format: new entries go to the end, none is ever reused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dovetail.ir.kernel import FLOATS, INTEGERS

_DTYPES = ("float32", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
DTYPE_CODES = {name: n for n, name in enumerate((*_DTYPES, "float16", "bfloat16"))}
COMPUTED = _DTYPES  # those that values have, the others are of buffers only
_BITS = {"int64": 64, "int32": 32, "int16": 16, "int8": 8}
# The least and the greatest constant of each type that is no floating-point number.
LIMITS = {
    **{name: (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for name, bits in _BITS.items()},
    "uint8": (0, 255),
    "bool": (0, 1),
}
ROLE_CODES = {"in": 0, "out": 1, "inout": 2}
LOAD, CONST, POSITION, APPLY, REDUCE, STORE, SCAN = range(7)

NUMBERS = FLOATS | INTEGERS
ANY = NUMBERS | {"bool"}
# What an operation's rule admits as the one type of its operands and its result.
_SAME_TYPE = {
    "float": FLOATS,
    "number": NUMBERS,
    "any": ANY,
    "integer": INTEGERS,
    "bits": INTEGERS | {"bool"},
    "single": frozenset({"float32"}),
}


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation's number, how many operands it takes, and which types they may have."""

    code: int
    name: str
    arity: int
    rule: str

    def admits(self, given: tuple[str, ...], result: str) -> bool:
        """Whether it can be applied to values of these types with a result of that one."""
        if len(given) != self.arity or not {*given, result} <= ANY:
            return False
        match self.rule:
            case "cast":
                return True
            case "test":
                return given[0] in FLOATS and result == "bool"
            case "compare":
                return given[0] == given[1] and result == "bool"
            case "select":
                return given == ("bool", result, result)
            case "check":
                return (*given, result) == ("int64", "int64", "bool", "int64")
        return {*given} == {result} and result in _SAME_TYPE[self.rule]


# Operation → rule, in the order of their numbers, by how many operands they take.
_ONE = {
    **dict.fromkeys(("neg", "abs"), "number"),
    "not": "bits",
    "cast": "cast",
    **dict.fromkeys(("round_half", "round_brain"), "single"),
    "isnan": "test",
    **dict.fromkeys(("floor", "ceil", "trunc", "round", "sqrt"), "float"),
    **dict.fromkeys(("sign", "sgn"), "number"),
    **dict.fromkeys(("exp", "exp_normal", "exp2", "expm1", "log", "log2", "log10"), "float"),
    **dict.fromkeys(("log1p", "sin", "cos", "tan", "tanh", "sigmoid", "erf", "erfc"), "float"),
}
_TWO = {
    **dict.fromkeys(("add", "sub", "mul"), "any"),
    "div": "float",
    **dict.fromkeys(("div_int", "floordiv", "floormod"), "integer"),
    **dict.fromkeys(("min", "max"), "any"),
    "pow": "number",
    "copysign": "float",
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), "compare"),
    **dict.fromkeys(("and", "or", "xor"), "bits"),
    **dict.fromkeys(("shl", "shr"), "integer"),
}
_THREE = {
    "where": "select",
    "fma": "float",
    **dict.fromkeys(("check", "check_index", "check_bounds"), "check"),
}
# What came later.
_MORE = [
    *((name, 1, "float") for name in ("asin", "acos", "atan", "sinh", "cosh")),
    *((name, 1, "float") for name in ("asinh", "acosh", "atanh")),
    *((name, 2, "float") for name in ("atan2", "fmod", "hypot")),
    ("check_divisor", 3, "check"),
]
_LISTED = [
    (name, arity, rule)
    for arity, rules in enumerate((_ONE, _TWO, _THREE), 1)
    for name, rule in rules.items()
] + _MORE
OPERATION_TABLE = tuple(Operation(code, *row) for code, row in enumerate(_LISTED))
OPERATION_BY_NAME = {operation.name: operation for operation in OPERATION_TABLE}


@dataclass(frozen=True, slots=True)
class Fold:
    """A fold's number, how many operands it takes, and the types it folds in."""

    code: int
    name: str
    arity: int
    types: frozenset[str]

    def admits(self, given: tuple[str, ...], result: str) -> bool:
        """Whether values of these types can be folded into one of that type."""
        places = given[1:] in ((), ("int64",))
        return len(given) == self.arity and places and {given[0]} <= ANY and result in self.types


_FOLD_TYPES = {
    **dict.fromkeys(("sum", "prod"), NUMBERS),
    **dict.fromkeys(("max", "min"), ANY),
    **dict.fromkeys(("any", "all"), frozenset({"bool"})),
    **dict.fromkeys(("argmax", "argmin"), frozenset({"int64"})),
}
FOLD_TABLE = tuple(
    Fold(code, name, 1 + name.startswith("arg"), types)
    for code, (name, types) in enumerate(_FOLD_TYPES.items())
)
FOLD_BY_NAME = {fold.name: fold for fold in FOLD_TABLE}

# Caps, the same in C: what a kernel may hold.
MAX_KERNELS, MAX_BUFFERS, MAX_SIZES, MAX_VALUES = 1 << 16, 1 << 10, 1 << 12, 1 << 14
MAX_AXES, MAX_LOOPS, MAX_TERMS, MAX_NAME = 64, 64, 32, 255
# A kernel's name, the one name in the section: what section 7 of the file calls it.
PLAIN_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_.]{{0,{MAX_NAME - 1}}}")
