"""What limits fusion: which values a kernel takes in, and which are computed again.

Work is counted in instructions for an element of float32, as in the table of operations
(``ir/ops.py``). LLVM takes about 35 us for each instruction of a whole register
(docs/decisions/0036), so what a kernel holds is limited by the time that compiling it takes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from dovetail.ir.target import Target
from dovetail.schedule.cpu.cut import FEW_SCANS, LONG_SCAN


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of plans for one target."""

    # The time of the code generator.
    members: int = 48  # values that join one cluster
    values: int = 64  # of a kernel, before it takes no more from clusters that it alone reads
    functions: float = 90.0  # instructions of different functions of math in a kernel: about 3 ms
    near: int = 12  # clusters that a value tries to join: the first it could, and the latest
    looks: int = 200  # expressions looked at to decide whether one value may join
    pieces: int = 16  # that a loop is cut into
    copied: int = 400  # instructions that cutting a loop may add: about 14 ms
    written_out: int = 96  # instructions that a short axis may become: about 3 ms
    # Work against memory, as it was chosen on one x86-64-v4: a store and a load of an element are
    # set against these.
    expensive: float = 8.0  # is better stored and loaded than done twice, or on one thread
    inline: float = 4.0  # may be done again in every kernel that reads it, rather than stored
    again: float = 16.0  # a kernel may do again at other points than its own
    window: float = 8.0  # may be done again at the places that a window reads, for each element
    places: int = 3  # of one value that make a window; two are mostly cases that exclude each other
    rounded: int = 4  # a division or a square root, where a window does it again
    often: int = 8  # readings of a value for which it is stored however cheap it is
    # Elements of an axis.
    cut: int = 64  # that are worth cutting an axis: four of the widest vectors
    interleaved: int = 4  # by which memory may be interleaved for an axis to be written out
    # Threads.
    parallel: int = 16  # points that are to be left for them where a parallel axis is cut
    few_scans: int = FEW_SCANS  # beside each other leave threads little to share, if they are long
    long_scan: int = LONG_SCAN  # elements of a long one
    # Whether a kernel keeps an expensive value in the memory of its result until it needs it again.
    parks: bool = True


@functools.cache
def limits_of(target: Target) -> Limits:
    """The limits for a target."""
    return BLOCKS if target.warp else Limits(parallel=target.cores)


# For a GPU: an element that goes to memory and back takes as long as a hundred instructions, a
# loop is no worse for a mask, and a block of threads keeps a row in its registers. Windows: batch
# norm and relu at the nine places of a max pool took an H200 3.1 ps for each, and 1.3 ps an element
# where they were stored, which is some 24 instructions if a square root is 20 (decision 243).
BLOCKS = Limits(
    members=64,
    values=96,
    functions=float("inf"),
    pieces=0,
    written_out=0,
    expensive=64.0,
    inline=24.0,
    again=64.0,
    window=24.0,
    rounded=20,
    interleaved=0,
    few_scans=0,
    parks=False,
)
