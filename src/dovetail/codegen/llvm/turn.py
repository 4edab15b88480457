"""A square of elements turned: rows become columns, in registers."""

from __future__ import annotations

from dovetail.codegen.llvm.emit import TYPES, Code, Val
from dovetail.codegen.llvm.memory import lane_numbers, load_dense
from dovetail.ir.segment import item_bytes

_PIECE = 16  # bytes that the processors' shuffles work within


def side(c: Code, dtype: str) -> int:
    """Rows and columns of the largest square whose rows are registers, or parts of them."""
    return min(c.lanes, 4 * c.lanes // item_bytes(dtype))


def turn(
    c: Code, dtype: str, source: Val, step: Val, rows: Val, columns: Val, to: Val, pitch: int
) -> None:
    """Turn a square at ``source``, whose rows are ``step`` elements apart.

    It has ``side`` rows and columns. Past ``rows`` the last one is read again, past ``columns``
    nothing is. What was a column is written to ``to``, the next one ``pitch`` elements behind.
    """
    name = f"turn.{TYPES[dtype]}.{pitch}"
    if name not in c.functions:
        inner = Code(c.lanes)
        c.functions[name] = _function(name, inner, dtype, pitch)
        c.declared |= inner.declared
    given = (source, step, rows, columns, to)
    types = ("ptr", "i64", "i64", "i64", "ptr")
    listed = ", ".join(f"{kind} {v.text}" for kind, v in zip(types, given, strict=True))
    c.line(f"call void @{name}({listed})")


def _function(name: str, c: Code, dtype: str, pitch: int) -> str:
    """Such a square in a function of its own: kernels call it many times."""
    count = side(c, dtype)
    slots = [c.slot(dtype, count) for _ in range(count)]
    rows, columns, step = (Val(f"%{n}", "int64") for n in ("rows", "columns", "step"))
    last = c.op("sub", rows, c.const(1, "int64"))
    places = []
    for n in range(count):
        number = c.const(n, "int64")
        number = c.select(c.compare("icmp slt", number, rows), number, last)
        offset = c.op("mul", number, step)
        text = f"getelementptr {TYPES[dtype]}, ptr %source, i64 {offset.text}"
        places.append(c.new(text, "ptr", 1))
    whole, some, done = c.label("whole"), c.label("some"), c.label("done")
    enough = c.compare("icmp sge", columns, c.const(count, "int64"))
    c.line(f"br i1 {enough.text}, label %{whole}, label %{some}")
    c.start(whole)
    for slot, place in zip(slots, places, strict=True):
        c.put(slot, load_dense(c, dtype, place, None, count))
    c.line(f"br label %{done}")
    c.start(some)
    mask = c.compare("icmp slt", lane_numbers(count), c.splat(columns, count))
    for slot, place in zip(slots, places, strict=True):
        c.put(slot, load_dense(c, dtype, place, mask, count))
    c.block(done)
    for n, row in enumerate(turned(c, [c.get(slot, dtype, count) for slot in slots])):
        place = c.new(f"getelementptr {TYPES[dtype]}, ptr %to, i64 {n * pitch}", "ptr", 1)
        c.line(f"store {row.type} {row.text}, ptr {place.text}, align {item_bytes(dtype)}")
    c.line("ret void")
    head = (
        f"define private void @{name}"
        "(ptr %source, i64 %step, i64 %rows, i64 %columns, ptr %to) noinline #0 {"
    )
    return "\n".join([head, "entry:", *c.slots, *c.lines, "}"])


def turned(c: Code, rows: list[Val]) -> list[Val]:
    """As many vectors as each has lanes, with rows and columns exchanged.

    First in pieces of sixteen bytes, by interleaving, then the pieces change places.
    """
    count = len(rows)
    piece = min(_PIECE // item_bytes(rows[0].dtype), count)
    # Where each lane comes from: the vectors are in another order at the end.
    origin = [[(n, lane) for lane in range(count)] for n in range(count)]
    by = 1
    while by < count:
        for n in (n for n in range(count) if not n & by):
            pair = (n, n + by)
            picks = _interleaved(count, piece, by) if by < piece else _exchanged(count, by)
            lanes = [*origin[n], *origin[n + by]]
            found = [_shuffled(c, rows[n], rows[n + by], p) for p in picks]
            for place, value, chosen in zip(pair, found, picks, strict=True):
                rows[place], origin[place] = value, [lanes[p] for p in chosen]
        by *= 2
    return [rows[origin.index([(n, lane) for n in range(count)])] for lane in range(count)]


def _interleaved(count: int, piece: int, by: int) -> tuple[list[int], list[int]]:
    """Groups of ``by`` lanes of two vectors in turns, from the halves of each piece."""
    halves: tuple[list[int], list[int]] = ([], [])
    for start in range(0, count, piece):
        for half, picks in enumerate(halves):
            for group in range(start + half * piece // 2, start + (half + 1) * piece // 2, by):
                picks += [*range(group, group + by), *range(count + group, count + group + by)]
    return halves


def _exchanged(count: int, by: int) -> tuple[list[int], list[int]]:
    """Every second group of ``by`` lanes from the other vector."""
    lanes = range(count)
    first = [n if not n & by else count + n - by for n in lanes]
    return first, [n + by if not n & by else count + n for n in lanes]


def _shuffled(c: Code, left: Val, right: Val, picks: list[int]) -> Val:
    listed = ", ".join(f"i32 {p}" for p in picks)
    text = (
        f"shufflevector {left.type} {left.text}, {right.type} {right.text}, "
        f"<{len(picks)} x i32> <{listed}>"
    )
    return c.new(text, left.dtype, left.lanes)
