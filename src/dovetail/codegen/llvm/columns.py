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
        # What a lane of a vector holds, and how many steps that is.
        self.element, self.together = ("int32", 2) if tile.pairs else (self.stored, 1)
        if tile.packed:
            steps = tile.depth or of.sum.extent
            assert isinstance(steps, int)
            count = -(-steps // self.together) * self.width
            self.panel = array(r.c, "panel", count, self.element)
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
                offset = c.op("mul", self._half(within), self._index(self.width))
                place = memory.address(c, place, offset, self.element)
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

    def _half(self, steps: Val) -> Val:
        """How many whole elements of a column some steps are."""
        return self.c.op("lshr", steps, self._index(1)) if self.tile.pairs else steps

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
        elif self.tile.pairs:
            self._pairs_of_rows(columns, steps)
        else:
            self._rows(columns, steps)

    def _transposed(self, columns: Span, steps: Span) -> None:
        of, r, c, stored = self.of, self.r, self.c, self.stored
        r.axes[of.sum.name] = steps[0]
        count = c.op("sub", steps[1], steps[0])
        whole = self._half(count)
        step = r.size(of.right.index.stride(of.columns.name))
        lanes = min(self.lanes, _BAND)
        given = self.element, stored

        def band(i: Val) -> None:
            r.axes[of.columns.name] = c.op("add", columns[0], i)
            source = memory.base(r, of.right.buffer, of.right.index, "")
            left = c.op("sub", columns[1], r.axes[of.columns.name])
            to = memory.address(c, self.panel, i, self.element)
            transpose(c, given, lanes, (source, step, left, whole, to), self.width)

        c.each(self._index(0), self._index(self.width), lanes, band)
        if self.tile.pairs:
            self._last_elements(columns, steps, whole)

    def _last_elements(self, columns: Span, steps: Span, whole: Val) -> None:
        """The last step of an odd number, with zeros beside it."""
        of, r, c = self.of, self.r, self.c
        if isinstance(of.sum.extent, int) and of.sum.extent % 2 == 0:
            return
        r.axes[of.sum.name] = c.op("sub", steps[1], self._index(1))
        start = c.op("mul", whole, self._index(self.width))

        def element(n: Val) -> None:
            r.axes[of.columns.name] = n
            source = memory.base(r, of.right.buffer, of.right.index, "")
            value = c.convert("zext", memory.load_scalar(c, self.stored, source, None), "int32")
            to = c.op("add", start, c.op("sub", n, columns[0]))
            memory.store_vector(c, value, memory.address(c, self.panel, to, "int32"), None)

        odd = c.op("and", c.op("sub", steps[1], steps[0]), self._index(1))
        when(c, c.compare("icmp ne", odd, self._index(0)), lambda: c.each(*columns, 1, element))

    def _pairs_of_rows(self, columns: Span, steps: Span) -> None:
        """Two rows interleaved; the last of an odd number with zeros."""
        of, r, c = self.of, self.r, self.c
        masks = self._masks(columns) or [None] * self.tile.vectors
        r.axes[of.columns.name] = columns[0]

        def half(k: Val, j: int) -> Val:
            r.axes[of.sum.name] = k
            source = memory.base(r, of.right.buffer, of.right.index, "")
            place = moved(r, source, 1, j * self.lanes, self.stored)
            value = memory.load_dense(c, self.stored, place, masks[j], self.lanes)
            return c.convert("zext", value, "int32")

        def rows(k: Val, *, both: bool = True) -> None:
            number = self._half(c.op("sub", k, steps[0]))
            start = c.op("mul", number, self._index(self.width))
            to = memory.address(c, self.panel, start, "int32")
            for j in range(self.tile.vectors):
                value = half(k, j)
                if both:
                    upper = half(c.op("add", k, self._index(1)), j)
                    upper = c.op("shl", upper, c.const(16, "int32", self.lanes))
                    value = c.op("or", value, upper)
                place = memory.address(c, to, self._index(j * self.lanes), "int32")
                memory.store_vector(c, value, place, None)

        count = c.op("sub", steps[1], steps[0])
        even = c.op("add", steps[0], c.op("and", count, self._index(-2)))
        c.each(steps[0], even, 2, rows)
        if isinstance(of.sum.extent, int) and of.sum.extent % 2 == 0:
            return
        when(c, c.compare("icmp slt", even, steps[1]), lambda: rows(even, both=False))

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
