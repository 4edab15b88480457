"""Matrix products that the C runtime calls between launches, into memory that exists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail import _native
from dovetail.backends.cuda.attention import attention_functions
from dovetail.backends.cuda.cublas import BlasLibrary, Planned, described
from dovetail.backends.cuda.program import CudaProgram
from dovetail.backends.support import FUSED_ATTENTION
from dovetail.ir import Ref
from dovetail.ir.dtypes import COMPUTE, FLOATS
from dovetail.lower.values import LibraryCall, Value
from dovetail.runtime.sized import TensorLayout

# Products of PyTorch's, with the numbers that scale their terms.
_PRODUCTS = {f"aten.{name}.default": name for name in ("mm", "bmm", "addmm", "baddbmm")}
_SCALED = ("beta", "alpha")


@dataclass(frozen=True)
class LibraryCalls:
    """What C can call of PyTorch's, and cuBLASLt where it may be called."""

    names: Sequence[str] = ()
    on_gpu: bool = True
    library: BlasLibrary | None = None
    tf32: bool = False  # whether factors in float32 may be rounded
    attention: Mapping[str, int] = field(default_factory=dict)  # functions, by their names


def library_calls(library: BlasLibrary | None, tf32: bool | None) -> LibraryCalls:
    """What this process's PyTorch offers; ``tf32`` is None where settings want it alone."""
    names = _native.gpu_products(True)
    if tf32 is None:
        return LibraryCalls(names)
    return LibraryCalls(names, True, library, tf32, attention_functions())


def multiplied(program: CudaProgram) -> frozenset[str]:
    """The types of a program's products and of its attention."""
    calls = (step for step in program.steps if isinstance(step, LibraryCall))
    names = _PRODUCTS.keys() | FUSED_ATTENTION
    return frozenset(step.results[0].dtype for step in calls if step.call.op in names)


@dataclass(frozen=True, eq=False)
class ProductStep:
    """A product: its operands, the result first, and what cuBLASLt is told, where it does it."""

    name: str
    operands: tuple[Value, ...]
    layouts: tuple[TensorLayout, ...]
    beta: float
    alpha: float
    planned: Planned | None = field(default=None)


def product_of(
    step: LibraryCall,
    find: Callable[[Ref], Value | None],
    layout: Callable[[Value], TensorLayout],
    calls: LibraryCalls,
) -> ProductStep | None:
    """A call as a product; None where it has to go through Python."""
    call, name = step.call, _PRODUCTS.get(step.call.op, "")
    if name not in calls.names or len(step.results) != 1 or not call.args:
        return None
    scales = [call.kwargs.get(key, 1) for key in _SCALED]
    plain = all(isinstance(s, int | float) for s in scales)
    given = [find(arg) if isinstance(arg, Ref) else None for arg in call.args]
    if None in given or not plain or call.kwargs.keys() - set(_SCALED):
        return None
    (result,) = step.results
    values = (result, *(value for value in given if value is not None))
    if {v.dtype for v in values} != {result.dtype} or COMPUTE.get(result.dtype) not in FLOATS:
        return None
    layouts = tuple(layout(v) for v in values)
    if any(0 in each.shape or len(each.shape) > 3 for each in layouts):
        return None
    beta, alpha = map(float, scales)
    planned = _planned(layouts, beta, alpha, calls)
    return ProductStep(name, values, layouts, beta, alpha, planned)


def _planned(
    layouts: Sequence[TensorLayout], beta: float, alpha: float, calls: LibraryCalls
) -> Planned | None:
    wanted = described(layouts, beta, alpha) if calls.library is not None else None
    if wanted is None or calls.library is None:
        return None
    return calls.library.plan(wanted, tf32=calls.tf32)


def native_product(
    step: ProductStep,
    on_gpu: bool,
    places: Sequence[tuple[int, int]],
    workspace: int,
) -> tuple[Any, ...]:
    """As the C runtime takes it; ``places`` are the operands' places and offsets in elements."""
    operands = tuple(
        (*place, layout.shape, layout.strides)
        for place, layout in zip(places, step.layouts, strict=True)
    )
    first = step.layouts[0]
    kind = (f"dtype_{first.dtype}", first.item, on_gpu)
    planned = None if step.planned is None else step.planned.native(workspace)
    return step.name, *kind, operands, step.beta, step.alpha, planned
