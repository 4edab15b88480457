"""A schedule for a GPU, as data: what a block of threads does."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.ir.affine import mul, product
from dovetail.ir.kernel import Kernel
from dovetail.ir.size import Dim
from dovetail.schedule.tiles import count_parts


@dataclass(frozen=True, slots=True)
class BlockSchedule:
    """How a kernel is done by blocks of threads of a GPU.

    A block has ``rows`` points of the parallel axes and, at a time, ``columns`` points of a loop's
    axes, or of the parallel axes ``along``. A ``persistent`` block reads a row once, and every loop
    finds it in registers; where a loop has more columns, they are written out step by step. A block
    with axes ``walked`` goes through all their points, ``rows`` at a time, and keeps what it adds
    to memory in registers until the last.
    """

    target: str
    rows: int
    columns: int = 0  # 0: no second dimension
    warps: int = 4
    persistent: bool = False
    along: tuple[str, ...] = ()
    walked: tuple[str, ...] = ()
    wide: bool = False  # places in memory are 64-bit numbers
    online: bool = False  # a maximum and the sum of powers relative to it are found in one loop
    short: bool = False  # what is computed is rounded to 16 bits, and functions need no more
    cost: int = 0  # picoseconds of the kernel; a size that is not known counts as UNKNOWN_SIZE

    def units(self, kernel: Kernel) -> Dim:
        """How many blocks a kernel has; none where it does nothing."""
        if not kernel.loops:
            return 0
        if self.walked:
            return product(a.extent for a in kernel.axes if a.name not in self.walked)
        rows = product(a.extent for a in kernel.axes if a.name not in self.along)
        columns = product(a.extent for a in kernel.axes if a.name in self.along)
        return mul(
            count_parts(rows, self.rows), count_parts(columns, self.columns) if self.along else 1
        )
