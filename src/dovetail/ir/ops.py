"""The table of kernel IR's operations and reductions: all that is known of each in one row.

A row says which types an operation takes, what it costs, and what C, OpenCL C, Triton and NumPy
call it.
What one of them has no word for is rendered as the row's ``expansion``, an expression of other
operations (``ir/expand.py``). So a new operation is a row here and a rule in ``lower/``. It gets a
``number`` once the C runtime interprets it; until then files hold its expansion.
``tools/generate_tables.py`` writes the part of the table that the C runtime needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dovetail.ir.dtypes import ANY, DTYPES, FLOATS, INTEGERS, LIMITS, NUMBERS

# The type that operands and result share, by the name of the rule.
_SAME_TYPE = {
    "float": FLOATS,
    "number": NUMBERS,
    "any": ANY,
    "integer": INTEGERS,
    "bits": INTEGERS | {"bool"},
    "single": frozenset({"float32"}),
}
# Those that are not of one type: any to any; a floating-point number to bool; two of one type to
# bool; a bool and two of the result's type; int64, int64 and bool to int64; int64 to float64.
MIXED_RULES = ("cast", "test", "compare", "select", "check", "bits_of")
RULES = (*_SAME_TYPE, *MIXED_RULES)
# Picoseconds an element of float32, and of float64, with vectors of sixteen float32: a load that
# hits the cache, measured as 30, and the rest beside it.
LOAD_COST, _PLAIN = 30, (15, 15)


class Operation(NamedTuple):
    """One row of the table."""

    name: str
    arity: int
    rule: str  # which types it takes and gives: one of RULES
    # C's operator or function of math.h, or an expression: of operands {0}, {1}, {2}, the {type}
    # they have, its {bits} and the number of the {last} of them.
    c: str = ""
    numpy: str = ""  # NumPy's function; empty: the reference has one of its own, or expands it
    number: int = -1  # in files; never reused
    cost: tuple[int, int] = _PLAIN  # picoseconds an element; of float64 the second
    instructions: int = 1  # of its code for float32, estimated; a slow one counts as several
    c_by_kind: Mapping[str, str] = {}  # what C calls it for kinds of types where that differs
    expansion: str = ""  # in other operations of operands x, y, z and numbers of their type
    # What Triton calls it, as ``c``, for types and kinds of types; "": for all others. Where there
    # is nothing, C's operator is Triton's too, and C's function is one of libdevice.
    triton: Mapping[str, str] = {}

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
            case "bits_of":
                return (*given, result) == ("int64", "float64")
        return {*given} == {result} and result in _SAME_TYPE[self.rule]

    def result(self, given: tuple[str, ...]) -> str:
        """The type it gives for operands of these types, casts aside."""
        if self.rule in ("compare", "test"):
            return "bool"
        if self.rule == "bits_of":
            return "float64"
        return given[0] if self.rule == "check" else given[-1]

    def in_c(self, dtype: str) -> str:
        """What C calls it for operands of a type."""
        return self.c_by_kind.get(DTYPES[dtype].kind, self.c)

    def in_triton(self, dtype: str) -> str:
        """What Triton calls it for operands of a type."""
        for key in (dtype, DTYPES[dtype].kind, ""):
            if key in self.triton:
                return self.triton[key]
        return self.in_c(dtype)


_EXTREME = "({{0}} {0} {{1}}) ? {{0}} : {{1}}"
_EXTREME_FLOAT = "({{0}} {0} {{1}} || {{0}} != {{0}}) ? {{0}} : {{1}}"  # a NaN wins
_UNEVEN = "{0} % {1} != 0 && (({0} % {1}) ^ {1}) < 0"  # a quotient that was not rounded down
_WITHIN = "({1} >= 0 && {1} < {bits})"
_NAN_TOO = "propagate_nan=tl.PropagateNan.ALL"
_CHOSEN = "tl.where(({{0}} {0} {{1}}) | ({{0}} != {{0}}), {{0}}, {{1}})"
_UNEVEN_TL = "({0} % {1} != 0) & ((({0} % {1}) ^ {1}) < 0)"
_WITHIN_TL = "tl.where(({{1}} >= 0) & ({{1}} < {{bits}}), {{0}} {0} {{1}}, {1})"
# fmt: off
_ROWS = (
    Operation("neg", 1, "number", "-{0}", "negative", 0),
    Operation("abs", 1, "number", "{0} < 0 ? -{0} : {0}", "abs", 1,
              c_by_kind={"float": "fabs", "uint": "{0}"},
              triton={"uint": "{0}", "": "tl.abs({0})"}),
    Operation("not", 1, "bits", "~{0}", "invert", 2, c_by_kind={"bool": "!{0}"},
              triton={"bool": "{0} == 0", "uint": "{0} ^ 255"}),
    Operation("cast", 1, "cast", number=3),
    Operation("round_half", 1, "single", "round_half({0})", number=4,
              triton={"": "{0}.to(tl.float16).to(tl.float32)"}),
    Operation("round_bfloat16", 1, "single", "from_bfloat16(to_bfloat16({0}))", number=5,
              triton={"": "{0}.to(tl.bfloat16).to(tl.float32)"}),
    Operation("isnan", 1, "test", "{0} != {0}", "isnan", 6),
    Operation("floor", 1, "float", "floor", "floor", 7),
    Operation("ceil", 1, "float", "ceil", "ceil", 8),
    Operation("trunc", 1, "float", "trunc", "trunc", 9),
    Operation("round", 1, "float", "rint", "rint", 10),
    Operation("sqrt", 1, "float", "sqrt", "sqrt", 11, (45, 45), 4,
              triton={"float32": "tl.sqrt_rn({0})"}),
    Operation("sign", 1, "number", "({0} > 0) - ({0} < 0)", "sign", 12,
              triton={"": "({0} > 0).to({type}) - ({0} < 0).to({type})"}),
    Operation("sgn", 1, "number", number=13, expansion="sign(x)"),
    Operation("exp", 1, "float", "exp", "exp", 14, (90, 900), 12),
    # It may give zero for results that are no normal numbers.
    Operation("exp_normal", 1, "float", "", "", 15, (90, 900), 12, expansion="exp(x)",
              triton={"": "libdevice.exp({0})"}),
    Operation("exp2", 1, "float", "exp2", "exp2", 16, (90, 900), 16),
    Operation("expm1", 1, "float", "expm1", "expm1", 17, (150, 900), 20),
    Operation("log", 1, "float", "log", "log", 18, (150, 1200), 16),
    Operation("log2", 1, "float", "log2", "log2", 19, (240, 1200), 16),
    Operation("log10", 1, "float", "log10", "log10", 20, (240, 1200), 16),
    Operation("log1p", 1, "float", "log1p", "log1p", 21, (240, 1800), 20),
    Operation("sin", 1, "float", "sin", "sin", 22, (240, 1800), 30),
    Operation("cos", 1, "float", "cos", "cos", 23, (240, 1800), 30),
    Operation("tan", 1, "float", "tan", "tan", 24, (420, 3000), 60),
    Operation("tanh", 1, "float", "tanh", "tanh", 25, (420, 1800), 20),
    Operation("sigmoid", 1, "float", "", "", 26, (150, 900), 14,
              expansion="div(1, add(1, exp(neg(x))))",
              triton={"float32": "1.0 / (1.0 + libdevice.exp(-{0}))",
                      "float64": "1.0 / (1.0 + libdevice.exp(-{0}))"}),
    Operation("erf", 1, "float", "erf", "", 27, (420, 3000), 24),
    Operation("erfc", 1, "float", "erfc", "", 28, (1500, 3000), 60),
    Operation("add", 2, "any", "+", "add", 29, c_by_kind={"bool": "|"}),
    Operation("sub", 2, "any", "-", "", 30, c_by_kind={"bool": "^"}),
    Operation("mul", 2, "any", "*", "multiply", 31, c_by_kind={"bool": "&"}),
    Operation("div", 2, "float", "/", "divide", 32, (45, 45), 4,
              triton={"float32": "tl.div_rn({0}, {1})"}),
    Operation("div_int", 2, "integer", "/", "", 33, (150, 150), 8, triton={"": "//"}),
    Operation("floordiv", 2, "integer", "{0} / {1} - (" + _UNEVEN + ")", "floor_divide",
              34, (150, 150), 8, {"uint": "{0} / {1}"},
              triton={"uint": "//", "": "{0} // {1} - (" + _UNEVEN_TL + ").to({type})"}),
    Operation("floormod", 2, "integer", "{0} % {1} + ((" + _UNEVEN + ") ? {1} : 0)", "mod",
              35, (150, 150), 8, {"uint": "{0} % {1}"},
              triton={"uint": "%", "": "{0} % {1} + tl.where(" + _UNEVEN_TL + ", {1}, 0)"}),
    Operation("min", 2, "any", _EXTREME.format("<"), "minimum", 36,
              c_by_kind={"float": _EXTREME_FLOAT.format("<")},
              triton={"float32": "tl.minimum({0}, {1}, " + _NAN_TOO + ")", "bool": "&",
                      "float64": _CHOSEN.format("<"), "": "tl.minimum({0}, {1})"}),
    Operation("max", 2, "any", _EXTREME.format(">"), "maximum", 37,
              c_by_kind={"float": _EXTREME_FLOAT.format(">")},
              triton={"float32": "tl.maximum({0}, {1}, " + _NAN_TOO + ")", "bool": "|",
                      "float64": _CHOSEN.format(">"), "": "tl.maximum({0}, {1})"}),
    Operation("pow", 2, "number", "whole_power({0}, {1})", "", 38, (1500, 3000), 60,
              {"float": "pow"}),
    Operation("copysign", 2, "float", "copysign", "copysign", 39),
    Operation("eq", 2, "compare", "==", "equal", 40),
    Operation("ne", 2, "compare", "!=", "not_equal", 41),
    Operation("lt", 2, "compare", "<", "less", 42),
    Operation("le", 2, "compare", "<=", "less_equal", 43),
    Operation("gt", 2, "compare", ">", "greater", 44),
    Operation("ge", 2, "compare", ">=", "greater_equal", 45),
    Operation("and", 2, "bits", "&", "bitwise_and", 46),
    Operation("or", 2, "bits", "|", "bitwise_or", 47),
    Operation("xor", 2, "bits", "^", "bitwise_xor", 48),
    # Shifts by the width or more, or by a negative number, leave nothing but the sign.
    Operation("shl", 2, "integer", _WITHIN + " ? ({type})({0} << {1}) : 0", "left_shift", 49,
              triton={"": _WITHIN_TL.format("<<", "0")}),
    Operation("shr", 2, "integer", _WITHIN + " ? ({0} >> {1}) : ({0} >> {last})",
              "right_shift", 50, c_by_kind={"uint": _WITHIN + " ? ({0} >> {1}) : 0"},
              triton={"uint": _WITHIN_TL.format(">>", "0"),
                      "": _WITHIN_TL.format(">>", "{0} >> {last}")}),
    Operation("where", 3, "select", "{0} ? {1} : {2}", "where", 51,
              triton={"": "tl.where({0}, {1}, {2})"}),
    # Rounded once.
    Operation("fma", 3, "float", "fma", "", 52, triton={"": "tl.fma({0}, {1}, {2})"}),
    # An index, the size it must lie in, and whether it is going to be used: the index itself, or 0
    # where it is out of range, which the program then reports. The first wraps negative indices.
    Operation("check", 3, "check", number=53),
    Operation("check_index", 3, "check", number=54),
    Operation("check_bounds", 3, "check", number=55),
    Operation("asin", 1, "float", "asin", "arcsin", 56, (240, 1200), 40),
    Operation("acos", 1, "float", "acos", "arccos", 57, (240, 1200), 40),
    Operation("atan", 1, "float", "atan", "arctan", 58, (240, 1200), 40),
    Operation("sinh", 1, "float", "sinh", "sinh", 59, (270, 1200), 40),
    Operation("cosh", 1, "float", "cosh", "cosh", 60, (270, 1200), 40),
    Operation("asinh", 1, "float", "asinh", "arcsinh", 61, (540, 3000), 60),
    Operation("acosh", 1, "float", "acosh", "arccosh", 62, (540, 3000), 60),
    Operation("atanh", 1, "float", "atanh", "arctanh", 63, (540, 1800), 60),
    Operation("atan2", 2, "float", "atan2", "arctan2", 64, (420, 1800), 60),
    Operation("fmod", 2, "float", "fmod", "fmod", 65, (420, 420), 60),
    Operation("hypot", 2, "float", "hypot", "hypot", 66, (420, 900), 30),
    # A divisor, what to put in place of zero, and whether it is going to be used.
    Operation("check_divisor", 3, "check", number=67),
    # An int64 as the float64 of its bits: how kernels are told numbers that are no integers.
    Operation("from_bits", 1, "bits_of", "as_double({0})", number=68,
              triton={"": "{0}.to(tl.float64, bitcast=True)"}),
)
# fmt: on
OPERATIONS = {row.name: row for row in _ROWS}
OPERATIONS_BY_NUMBER = tuple(sorted((o for o in _ROWS if o.number >= 0), key=lambda o: o.number))
CHECKS = tuple(o.name for o in _ROWS if o.rule == "check")
COMPARISONS = tuple(o.name for o in _ROWS if o.rule == "compare")
DIVISIONS = ("div_int", "floordiv", "floormod")  # of integers: not by zero


# The types of a reduction's result, by the name of its rule.
REDUCTION_RULES = {
    "number": NUMBERS,
    "any": ANY,
    "bool": frozenset({"bool"}),
    "position": frozenset({"int64"}),
}


class Reducer(NamedTuple):
    """How values become one: a row of the table of reductions. Each is associative.

    "argmax" and "argmin" take the value and the position that is to be returned for it; where a
    loop has no points that is 0.
    """

    name: str
    arity: int
    number: int  # in files; never reused
    rule: str  # the type of its result: one of REDUCTION_RULES
    operation: str  # that joins two values
    start: str  # what it begins with: 0, 1, or the least or the greatest number of the type

    @property
    def finds_position(self) -> bool:
        """Whether it gives a position instead of a value."""
        return self.arity == 2

    def admits(self, given: tuple[str, ...], result: str) -> bool:
        """Whether values of these types can be reduced to one of that type."""
        places = given[1:] in ((), ("int64",))
        fits = len(given) == self.arity and places and given[0] in ANY
        return fits and result in REDUCTION_RULES[self.rule]

    def identity(self, dtype: str) -> float | int | bool:
        """The value it begins with in a type."""
        if self.start in ("0", "1"):
            return int(self.start)
        infinite = float("inf")
        least, greatest = (-infinite, infinite) if dtype in FLOATS else LIMITS[dtype]
        return least if self.start == "least" else greatest


_REDUCERS = (
    Reducer("sum", 1, 0, "number", "add", "0"),
    Reducer("prod", 1, 1, "number", "mul", "1"),
    Reducer("max", 1, 2, "any", "max", "least"),
    Reducer("min", 1, 3, "any", "min", "greatest"),
    Reducer("any", 1, 4, "bool", "or", "0"),
    Reducer("all", 1, 5, "bool", "and", "1"),
    Reducer("argmax", 2, 6, "position", "max", "least"),
    Reducer("argmin", 2, 7, "position", "min", "greatest"),
)
REDUCTIONS = {row.name: row for row in _REDUCERS}
REDUCTIONS_BY_NUMBER = tuple(sorted(_REDUCERS, key=lambda r: r.number))
