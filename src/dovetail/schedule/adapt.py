"""What a call became, for a target: left to a library, or with its long reductions cut."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

from dovetail.ir.dtypes import FLOATS
from dovetail.ir.target import Target
from dovetail.lower.calls import Adapt, Lowered
from dovetail.lower.values import Pointwise
from dovetail.schedule.cpu import cut as cpu_cut
from dovetail.schedule.cpu import library as cpu_library
from dovetail.schedule.gpu import cut as gpu_cut
from dovetail.schedule.gpu import library as gpu_library
from dovetail.schedule.parts import cut
from dovetail.schedule.way import Way

MEASURED = "a library was measured to take less time"


@cache
def adapter(target: Target, *, libraries: bool = True) -> Adapt:
    """What makes of a lowered call what this target computes; once for all calls alike.

    Without ``libraries`` nothing is left to one that the runtime has no kernel of its own for.
    """
    where = gpu_cut.place_to_cut if target.warp else cpu_cut.place_to_cut

    def adapt(found: Lowered, candidate: str) -> Lowered:
        if found.refusal:
            return found
        key = adapt, candidate
        known = found.adapted.get(key)
        if known is None:
            chosen = Way.parse(candidate)
            may = libraries or served(found)
            reason = _reason(found, target, chosen) if may else ""
            known = Lowered(reason) if reason else _in_kernels(found, chosen)
            found.adapted[key] = known
        return known

    def _in_kernels(found: Lowered, chosen: Way | None) -> Lowered:
        made = cut(found, partial(where, target=target))
        tile = chosen.tile if chosen is not None else ()
        return replace(made, tile=tile, adapted={}) if tile else made

    return adapt


def _reason(found: Lowered, target: Target, chosen: Way | None) -> str:
    """Why a library computes a call, by measurement where there is one, else by rules."""
    if chosen is None:
        return library_reason(found, target)
    return MEASURED if chosen.library else ""


def library_reason(found: Lowered, target: Target) -> str:
    """Why a library had better compute what a call became; empty where kernels had."""
    computed = [value for value in found.made if isinstance(value, Pointwise)]
    told = [value.library for value in computed]
    if not target.warp:
        told += [value.cpu_library for value in computed]
    if reason := next(filter(None, told), ""):
        return reason
    if target.warp:
        return gpu_library.library_reason(found, target)
    return cpu_library.library_reason(found.contractions, target)


def served(found: Lowered) -> bool:
    """Whether a kernel of the runtime's own computes such a product, wherever it runs."""
    if len(found.contractions) != 1:
        return False
    (value,) = found.contractions
    plain = all(factor.is_plain for factor in value.factors)
    return bool(value.shape) and plain and all(each.dtype in FLOATS for each in value.reads)
