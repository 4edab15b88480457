"""One piece of memory for the values between a program's steps, and where in it each of them lies.

It is made once for a run and given back at its end, where making each value's own would cost the
host a microsecond or two. What is handed out, and what calls from Python take or make, has memory
of its own beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail.ir.memory import Lifetime, aligned, plan_lifetimes

ALIGNMENT = 512  # bytes; where PyTorch's allocator begins what it hands out
# One piece is taken as long as all memory is no more than this times what it is with pieces apart.
MOST = 1.03
SMALL = 1 << 20  # bytes that are never too many


@dataclass(frozen=True)
class Arena:
    """How many bytes there are, and where each value begins."""

    bytes: int
    offsets: Mapping[str, int]


def plan_arena(
    inside: Sequence[Lifetime], apart: Sequence[Lifetime], given: int = 0
) -> Arena | None:
    """Where values lie in one piece; None where they would need more memory so than each apart.

    ``apart`` are the values that have memory of their own, whatever is decided, and inputs that are
    given back after their last use; ``given`` bytes are of those that are not.
    """
    if not inside:
        return None
    plan = plan_lifetimes(inside)
    most = plan_lifetimes([*inside, *apart]).bound
    extra = plan.peak + plan_lifetimes(apart).bound - most
    if extra > max((MOST - 1) * (most + given), SMALL):
        return None
    return Arena(plan.peak, plan.offsets)


def lifetime(name: str, size: int, first: int, last: int) -> Lifetime:
    """A value's, with bytes that the next one can begin behind."""
    return Lifetime(name, aligned(size, ALIGNMENT), first, last)
