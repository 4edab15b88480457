"""What limits fusion: which values a kernel takes in, and which are computed again.

Work is counted in instructions for an element of float32, as in the table of operations
(``ir/ops.py``). LLVM takes about 35 us for each instruction of a whole register
(docs/decisions/0036), so what a kernel holds is limited by the time that compiling it takes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from dovetail.ir.target import Target


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of plans for one target."""

    # The time of the code generator.
    members: int = 48  # values that join one cluster
    values: int = 64  # of a kernel, before it takes no more from clusters that it alone reads
    functions: float = 90.0  # instructions of different functions of math in a kernel: about 3 ms
    window: int = 12  # clusters that a value tries to join: the first it could, and the latest
    looks: int = 200  # expressions looked at to decide whether one value may join
    pieces: int = 16  # that a loop is cut into
    copied: int = 400  # instructions that cutting a loop may add: about 14 ms
    written_out: int = 96  # instructions that a short axis may become: about 3 ms
    # Work against memory, as it was chosen on one x86-64-v4: a store and a load of an element are
    # set against these.
    expensive: float = 8.0  # is better stored and loaded than done twice, or on one thread
    inline: float = 4.0  # may be done again in every kernel that reads it, rather than stored
    again: float = 16.0  # a kernel may do again at other points than its own
    often: int = 8  # readings of a value for which it is stored however cheap it is
    # Elements of an axis.
    cut: int = 64  # that are worth cutting an axis: four of the widest vectors
    interleaved: int = 4  # by which memory may be interleaved for an axis to be written out
    # Threads.
    parallel: int = 16  # points that are to be left for them where a parallel axis is cut


@functools.cache
def limits_of(target: Target) -> Limits:
    """The limits for a target."""
    return Limits(parallel=target.cores)
