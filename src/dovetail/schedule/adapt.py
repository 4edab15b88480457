"""What a call became, for a target: left to a library, or with its long reductions cut."""

from __future__ import annotations

from functools import cache, partial

from dovetail.ir.dtypes import FLOATS
from dovetail.ir.target import Target
from dovetail.lower.calls import Adapt, Lowered
from dovetail.schedule.cpu import cut as cpu_cut
from dovetail.schedule.cpu import library as cpu_library
from dovetail.schedule.gpu import cut as gpu_cut
from dovetail.schedule.gpu import library as gpu_library
from dovetail.schedule.parts import cut


@cache
def adapter(target: Target, *, libraries: bool = True) -> Adapt:
    """What makes of a lowered call what this target computes; once for all calls alike.

    Without ``libraries`` nothing is left to one that the runtime has no kernel of its own for.
    """
    where = gpu_cut.place_to_cut if target.warp else cpu_cut.place_to_cut

    def adapt(found: Lowered) -> Lowered:
        if found.refusal:
            return found
        known = found.adapted.get(adapt)
        if known is None:
            reason = library_reason(found, target) if libraries or served(found) else ""
            known = Lowered(reason) if reason else cut(found, partial(where, target=target))
            found.adapted[adapt] = known
        return known

    return adapt


def library_reason(found: Lowered, target: Target) -> str:
    """Why a library had better compute what a call became; empty where kernels had."""
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
