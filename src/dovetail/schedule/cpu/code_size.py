"""How many lines of LLVM's text each operation becomes: LLVM's time follows their number.

This is data about ``codegen/llvm``, which schedules are made before; tests/codegen/test_volume.py
compares it with what is emitted.
"""

from __future__ import annotations

import functools

# The functions of vector math: lines for float32 and for float64, each with how many of them work
# on 64-bit numbers; and those for one register of float32 where AVX-512 has instructions for
# exponents.
_FUNCTIONS = {
    "exp": (27, 0, 46, 46, 15),
    "exp_normal": (25, 0, 46, 46, 15),
    "exp2": (26, 0, 44, 44, 14),
    "expm1": (36, 0, 58, 58, 30),
    "sigmoid": (26, 0, 49, 49, 18),
    "tanh": (42, 0, 69, 69, 37),
    "sinh": (42, 0, 68, 68, 32),
    "cosh": (38, 0, 61, 61, 28),
    "log": (31, 0, 53, 53, 17),
    "log2": (42, 0, 58, 58, 28),
    "log10": (44, 0, 58, 58, 30),
    "log1p": (41, 0, 76, 76, 27),
    "asinh": (56, 0, 115, 115, 42),
    "acosh": (55, 0, 103, 103, 41),
    "atanh": (57, 0, 93, 93, 43),
    "sin": (56, 1, 101, 96, 56),
    "cos": (55, 1, 100, 95, 55),
    "tan": (70, 1, 123, 118, 70),
    "asin": (24, 0, 44, 44, 24),
    "acos": (26, 0, 57, 57, 26),
    "atan": (36, 0, 64, 64, 36),
    "erf": (37, 0, 118, 118, 31),
    "erfc": (51, 51, 128, 128, 51),
    "erf_plus_one": (33, 0, 129, 129, 27),
    "pow": (81, 75, 169, 163, 81),
    "atan2": (46, 0, 91, 91, 46),
    "fmod": (66, 55, 63, 52, 66),
    "hypot": (12, 11, 42, 41, 12),
}
FUNCTIONS = frozenset(_FUNCTIONS)
CIRCULAR = frozenset({"sin", "cos", "tan"})
# Other operations of more than one line: floating-point numbers, integers, uint8; then how many of
# those for int64 do not work on 64-bit numbers.
_OTHERS = {
    "abs": (1, 3, 0, 0),
    "round_half": (2, 2, 2, 1),
    "round_bfloat16": (9, 9, 9, 6),
    "sign": (4, 4, 4, 0),
    "div_int": (8, 8, 5, 1),
    "floordiv": (14, 14, 5, 2),
    "floormod": (14, 14, 5, 2),
    "min": (4, 2, 2, 0),
    "max": (4, 2, 2, 0),
    "shl": (4, 4, 4, 0),
    "shr": (5, 5, 4, 0),
    "pow": (81, 31, 24, 10),
}
# They ask whether any lane needs the long way, which for one lane is no question.
_ASKING = frozenset({*CIRCULAR, "fmod"})
_WIDE = frozenset({"float64", "int64"})
_FLOATS = frozenset({"float32", "float64"})


@functools.cache
def lines(op: str, dtype: str, given: tuple[str, ...], lanes: int, avx512: bool) -> tuple[int, int]:
    """Lines of an operation on values of types ``given``, and how many work on 64-bit numbers.

    ``avx512``: the values are one register of a processor with AVX-512.
    """
    if op in FUNCTIONS and dtype in _FLOATS:
        n32, w32, n64, w64, n512 = _FUNCTIONS[op]
        count, wide = (n64, w64) if dtype == "float64" else (n512 if avx512 else n32, w32)
        return count - (op in _ASKING and lanes == 1), wide
    if op == "cast":
        return _cast(dtype, given[0])
    is_wide = any(t in _WIDE for t in (dtype, *given))
    if op not in _OTHERS:
        return 1, int(is_wide)
    floating, integer, small, narrow = _OTHERS[op]
    if dtype in _FLOATS:
        return floating, floating * is_wide
    count = small if dtype == "uint8" else integer
    return count - (op == "pow" and lanes == 1), (count - narrow) * is_wide


def _cast(to: str, given: str) -> tuple[int, int]:
    if to == given or {to, given} == {"int8", "uint8"}:
        return 0, 0
    is_wide = {to, given} & _WIDE
    if given not in _FLOATS or to in (*_FLOATS, "bool"):
        return 1, int(bool(is_wide))
    count = 2 if to in ("int64", "int32") else 3
    return count, 2 if to == "int64" else int(given == "float64")
