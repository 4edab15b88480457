"""From PyTorch's symbolic integers to our size expressions."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from dovetail.capture._torch.symbols import sym_expr, sympy_functions
from dovetail.errors import SizeError
from dovetail.ir.size import Dim, Size, bits_of

torch_sympy = sympy_functions()
_cache: dict[Any, Dim] = {}


def to_dim(value: Any) -> Dim:
    """An int or SymInt as a dimension; SizeError for what is no integer expression."""
    return value if type(value) is int else from_sympy(sym_expr(value))


def from_sympy(expr: Any) -> Dim:
    """A sympy expression over integer symbols as a dimension."""
    found = _cache.get(expr)
    if found is None:
        if len(_cache) > 100_000:
            _cache.clear()
        found = _cache[expr] = _convert(expr)
    return found


def _convert(expr: Any) -> Dim:
    if expr.is_Integer:
        return int(expr)
    if expr.is_Symbol:
        return Size.symbol(expr.name)
    if expr.is_Add:
        return _fold("add", expr.args)
    if expr.is_Mul:
        return _fold("mul", expr.args)
    if expr.is_Pow and expr.exp.is_Integer and 0 < int(expr.exp) <= 16:
        return _fold("mul", [expr.base] * int(expr.exp))
    if type(expr) in _ROUNDED:
        return Size.of(_ROUNDED[type(expr)], _bits(expr.args[0]))
    rule = _RULES.get(type(expr))
    if rule is None:
        raise SizeError(f"{expr} is not an integer expression that can be computed at run time")
    return rule(*map(from_sympy, expr.args))  # type: ignore[no-any-return]


def _fold(op: str, args: Any) -> Dim:
    """Left-nested ``op``; constants go last, and adding a negative reads as subtracting."""
    parts = sorted(map(from_sympy, args), key=lambda d: isinstance(d, int))
    total = parts[0]
    for part in parts[1:]:
        if op == "add" and isinstance(part, int) and part < 0:
            total = Size.binary("sub", total, -part)
        else:
            total = Size.binary(op, total, part)
    return total


def _many(op: str) -> Any:
    def fold(first: Dim, *rest: Dim) -> Dim:
        for dim in rest:
            first = Size.binary(op, first, dim)
        return first

    return fold


def _ceil_div(a: Dim, b: Dim) -> Dim:
    negative = Size.binary("floordiv", Size.binary("sub", 0, a), b)
    return Size.binary("sub", 0, negative)


def _modular(a: Dim, divisor: Dim, modulus: Dim) -> Dim:
    return Size.binary("mod", Size.binary("floordiv", a, divisor), modulus)


_RULES: dict[Any, Any] = {
    torch_sympy.FloorDiv: _many("floordiv"),
    torch_sympy.CleanDiv: _many("floordiv"),
    torch_sympy.CeilDiv: _ceil_div,
    torch_sympy.Mod: _many("mod"),
    torch_sympy.PythonMod: _many("mod"),
    torch_sympy.ModularIndexing: _modular,
    torch_sympy.Max: _many("max"),
    torch_sympy.Min: _many("min"),
    sympy.Max: _many("max"),
    sympy.Min: _many("min"),
}


# How integers are made of what is computed in floating point.
_ROUNDED: dict[Any, str] = {
    torch_sympy.FloorToInt: "floor",
    torch_sympy.CeilToInt: "ceil",
    torch_sympy.TruncToInt: "trunc",
    torch_sympy.RoundToInt: "round",
}
_REALS: dict[Any, str] = {
    torch_sympy.FloatTrueDiv: "real_div",
    torch_sympy.FloatPow: "real_pow",
    torch_sympy.OpaqueUnaryFn_sqrt: "real_sqrt",
    torch_sympy.Max: "real_max",
    torch_sympy.Min: "real_min",
}


def _bits(expr: Any) -> Dim:
    """The bits of an expression of floating point; of sums and products those of two terms.

    The order of more terms, which decides how they round, is lost in sympy.
    """
    if expr.is_number:
        return bits_of(float(expr))
    if type(expr) in (torch_sympy.ToFloat, torch_sympy.IntTrueDiv):
        parts = [Size.of("real", from_sympy(arg)) for arg in expr.args]
        return parts[0] if len(parts) == 1 else Size.of("real_div", *parts)
    op = _REALS.get(type(expr)) or ("real_add" if expr.is_Add else "real_mul")
    if (not (expr.is_Add or expr.is_Mul) and type(expr) not in _REALS) or len(expr.args) > 2:
        raise SizeError(f"{expr} is not a number that can be computed at run time")
    parts = [_bits(arg) for arg in expr.args]
    if expr.is_Add or expr.is_Mul:
        parts.sort(key=lambda part: (isinstance(part, int), str(part)))
    return Size.of(op, *parts)


def is_symbolic(value: Any) -> bool:
    """Whether ``value`` is one of PyTorch's symbolic numbers."""
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
