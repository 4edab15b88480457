"""The table of element types: what files, kernels, renderers and plug-ins call each of them.

``tools/generate_tables.py`` writes the part of it that the C runtime needs. NumPy, PyTorch and
kernel IR know a type by its name here.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class DType(NamedTuple):
    """One row of the table; a type that kernel IR does not know has no ``number``."""

    name: str
    kind: str  # bool, uint, int, float or complex
    bits: int
    dlpack: int  # DLPack's type code; files and plug-ins carry it, and the bits
    short: str = ""  # in printed graphs; empty: the name
    number: int = -1  # of buffers and values of kernel IR in files; never reused
    compute: str = ""  # the type in which kernels compute what they load of this one
    c: str = ""  # in C; of a type that is not computed in: what holds its bits
    opencl: str = ""
    format: str = ""  # of the struct module
    onnx: int = 0  # of those that the onnx backend's models hold
    largest: float = 0.0  # finite number of a floating-point type that a Python float can exceed
    rounding: str = ""  # the operation that rounds a computed value to this type
    triton: str = ""  # in signatures of Triton's kernels


_INFINITE = float("inf")
# Types that kernels compute with stand in the order of promotion.
# fmt: off
_ROWS = (
    DType("bool", "bool", 8, 6, "b1", 7, "bool", "bool", "bool", "?", 9, triton="i1"),
    DType("uint8", "uint", 8, 1, "u8", 6, "uint8", "uint8_t", "uchar", "B", 2, triton="u8"),
    DType("int8", "int", 8, 0, "i8", 5, "int8", "int8_t", "char", "b", 3, triton="i8"),
    DType("int16", "int", 16, 0, "i16", 4, "int16", "int16_t", "short", "h", triton="i16"),
    DType("int32", "int", 32, 0, "i32", 3, "int32", "int32_t", "int", "i", 6, triton="i32"),
    DType("int64", "int", 64, 0, "i64", 2, "int64", "int64_t", "long", "q", 7, triton="i64"),
    DType("float16", "float", 16, 2, "f16", 8, "float32", "uint16_t", "half", "e",
          largest=65504.0, rounding="round_half", triton="fp16"),
    DType("bfloat16", "float", 16, 4, "bf16", 9, "float32", "uint16_t", "ushort",
          largest=3.3895313892515355e38, rounding="round_bfloat16", triton="bf16"),
    DType("float32", "float", 32, 2, "f32", 0, "float32", "float", "float", "f", 1,
          largest=3.4028234663852886e38, triton="fp32"),
    DType("float64", "float", 64, 2, "f64", 1, "float64", "double", "double", "d", 11,
          largest=_INFINITE, triton="fp64"),
    DType("complex64", "complex", 64, 5, "c64"),
    DType("complex128", "complex", 128, 5, "c128"),
    DType("uint16", "uint", 16, 1),
    DType("uint32", "uint", 32, 1),
    DType("uint64", "uint", 64, 1),
    # Two in a byte, the first in its low half; of devices alone, PyTorch's have no values.
    DType("int4", "int", 4, 0, "i4"),
    DType("uint4", "uint", 4, 1, "u4"),
    DType("float8_e4m3fn", "float", 8, 10),
    DType("float8_e4m3fnuz", "float", 8, 11),
    DType("float8_e5m2", "float", 8, 12),
    DType("float8_e5m2fnuz", "float", 8, 13),
    DType("float8_e8m0fnu", "float", 8, 14),
)
# fmt: on
DTYPES = {row.name: row for row in _ROWS}
# The types of kernel IR's buffers by number, and what a loaded element of each is computed in.
KERNEL_DTYPES = tuple(sorted((d for d in _ROWS if d.number >= 0), key=lambda d: d.number))
COMPUTE = {d.name: d.compute for d in KERNEL_DTYPES}
# The types of kernel IR's values.
COMPUTED = tuple(d.name for d in KERNEL_DTYPES if d.compute == d.name)
FLOATS = frozenset(n for n in COMPUTED if DTYPES[n].kind == "float")
INTEGERS = frozenset(n for n in COMPUTED if DTYPES[n].kind in ("int", "uint"))
UNSIGNED = frozenset(n for n in COMPUTED if DTYPES[n].kind in ("uint", "bool"))
NUMBERS = FLOATS | INTEGERS
ANY = NUMBERS | {"bool"}
# The least and the greatest number of each type of values that is no floating-point type.
LIMITS = {
    name: (-(1 << (d.bits - 1)), (1 << (d.bits - 1)) - 1)
    if d.kind == "int"
    else (0, 1 if d.kind == "bool" else (1 << d.bits) - 1)
    for name, d in ((name, DTYPES[name]) for name in COMPUTED)
    if d.kind != "float"
}
_DIGITS = re.compile(r"\d+$")


def bytes_of(dtype: str, elements: int) -> int:
    """The size of so many elements in a row; those of 4 bits lie two in a byte."""
    row = DTYPES.get(dtype)
    return elements * item_bytes(dtype) if row is None else -(-elements * row.bits // 8)


def item_bytes(dtype: str) -> int:
    """The bytes that hold one element of ``dtype``, also of one that only PyTorch knows."""
    if dtype in DTYPES:
        return -(-DTYPES[dtype].bits // 8)
    bits = _DIGITS.search(dtype.split("_")[0])  # float4_e2m1fn_x2 is a kind of float4
    return max(int(bits[0]) // 8, 1) if bits else 1
