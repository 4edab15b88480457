"""Kernel IR's operations as expressions of a C-like language."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from dovetail.ir.kernel import FLOATS

_INFIX = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_INFIX |= {"add": "+", "sub": "-", "mul": "*", "div": "/", "div_int": "/"}
_INFIX |= {"and": "&", "or": "|", "xor": "^"}
_BOOLEAN = {"add": "|", "sub": "^", "mul": "&"}  # what they are for true and false
_FUNCTIONS = {name: name for name in ("floor", "ceil", "trunc", "sqrt", "exp", "exp2", "expm1")}
_FUNCTIONS |= {name: name for name in ("log", "log2", "log10", "log1p", "sin", "cos", "tan")}
_FUNCTIONS |= {name: name for name in ("tanh", "erf", "erfc", "copysign", "fma")}
_FUNCTIONS |= {name: name for name in ("asin", "acos", "atan", "atan2", "sinh", "cosh")}
_FUNCTIONS |= {name: name for name in ("asinh", "acosh", "atanh", "fmod", "hypot")}
_FUNCTIONS |= {"round": "rint", "exp_normal": "exp"}
_BITS = {"int64": 64, "int32": 32, "int16": 16, "int8": 8, "uint8": 8}


class SourceOperations:
    """Expressions for operations, casts and numbers; operands are names of variables."""

    # What each computing type is called.
    names: ClassVar[Mapping[str, str]] = {}

    def function(self, name: str, dtype: str) -> str:
        """What a function of C's math library is called for this type."""
        raise NotImplementedError

    def apply(self, op: str, dtype: str, args: Sequence[str]) -> str:
        """An operation on operands of one type."""
        rule = getattr(self, f"_{op}", None)
        if rule is not None:
            return str(rule(dtype, *args))
        if op in _FUNCTIONS:
            return f"{self.function(_FUNCTIONS[op], dtype)}({', '.join(args)})"
        sign = _BOOLEAN.get(op, _INFIX[op]) if dtype == "bool" else _INFIX[op]
        return f"{args[0]} {sign} {args[1]}"

    def cast(self, value: str, have: str, want: str) -> str:
        """A conversion with C's rules, as ATen does it."""
        if have == want:
            return value
        if want == "bool":
            return f"({value} != 0)"
        # Out of range is undefined in C; the machine's own conversion is what eager shows then.
        small = have in FLOATS and want in ("int16", "int8", "uint8")
        middle = f"({self.names['int32']})" if small else ""
        return f"({self.names[want]}){middle}{value}"

    def number(self, value: float | int | bool, dtype: str) -> str:
        """A constant."""
        if dtype not in FLOATS:
            return self._integer(int(value), dtype)
        suffix = "f" if dtype == "float32" else ""
        if math.isnan(value) or math.isinf(value):
            text = "NAN" if math.isnan(value) else "INFINITY"
            return f"(({self.names[dtype]}){'-' if value < 0 else ''}{text})"
        return f"({float(value).hex()}{suffix})" if value < 0 else f"{float(value).hex()}{suffix}"

    def _integer(self, value: int, dtype: str) -> str:
        if dtype != "int64":
            return f"(({self.names[dtype]}){value})" if value < 0 else str(value)
        if value == -(2**63):
            return f"(-{2**63 - 1}L - 1L)"
        return f"({value}L)" if value < 0 else f"{value}L"

    # ---- operations that C has no word for -------------------------------------------------

    def _neg(self, _: str, x: str) -> str:
        return f"-{x}"

    def _abs(self, dtype: str, x: str) -> str:
        if dtype in FLOATS:
            return f"{self.function('fabs', dtype)}({x})"
        return x if dtype in ("uint8", "bool") else f"{x} < 0 ? -{x} : {x}"

    def _not(self, dtype: str, x: str) -> str:
        return f"!{x}" if dtype == "bool" else f"~{x}"

    def _isnan(self, _: str, x: str) -> str:
        return f"{x} != {x}"

    def _sign(self, _: str, x: str) -> str:
        return f"({x} > 0) - ({x} < 0)"

    _sgn = _sign

    def _sigmoid(self, dtype: str, x: str) -> str:
        one = self.number(1, dtype)
        return f"{one} / ({one} + {self.function('exp', dtype)}(-{x}))"

    def _min(self, dtype: str, a: str, b: str) -> str:
        return self._extreme("<", dtype, a, b)

    def _max(self, dtype: str, a: str, b: str) -> str:
        return self._extreme(">", dtype, a, b)

    def _extreme(self, sign: str, dtype: str, a: str, b: str) -> str:
        """The better of two; a NaN wins."""
        broken = f" || {a} != {a}" if dtype in FLOATS else ""
        return f"({a} {sign} {b}{broken}) ? {a} : {b}"

    def _pow(self, dtype: str, x: str, y: str) -> str:
        name = self.function("pow", dtype) if dtype in FLOATS else "whole_power"
        return f"{name}({x}, {y})"

    def _where(self, _: str, mask: str, yes: str, no: str) -> str:
        return f"{mask} ? {yes} : {no}"

    def _floordiv(self, dtype: str, a: str, b: str) -> str:
        if dtype in ("uint8", "bool"):
            return f"{a} / {b}"
        return f"{a} / {b} - ({a} % {b} != 0 && (({a} % {b}) ^ {b}) < 0)"

    def _floormod(self, dtype: str, a: str, b: str) -> str:
        if dtype in ("uint8", "bool"):
            return f"{a} % {b}"
        return f"{a} % {b} + (({a} % {b} != 0 && (({a} % {b}) ^ {b}) < 0) ? {b} : 0)"

    def _shl(self, dtype: str, x: str, amount: str) -> str:
        inside = f"{amount} >= 0 && {amount} < {_BITS[dtype]}"
        return f"({inside}) ? ({self.names[dtype]})({x} << {amount}) : 0"

    def _shr(self, dtype: str, x: str, amount: str) -> str:
        bits = _BITS[dtype]
        beyond = "0" if dtype == "uint8" else f"({x} >> {bits - 1})"
        inside = f"{amount} >= 0 && {amount} < {bits}"
        return f"({inside}) ? ({x} >> {amount}) : {beyond}"

    def _round_half(self, _: str, x: str) -> str:
        return f"round_half({x})"

    def _round_brain(self, _: str, x: str) -> str:
        return f"from_brain(to_brain({x}))"
