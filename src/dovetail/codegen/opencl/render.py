"""A kernel as OpenCL C: one work-item for each point of its parallel axes."""

from __future__ import annotations

from dovetail.codegen.source import SourceRenderer
from dovetail.ir.dtypes import COMPUTED, DTYPES, KERNEL_DTYPES
from dovetail.ir.kernel import Kernel

NAMES = {name: DTYPES[name].opencl for name in COMPUTED}
_STORED = {d.name: d.opencl for d in KERNEL_DTYPES} | {"bool": NAMES["uint8"]}

# Half precision exists in memory only, so no device needs more than the core language for it.
PRELUDE = """\
#pragma OPENCL FP_CONTRACT OFF

float from_bfloat16(ushort bits)
{
    return as_float((uint)bits << 16);
}

ushort to_bfloat16(float x) /* to nearest even; a NaN stays one */
{
    const uint bits = as_uint(x);
    return x != x ? (ushort)0x7fc0 : (ushort)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

long whole_power(long base, long exponent)
{
    if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
    ulong result = 1, square = (ulong)base;
    for (; exponent; exponent >>= 1, square *= square)
        if (exponent & 1) result *= square;
    return (long)result;
}

float round_half(float x)
{
    ushort bits;
    vstore_half_rte(x, 0, (half *)&bits);
    return vload_half(0, (const half *)&bits);
}
"""


class OpenCLRenderer(SourceRenderer):
    """OpenCL C's words for what kernels need."""

    names = NAMES
    pointers = {dtype: f"global {{}}{name} *" for dtype, name in _STORED.items()}  # noqa: RUF012
    half = ("vload_half({1}, {0})", "vstore_half_rte({2}, {1}, {0});")
    prelude = PRELUDE

    def begin(self) -> None:
        """Work-items beyond the last point do nothing."""
        parameters = ",\n    ".join(self.parameters("global long *flag"))
        self.lines += [f"kernel void {self.kernel.name}(", f"    {parameters})", "{"]
        self.line("long point = (long)get_global_id(0);")
        self.line("if (point >= points) return;")

    def function(self, name: str, dtype: str) -> str:
        """Built-in functions are overloaded."""
        del dtype
        return name


def render(kernel: Kernel) -> str:
    """A kernel's source, without the prelude."""
    return OpenCLRenderer(kernel).render()
