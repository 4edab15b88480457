"""What a call became, for a processor: left to a library, or with its long reductions cut."""

from __future__ import annotations

from functools import cache

from dovetail.ir.target import Target
from dovetail.lower.calls import Adapt, Lowered
from dovetail.schedule.cpu.cut import cut
from dovetail.schedule.cpu.library import library_reason


@cache
def adapter(target: Target) -> Adapt:
    """What makes of a lowered call what this target computes; once for all calls alike."""

    def adapt(found: Lowered) -> Lowered:
        if found.refusal:
            return found
        known = found.adapted.get(adapt)
        if known is None:
            reason = library_reason(found.contractions, target)
            known = found.adapted[adapt] = Lowered(reason) if reason else cut(found, target)
        return known

    return adapt
