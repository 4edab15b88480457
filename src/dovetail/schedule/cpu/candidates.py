"""The ways to compute a call on a processor that are worth measuring, and which the rules take.

A handful for each call that is a product, a convolution or attention: PyTorch's library, the kernel
that the rules schedule, and the same with other panels, other tiles or Winograd's algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dovetail.backend import Candidates
from dovetail.ir.call import OpCall, Ref
from dovetail.ir.dtypes import COMPUTE, FLOATS
from dovetail.ir.target import Target
from dovetail.lower.calls import lowered_alone
from dovetail.lower.contraction import Contraction
from dovetail.schedule.cpu.layout import library_seconds
from dovetail.schedule.cpu.library import library_reason
from dovetail.schedule.cpu.pack_convolution import (
    PANEL_WIDTHS,
    WINOGRAD_ERRORS,
    Convolution,
    can_be_packed,
    convolution_of_call,
    own_choice,
    panel_width,
    winograd_choice,
)
from dovetail.schedule.cpu.packing import packed_width
from dovetail.schedule.cpu.packing import panel_width as matrix_panels
from dovetail.schedule.cpu.product import Sizes, best_shapes
from dovetail.schedule.tiled import is_matrix_product
from dovetail.schedule.way import KERNEL, LIBRARY, Way

_FEW = 2  # of tiles, and of a convolution's panels, beside those that the rules take
_PANELS = (64, 32, 16)  # columns, of a matrix's
# Multiply-adds below which there is too little to measure: 4 us in a kernel, less than a call.
_LEAST = 1 << 17


def candidates(
    call: OpCall, target: Target, once: frozenset[str], error: float
) -> Candidates | None:
    """The ways to compute a call; None where there is one alone."""
    if "fma" not in target.features:
        return None
    found = convolution_of_call(call, target)
    if found is not None and can_be_packed(call, found, target):
        return _convolution(call, found, target, once, error)
    lowered = lowered_alone(call)
    if lowered.refusal or not lowered.contractions:
        return None
    return _product(call, lowered.contractions, target, once)


def _convolution(
    call: OpCall, found: Convolution, target: Target, once: frozenset[str], error: float
) -> Candidates | None:
    """Of a convolution whose weights are laid out for a kernel, if one is to compute it."""
    weight = call.args[1]
    assert isinstance(weight, Ref)
    constant = weight.name in once
    own = own_choice(call, target, constant=constant, error=error)
    known = library_seconds(call, target, constant=constant)
    if own is None or known is None:
        return None
    size = winograd_choice(found, target, error)[1] if constant else 0
    mine = Way(winograd=size)
    ways = [LIBRARY, mine]
    if constant:
        ways += _winograd(found, error)
    ways += [Way(panels=width) for width in _panels(found, target, varies=not constant)]
    taken = mine if own <= known[1] else LIBRARY
    estimates = ((str(LIBRARY), known[1]), (str(mine), own))
    return _listed(taken, "it is modelled to take less time", ways, estimates)


def _winograd(found: Convolution, error: float) -> Iterator[Way]:
    """Winograd's algorithm where the error allows it, and sums of products as they are."""
    yield KERNEL
    plain = not found.transposed and found.groups == 1 and found.weight.shape[2:] == (3, 3)
    if plain and {*found.steps, *found.holes} == {1}:
        yield from (Way(winograd=size) for size, e in WINOGRAD_ERRORS.items() if e <= error)


def _panels(found: Convolution, target: Target, *, varies: bool) -> list[int]:
    """Columns of panels other than the rules'."""
    mine = panel_width(found, target, varies=varies)
    fit = [n for n in PANEL_WIDTHS if n != mine and mine and found.outputs % n == 0]
    return [n for n in fit if n < found.outputs][:_FEW]


def _product(
    call: OpCall, contractions: tuple[Contraction, ...], target: Target, once: frozenset[str]
) -> Candidates | None:
    """Of a product of matrices, of several, or attention."""
    packed = packed_width(call, target, once)
    reason = "" if packed else library_reason(contractions, target)
    if not all(_is_measurable(each) for each in contractions):
        return Candidates(str(LIBRARY if reason else KERNEL), reason)
    ways = [LIBRARY, KERNEL]
    if len(contractions) == 1:
        ways += _other_kernels(call, contractions[0], target, once)
    taken = LIBRARY if reason else KERNEL
    return _listed(taken, reason or "a kernel joins it with what follows", ways, ())


def _is_measurable(value: Contraction) -> bool:
    """Whether it is a product, of known sizes, of floating-point numbers."""
    if not all(isinstance(size, int) and size for size in value.source_shape):
        return False
    plain = all(factor.is_plain for factor in value.factors)
    work = math.prod(map(int, value.source_shape))  # type: ignore[arg-type]
    return plain and work >= _LEAST and all(COMPUTE.get(r.dtype) in FLOATS for r in value.reads)


def _other_kernels(
    call: OpCall, value: Contraction, target: Target, once: frozenset[str]
) -> Iterator[Way]:
    """Other panels of a constant matrix, or other tiles."""
    columns = int(value.extent("columns"))  # type: ignore[arg-type]
    if packed_width(call, target, once):
        mine = matrix_panels(columns, target)
        yield Way(panels=0)
        fit = (n for n in _PANELS if n != mine and columns % n == 0)
        yield from (Way(panels=n) for n in fit)
    elif is_matrix_product(value):
        extents = (value.extent(role) for role in ("rows", "columns", "sum", "batch"))
        shapes = best_shapes(Sizes(*map(int, extents)), target.lanes, target)  # type: ignore[arg-type]
        vectors = {shapes[0][1]}
        for shape in shapes:
            if shape[1] not in vectors and len(vectors) <= _FEW:
                vectors.add(shape[1])
                yield Way(tile=shape)


def _listed(
    taken: Way, reason: str, ways: list[Way], estimates: tuple[tuple[str, float], ...]
) -> Candidates:
    others = tuple(dict.fromkeys(str(way) for way in ways if way != taken))
    return Candidates(str(taken), reason, others, estimates)
