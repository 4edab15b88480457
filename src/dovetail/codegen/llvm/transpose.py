"""Bands of a matrix transposed in registers: rows become columns.

Rows are read in pieces of sixteen bytes, which the processors' shuffles work within. Pieces of
several rows stand side by side in a register, so that they are all transposed at once and none has
to cross to another place.
"""

from __future__ import annotations

from dovetail.codegen.llvm.emit import TYPES, Code, Val, vector_type
from dovetail.codegen.llvm.memory import address, load_dense
from dovetail.ir.dtypes import item_bytes

_PIECE = 16  # bytes


def transpose(
    c: Code, types: tuple[str, str], count: int, given: tuple[Val, ...], pitch: int
) -> None:
    """Transpose ``count`` rows.

    ``types``: of an element, and of what rows are counted in, of which an element may be two.

    ``given`` are the first row's address, how many elements behind it the next one starts, how many
    rows there are (past them the last one is read again), how many columns, and where to write.
    What was a column is written as a row, the next one ``pitch`` elements behind.
    """
    dtype, unit = types
    name = f"transpose.{TYPES[dtype]}.{count}.{pitch}"
    name += f".{TYPES[unit]}" if unit != dtype else ""
    if name not in c.functions:
        band = _Band(c.lanes, types, count, pitch)
        c.functions[name] = band.function(name)
        c.declared |= band.c.declared
    kinds = ("ptr", "i64", "i64", "i64", "ptr")
    listed = ", ".join(f"{kind} {v.text}" for kind, v in zip(kinds, given, strict=True))
    c.line(f"call void @{name}({listed})")


class _Band:
    """Such a band as a function of its own: kernels call it many times."""

    def __init__(self, lanes: int, types: tuple[str, str], count: int, pitch: int) -> None:
        self.c, self.count, self.pitch = Code(lanes), count, pitch
        self.dtype, self.unit = types
        self.piece = min(_PIECE // item_bytes(self.dtype), self.count)
        self.columns = Val("%columns", "int64")

    def function(self, name: str) -> str:
        """Its text."""
        c = self.c
        few, many, done = c.label("few"), c.label("many"), c.label("done")
        self.last = c.op("sub", Val("%rows", "int64"), c.const(1, "int64"))
        enough = c.compare("icmp sge", self.columns, c.const(self.piece, "int64"))
        c.line(f"br i1 {enough.text}, label %{many}, label %{few}")
        c.start(many)
        self._strips()
        c.line(f"br label %{done}")
        c.start(few)
        self._elements()
        c.block(done)
        c.line("ret void")
        head = (
            f"define private void @{name}"
            "(ptr %source, i64 %step, i64 %rows, i64 %columns, ptr %to) noinline #0 {"
        )
        return "\n".join([head, "entry:", *c.slots, *c.lines, "}"])

    def _row(self, number: Val) -> Val:
        number = self.c.intrinsic("smin", number, self.last)
        offset = self.c.op("mul", number, Val("%step", "int64"))
        return address(self.c, Val("%source", "ptr"), offset, self.unit)

    def _load(self, row: Val, column: Val, lanes: int) -> Val:
        """Elements of a row."""
        c, place = self.c, address(self.c, row, column, self.dtype)
        if self.unit == self.dtype:
            return load_dense(c, self.dtype, place, None, lanes)
        parts = lanes * item_bytes(self.dtype) // item_bytes(self.unit)
        raw, kind = load_dense(c, self.unit, place, None, parts), vector_type(self.dtype, lanes)
        return c.new(f"bitcast {raw.type} {raw.text} to {kind}", self.dtype, lanes)

    def _place(self, column: Val) -> Val:
        start = self.c.op("mul", column, self.c.const(self.pitch, "int64"))
        return address(self.c, Val("%to", "ptr"), start, self.dtype)

    def _strips(self) -> None:
        """A piece of each row at a time; the last ones may be read twice."""
        c, dtype = self.c, self.dtype
        rows = [self._row(c.const(n, "int64")) for n in range(self.count)]
        end = c.op("sub", self.columns, c.const(self.piece, "int64"))

        def strip(column: Val) -> None:
            column = c.intrinsic("smin", column, end)
            pieces = [self._load(row, column, self.piece) for row in rows]
            to = self._place(column)
            for n, value in enumerate(columns_of(c, pieces)):
                place = address(c, to, c.const(n * self.pitch, "int64"), dtype)
                text = f"store {value.type} {value.text}, ptr {place.text}"
                c.line(f"{text}, align {item_bytes(dtype)}")

        c.each(c.const(0, "int64"), self.columns, self.piece, strip)

    def _elements(self) -> None:
        """Fewer columns than a piece has, one by one."""
        c, dtype = self.c, self.dtype
        zero, count = c.const(0, "int64"), c.const(self.count, "int64")

        def column(n: Val) -> None:
            def element(row: Val) -> None:
                value = self._load(self._row(row), n, 1)
                place = address(c, self._place(n), row, dtype)
                c.line(f"store {value.type} {value.text}, ptr {place.text}")

            c.each(zero, count, 1, element)

        c.each(zero, self.columns, 1, column)


def columns_of(c: Code, pieces: list[Val]) -> list[Val]:
    """The columns of rows of which a piece each is given; whole vectors, one for each lane.

    Rows whose elements belong into different pieces of a column share a vector.
    """
    count, piece = len(pieces), pieces[0].lanes
    parts = [side_by_side(c, pieces[n::piece]) for n in range(piece)]
    # Where the elements of each part of sixteen bytes come from: their order changes.
    origin = [[(n, lane) for lane in range(piece)] for n in range(piece)]
    by = 1
    while by < piece:
        halves = _interleaved(count, piece, by)
        for n in (n for n in range(piece) if not n & by):
            lanes = [*origin[n], *origin[n + by]]
            found = [c.shuffle(parts[n], parts[n + by], picks) for picks in halves]
            chosen = _interleaved(piece, piece, by)
            parts[n], parts[n + by] = found
            origin[n], origin[n + by] = ([lanes[p] for p in picks] for picks in chosen)
        by *= 2
    return [parts[origin.index([(n, lane) for n in range(piece)])] for lane in range(piece)]


def side_by_side(c: Code, pieces: list[Val]) -> Val:
    """Vectors behind each other in one; their number is a power of two."""
    while len(pieces) > 1:
        lanes = list(range(2 * pieces[0].lanes))
        pieces = [c.shuffle(pieces[n], pieces[n + 1], lanes) for n in range(0, len(pieces), 2)]
    return pieces[0]


def _interleaved(count: int, piece: int, by: int) -> tuple[list[int], list[int]]:
    """Groups of ``by`` lanes of two vectors in turns, from the halves of each piece."""
    halves: tuple[list[int], list[int]] = ([], [])
    for start in range(0, count, piece):
        for half, picks in enumerate(halves):
            for group in range(start + half * piece // 2, start + (half + 1) * piece // 2, by):
                picks += [*range(group, group + by), *range(count + group, count + group + by)]
    return halves
