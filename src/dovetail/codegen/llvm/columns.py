"""The columns of a product: read where they lie, or from a copy on the stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dovetail.codegen.llvm import memory
from dovetail.codegen.llvm.emit import TYPES, Code, Val
from dovetail.codegen.llvm.tile import Span
from dovetail.codegen.llvm.transpose import transpose
from dovetail.ir.kernel import Load
from dovetail.ir.kernel_product import KernelProduct
from dovetail.ir.size import Dim
from dovetail.schedule.tiles import ProductTile

if TYPE_CHECKING:
    from dovetail.codegen.llvm.render import Renderer

_BAND = 8  # columns transposed together: their cache lines stay, even if a power of two apart


def array(c: Code, name: str, count: int, dtype: str) -> Val:
    """Memory on the stack."""
    c.slots.append(f"  %{name} = alloca [{count} x {TYPES[dtype]}], align 64")
    return Val(f"%{name}", "ptr")


def when(c: Code, condition: Val, then: Callable[[], None]) -> None:
    """Code that runs where a condition holds."""
    yes, done = c.label("yes"), c.label("done")
    c.line(f"br i1 {condition.text}, label %{yes}, label %{done}")
    c.start(yes)
    shared, c.shared = c.shared, dict(c.shared)
    then()
    c.shared = shared
    c.block(done)


def stored_type(r: Renderer, load: Load) -> str:
    """What elements are in memory."""
    dtype = r.dtypes[load.buffer]
    return memory.STORED.get(dtype, dtype)


def moved(r: Renderer, place: Val, stride: Dim, count: int, stored: str) -> Val:
    """A place ``count`` steps further."""
    c = r.c
    if not count or stride == 0:
        return place
    if isinstance(stride, int):
        return memory.address(c, place, c.const(stride * count, "int64"), stored)
    offset = c.op("mul", r.size(stride), c.const(count, "int64"))
    return memory.address(c, place, offset, stored)


class Columns:
    """The operand that moves along the columns, panel by panel."""

    def __init__(self, r: Renderer, of: KernelProduct, tile: ProductTile) -> None:
        self.r, self.c, self.of, self.tile = r, r.c, of, tile
        self.lanes, self.width = r.lanes, tile.vectors * r.lanes
        self.stored = stored_type(r, of.right)
        if tile.packed:
            steps = tile.depth or of.sum.extent
            assert isinstance(steps, int)
            self.panel = array(r.c, "panel", steps * self.width, self.stored)
            self.kept = r.c.slot("int64", 1)  # which panel is there
            r.c.put(self.kept, r.c.const(-1, "int64"))

    def _index(self, number: int) -> Val:
        return self.c.const(number, "int64")

    def read(self, columns: Span, step: Val) -> tuple[Val, Dim, list[Val | None]]:
        """Where columns are read from, how far a step moves, and which lanes there are."""
        of, r, c = self.of, self.r, self.c
        every: list[Val | None] = [None] * self.tile.vectors
        if self.tile.packed:
            place = self.panel
            if step.text != "0":
                depth = self.tile.depth
                within = c.op("urem", step, self._index(depth)) if depth else step
                offset = c.op("mul", within, self._index(self.width))
                place = memory.address(c, place, offset, self.stored)
            return place, self.width, every
        r.axes[of.columns.name], r.axes[of.sum.name] = columns[0], step
        place = memory.base(r, of.right.buffer, of.right.index, "")
        place = c.new(f"freeze ptr {place.text}", "ptr", 1)
        return place, of.right.index.stride(of.sum.name), self._masks(columns) or every

    def _masks(self, columns: Span) -> list[Val | None]:
        """The lanes of each vector that are columns; nothing where all are."""
        extent, c, lanes = self.of.columns.extent, self.c, self.lanes
        if isinstance(extent, int) and extent % self.width == 0:
            return []
        count = c.op("sub", columns[1], columns[0])
        found: list[Val | None] = []
        for j in range(self.tile.vectors):
            left = c.op("sub", count, self._index(j * lanes))
            found.append(c.compare("icmp slt", memory.lane_numbers(lanes), c.splat(left, lanes)))
        return found

    # ---- columns brought together ----------------------------------------------------------

    def bring_once(self, place: Val, columns: Span) -> None:
        """Pack a panel, unless the unit before had the same."""
        c = self.c
        new = c.compare("icmp ne", place, c.get(self.kept, "int64", 1))

        def pack() -> None:
            c.put(self.kept, place)
            self.bring(columns, (self._index(0), self.r.size(self.of.sum.extent)))

        when(c, new, pack)

    def bring(self, columns: Span, steps: Span) -> None:
        """Bring some steps of a panel to the stack; lanes that are no columns hold anything."""
        index = self.of.right.index
        if index.stride(self.of.sum.name) == 1 and index.stride(self.of.columns.name) != 1:
            self._transposed(columns, steps)
        else:
            self._rows(columns, steps)

    def _transposed(self, columns: Span, steps: Span) -> None:
        of, r, c, stored = self.of, self.r, self.c, self.stored
        r.axes[of.sum.name] = steps[0]
        count = c.op("sub", steps[1], steps[0])
        step = r.size(of.right.index.stride(of.columns.name))
        lanes = min(self.lanes, _BAND)

        def band(i: Val) -> None:
            r.axes[of.columns.name] = c.op("add", columns[0], i)
            source = memory.base(r, of.right.buffer, of.right.index, "")
            left = c.op("sub", columns[1], r.axes[of.columns.name])
            to = memory.address(c, self.panel, i, stored)
            transpose(c, stored, lanes, (source, step, left, count, to), self.width)

        c.each(self._index(0), self._index(self.width), lanes, band)

    def _rows(self, columns: Span, steps: Span) -> None:
        of, r, c, stored = self.of, self.r, self.c, self.stored
        every: list[Val | None] = [None] * self.tile.vectors
        masks = self._masks(columns) or every
        r.axes[of.columns.name] = columns[0]
        across, lanes = of.right.index.stride(of.columns.name), self.lanes

        def row(k: Val) -> None:
            r.axes[of.sum.name] = k
            source = memory.base(r, of.right.buffer, of.right.index, "")
            offset = c.op("mul", c.op("sub", k, steps[0]), self._index(self.width))
            to = memory.address(c, self.panel, offset, stored)
            for j, mask in enumerate(masks):
                place = moved(r, source, across, j * lanes, stored)
                if across == 1:
                    value = memory.load_dense(c, stored, place, mask, lanes)
                else:
                    offsets = memory.times(r, memory.lane_numbers(lanes), across)
                    value = memory.gather(
                        c, stored, memory.address(c, place, offsets, stored), mask
                    )
                memory.store_vector(
                    c, value, memory.address(c, to, self._index(j * lanes), stored), None
                )

        c.each(*steps, 1, row)
