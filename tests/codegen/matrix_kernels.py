"""Kernels of matrix products, written by hand: every layout of operands, every kind of epilogue."""

from dataclasses import dataclass

import numpy as np

from dovetail.ir.affine import mul
from dovetail.ir.dtypes import COMPUTE
from dovetail.ir.kernel import (
    Apply,
    Axis,
    Const,
    Index,
    Kernel,
    KernelBuffer,
    Load,
    Loop,
    Position,
    Reduce,
)
from dovetail.ir.kernel import Store as Write
from dovetail.ir.size import Size


@dataclass(frozen=True)
class Matrices:
    """Σ_k left[b, m, k] right[b, k, n] and what is done with it.

    ``left`` is "mk" or "km", ``right`` "kn" or "nk", ``out`` "mn" or "nm": the last is dense.
    With ``triangular`` only steps up to the row's number are summed. The kernel does not know the
    sizes named in ``unknown``, of "mnkp".
    """

    rows: int
    columns: int
    sum: int
    left: str = "mk"
    right: str = "kn"
    out: str = "mn"
    batch: int = 1
    dtype: str = "float32"
    epilogue: str = ""
    triangular: bool = False
    unknown: str = ""

    def kernel(self):
        of = COMPUTE[self.dtype]
        body = (
            Load("a", of, "left", self._index(self.left)),
            Load("b", of, "right", self._index(self.right)),
            Apply("product", of, "mul", ("a", "b")),
        )
        term = "product"
        if self.triangular:
            code, term = _up_to("k", "product", 0.0, of)
            body += code
        body += (Reduce("total", of, "sum", (term,)),)
        rest, value = _EPILOGUES[self.epilogue](self, of)
        rest = (*rest, Write("out", self._index(self.out), value))
        roles = {name: "out" if name == "out" else "in" for name in self.shapes()}
        buffers = tuple(KernelBuffer(name, self.dtype, role) for name, role in roles.items())
        size = self._sizes()
        axes = (Axis("p", size["p"]),) if self.batch > 1 else ()
        axes += (Axis("m", size["m"]), Axis("n", size["n"]))
        loops = (Loop((Axis("k", size["k"]),), body), Loop((), rest))
        return Kernel("product", buffers, axes, loops)

    def symbols(self):
        """What the unknown sizes are."""
        every = {"m": self.rows, "n": self.columns, "k": self.sum, "p": self.batch}
        return {name: every[name] for name in self.unknown}

    def _sizes(self):
        known = {"m": self.rows, "n": self.columns, "k": self.sum, "p": self.batch}
        return known | {name: Size.symbol(name) for name in self.unknown}

    def _index(self, order):
        sizes = self._sizes()
        outer, inner = order
        axes = [(outer, sizes[inner]), (inner, 1)]
        if self.batch > 1:
            axes.append(("p", mul(sizes[outer], sizes[inner])))
        return Index(0, tuple(sorted(axes)))

    def shapes(self):
        """Elements of each buffer."""
        m, n, k, b = self.rows, self.columns, self.sum, self.batch
        found = {"left": b * m * k, "right": b * k * n, "out": b * m * n}
        if "bias" in self.epilogue or self.epilogue == "gelu":
            found["bias"] = n
        if self.epilogue == "residual":
            found["residual"] = b * m * n
        return found

    def integers(self, seed=0):
        """Data whose sums are exact in any order."""
        random = np.random.default_rng(seed)
        dtype = np.float32 if self.dtype in ("float16", "bfloat16") else self.dtype
        return {
            name: random.integers(-4, 5, count).astype(dtype)
            for name, count in self.shapes().items()
        }


def _bias(given, of):
    load = Load("bias", of, "bias", Index(0, (("n", 1),)))
    return (load, Apply("biased", of, "add", ("total", "bias"))), "biased"


def _residual(given, of):
    load = Load("more", of, "residual", given._index(given.out))
    return (load, Apply("added", of, "add", ("total", "more"))), "added"


def _relu(given, of):
    code, value = _bias(given, of)
    return (*code, Const("zero", of, 0.0), Apply("top", of, "max", (value, "zero"))), "top"


def _up_to(axis, value, other, of):
    """A value where an axis is at the row's number at most, else another one."""
    return (
        Position(f"row_{axis}", Index(0, (("m", 1),))),
        Position(f"at_{axis}", Index(0, ((axis, 1),))),
        Apply(f"near_{axis}", "bool", "ge", (f"row_{axis}", f"at_{axis}")),
        Const(f"other_{axis}", of, other),
        Apply(f"chosen_{axis}", of, "where", (f"near_{axis}", value, f"other_{axis}")),
    ), f"chosen_{axis}"


def _causal(given, of):
    code, value = _up_to("n", "doubled", 7.0, of)
    return (Apply("doubled", of, "add", ("total", "total")), *code), value


def _gelu(given, of):
    code, value = _bias(given, of)
    return (
        *code,
        Const("root", of, 0.7071067811865476),
        Apply("scaled", of, "mul", (value, "root")),
        Const("half", of, 0.5),
        Apply("halved", of, "mul", (value, "half")),
        Const("one", of, 1.0),
        Apply("erf", of, "erf", ("scaled",)),
        Apply("more", of, "add", ("one", "erf")),
        Apply("gelu", of, "mul", ("halved", "more")),
    ), "gelu"


_EPILOGUES = {
    "": lambda given, of: ((), "total"),
    "bias": _bias,
    "bias_relu": _relu,
    "gelu": _gelu,
    "residual": _residual,
    "causal": _causal,
}
