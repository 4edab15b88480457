"""Matrix products by cuBLASLt, in the library that PyTorch has loaded.

A product is described and its algorithm chosen once, by the library's own heuristic, as PyTorch
does at each call; a run then is one call of the library (``native/python/gpu_matmul.c``). What
PyTorch's settings ask for beside the usual, and what is not described here, stays PyTorch's.
"""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.runtime.sized import TensorLayout

WORKSPACE = 32 << 20  # bytes that an algorithm may ask for; PyTorch lets it have as many
_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}  # cudaDataType
_PLAIN, _TF32 = 68, 77  # cublasComputeType_t: sums in float32, factors rounded in the second
_TRANSPOSED_A, _TRANSPOSED_B, _EPILOGUE, _BIAS = 3, 4, 7, 8  # attributes of a product
_ADDS_BIAS = 4  # an epilogue
_BATCH, _BATCH_STRIDE = 5, 6  # attributes of a layout
_MOST_WORKSPACE = 1  # an attribute of what is asked for
_MOST = 2**31 - 1


@dataclass(frozen=True)
class Matrix:
    """Columns of elements one behind the other, as BLAS has them."""

    rows: int
    columns: int
    leading: int  # from a column to the next
    batch: int = 0  # from a matrix to the next


@dataclass(frozen=True)
class Multiplication:
    """D = beta * C + alpha * A @ B, each of one type, A and B transposed or not."""

    dtype: str
    a: Matrix
    b: Matrix
    c: Matrix
    d: Matrix
    transposed: tuple[bool, bool]
    count: int  # of matrices
    beta: float
    alpha: float
    bias: bool  # a column added to each of D's
    roles: tuple[int, int, int, int]  # which operand of the product A, B, C and D are


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


# ---- what a product of PyTorch's is to the library ----------------------------------------------


def described(layouts: Sequence[TensorLayout], beta: float, alpha: float) -> Multiplication | None:
    """(baddb)mm as the library takes it; None: it is PyTorch's.

    The layouts are those of the result, of what is added, where that is there, and of the factors.
    Rows that lie one behind the other are columns of the transposed matrix: the library computes
    the transposed result, so that its A is the right factor.
    """
    result, *added, left, right = layouts
    if result.dtype not in _TYPES or max(max(x.shape) for x in layouts) > _MOST:
        return None
    d, a, b = (_columns(x.shape, x.strides) for x in (result, right, left))
    if d is None or a is None or b is None or d[1]:
        return None
    c, bias = _added(added[0] if added and beta else None, result, beta, left.shape[-1])
    if c is None:
        return None
    count = result.shape[0] if len(result.shape) == 3 else 1
    last = len(layouts) - 1
    role = 1 if added and beta and not bias else 0
    transposed = a[1], b[1]
    scale = 0.0 if role == 0 else beta
    roles = last, last - 1, role, 0
    return Multiplication(
        result.dtype, a[0], b[0], c, d[0], transposed, count, scale, alpha, bias, roles
    )


def _columns(shape: Sequence[int], strides: Sequence[int]) -> tuple[Matrix, bool] | None:
    """A matrix of rows as one of columns, and whether it is the transposed of what was meant."""
    batch = strides[0] if len(shape) == 3 and shape[0] > 1 else 0
    (rows, columns), (down, across) = shape[-2:], strides[-2:]
    leading = down if rows > 1 else columns
    if (columns == 1 or across == 1) and columns <= leading <= _MOST:
        return Matrix(columns, rows, leading, batch), False
    leading = across if columns > 1 else rows
    if (rows == 1 or down == 1) and rows <= leading <= _MOST:
        return Matrix(rows, columns, leading, batch), True
    return None


def _added(
    added: TensorLayout | None, result: TensorLayout, beta: float, inner: int
) -> tuple[Matrix | None, bool]:
    """C, and whether it is the result's memory and what is added a bias instead."""
    own = _columns(result.shape, result.strides)
    if added is None:
        return (own[0] if own else None), False
    if added.shape == result.shape and 0 not in added.strides:
        found = _columns(added.shape, added.strides)
        return (found[0] if found and not found[1] else None), False
    # As PyTorch: products with a dimension of one element are not trusted with a bias.
    is_row = added.shape[-1] == result.shape[-1] > 1 and added.strides[-1] == 1
    is_row = is_row and all(n == 1 or s == 0 for n, s in _before_last(added))
    fits = is_row and len(result.shape) == 2 and beta == 1.0 and inner > 1
    return (own[0] if own and fits else None), True


def _before_last(layout: TensorLayout) -> list[tuple[int, int]]:
    return list(zip(layout.shape[:-1], layout.strides[:-1], strict=True))


# ---- the library ---------------------------------------------------------------------------------


class LibraryRefusal(Exception):
    """The library does not do what it was asked."""


class BlasLibrary:
    """cuBLASLt's functions, and a handle for one device."""

    def __init__(self, functions: Any) -> None:
        self.functions = functions
        self.handle = ctypes.c_void_p()
        self.call("Create", ctypes.byref(self.handle))
        self.shared = functools.lru_cache(maxsize=1024)(self._chosen)

    def plan(self, wanted: Multiplication, *, tf32: bool) -> Planned | None:
        """An algorithm for a product; None where the library has none."""
        try:
            # What names a bias is its own: the address is part of it.
            return (self._chosen if wanted.bias else self.shared)(wanted, tf32)
        except (LibraryRefusal, AttributeError):
            return None

    def address(self, name: str) -> int:
        """Where one of the library's functions is."""
        return ctypes.cast(getattr(self.functions, f"cublasLt{name}"), ctypes.c_void_p).value or 0

    def call(self, name: str, *args: Any) -> None:
        """Call a function; LibraryRefusal where it does not do what it is asked."""
        if getattr(self.functions, f"cublasLt{name}")(*args):
            raise LibraryRefusal(name)

    def _chosen(self, wanted: Multiplication, tf32: bool) -> Planned:
        made = Planned(self, wanted)
        made.describe(_TF32 if tf32 and wanted.dtype == "float32" else _PLAIN)
        made.choose()
        return made


class Planned:
    """A product's descriptors, which live as long as this does, and its algorithm."""

    def __init__(self, library: BlasLibrary, wanted: Multiplication) -> None:
        self.library, self.wanted = library, wanted
        self.descriptor, *self.layouts = (ctypes.c_void_p() for _ in range(5))
        self.found = _Heuristic()
        held = [("MatmulDesc", self.descriptor), *(("MatrixLayout", x) for x in self.layouts)]
        weakref.finalize(self, _destroy, library.functions, held).atexit = False

    @property
    def workspace(self) -> int:
        """Bytes that the algorithm needs beside the matrices."""
        return int(self.found.workspace)

    def native(self, workspace: int) -> tuple[Any, ...]:
        """As the C runtime takes it; ``workspace`` is the place of that, or -1."""
        library, wanted = self.library, self.wanted
        return (
            self,
            library.address("Matmul"),
            library.address("MatmulDescSetAttribute"),
            library.handle.value,
            self.descriptor.value,
            tuple(layout.value for layout in self.layouts),
            bytes(self.found.algorithm),
            workspace,
            self.workspace,
            wanted.beta,
            wanted.alpha,
            wanted.roles,
            1 if wanted.bias else -1,
        )

    def describe(self, compute: int) -> None:
        """Tell the library of the product and its matrices."""
        wanted, call = self.wanted, self.library.call
        call("MatmulDescCreate", ctypes.byref(self.descriptor), compute, _TYPES["float32"])
        for attribute, is_on in zip((_TRANSPOSED_A, _TRANSPOSED_B), wanted.transposed, strict=True):
            self._set("MatmulDesc", self.descriptor, attribute, ctypes.c_int32(is_on))
        if wanted.bias:
            self._set("MatmulDesc", self.descriptor, _EPILOGUE, ctypes.c_int32(_ADDS_BIAS))
        matrices = wanted.a, wanted.b, wanted.c, wanted.d
        for layout, matrix in zip(self.layouts, matrices, strict=True):
            sizes = (ctypes.c_uint64(matrix.rows), ctypes.c_uint64(matrix.columns))
            leading = ctypes.c_int64(matrix.leading)
            kind = _TYPES[wanted.dtype]
            call("MatrixLayoutCreate", ctypes.byref(layout), kind, *sizes, leading)
            if wanted.count > 1:
                self._set("MatrixLayout", layout, _BATCH, ctypes.c_int32(wanted.count))
                self._set("MatrixLayout", layout, _BATCH_STRIDE, ctypes.c_int64(matrix.batch))

    def choose(self) -> None:
        """Ask for the algorithm that the library expects to be the fastest."""
        asked, count, call = ctypes.c_void_p(), ctypes.c_int(), self.library.call
        call("MatmulPreferenceCreate", ctypes.byref(asked))
        try:
            most = ctypes.c_uint64(WORKSPACE)
            self._set("MatmulPreference", asked, _MOST_WORKSPACE, most)
            a, b, c, d = self.layouts
            given = (self.library.handle, self.descriptor, a, b, c, d, asked)
            found = (ctypes.byref(self.found), ctypes.byref(count))
            call("MatmulAlgoGetHeuristic", *given, 1, *found)
        finally:
            call("MatmulPreferenceDestroy", asked)
        if not count.value or self.found.state:
            raise LibraryRefusal("MatmulAlgoGetHeuristic")

    def _set(self, kind: str, of: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self.library.call(f"{kind}SetAttribute", of, attribute, ctypes.byref(value), size)


def _destroy(functions: Any, held: Sequence[tuple[str, ctypes.c_void_p]]) -> None:
    for kind, made in held:
        if made.value:
            getattr(functions, f"cublasLt{kind}Destroy")(made)


@functools.cache
def library_of(index: int) -> BlasLibrary | None:
    """The library for a device; None where it is not loaded."""
    import torch

    with torch.cuda.device(index):
        return open_library(_loaded)


def open_library(find: Callable[[], Any]) -> BlasLibrary | None:
    """The library for the current device; None where its functions are not found."""
    try:
        return BlasLibrary(find())
    except (OSError, AttributeError, LibraryRefusal):
        return None


def _loaded() -> Any:
    """The library that this process's PyTorch has loaded."""
    import torch

    major = (torch.version.cuda or "").partition(".")[0]
    return ctypes.CDLL(f"libcublasLt.so.{major}", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
