"""Changes of kernel IR, most of which leave a kernel, and of its bytes, few of which do."""

import dataclasses

from dovetail.errors import CannotSave
from dovetail.file.kernel_encode import encode_kernels, number
from dovetail.ir.kernel import Apply, Axis, Index, Load, Loop, Position, Reduce, Scan, Store
from dovetail.ir.ops import OPERATIONS_BY_NUMBER

SMALL = (0, 1, -1, 2, 3, 4, 7, -5, 16, 33)
ODD = (2**31, 2**40, 2**62, 2**63 - 1, -(2**63), -(2**31))
ACCESSES = Load | Store


def odd_number(random):
    """Mostly a small number, now and then one at the edge of what fits."""
    numbers = SMALL if random.integers(4) else ODD
    return int(random.choice(numbers))


def pick(random, items):
    """One of a sequence; None of an empty one."""
    return items[random.integers(len(items))] if items else None


def replaced(kernel, old, new):
    """The kernel with one instruction replaced, which is told apart by identity."""
    loops = tuple(
        Loop(loop.axes, tuple(new if i is old else i for i in loop.body)) for loop in kernel.loops
    )
    return dataclasses.replace(kernel, loops=loops)


def of_kind(kernel, kind):
    """The instructions of a kind."""
    return [i for i in kernel.instructions() if isinstance(i, kind)]


def values_of(kernel, dtype):
    """The names of values of a type."""
    return [i.name for i in kernel.instructions() if i.name and i.dtype == dtype]


# ---- changes of the IR -------------------------------------------------------------------------


def change_offset(kernel, random):
    """An access or a position starts elsewhere."""
    i = pick(random, of_kind(kernel, ACCESSES | Position))
    index = dataclasses.replace(i.index, offset=odd_number(random))
    return replaced(kernel, i, dataclasses.replace(i, index=index))


def change_stride(kernel, random):
    """An access or a position goes along an axis in other steps, or along another axis."""
    i = pick(random, [i for i in of_kind(kernel, ACCESSES | Position) if i.index.axes])
    terms = list(i.index.axes)
    at = random.integers(len(terms))
    name = terms[at][0] if random.integers(4) else pick(random, kernel.all_axes()).name
    terms[at] = (name, odd_number(random))
    return replaced(kernel, i, dataclasses.replace(i, index=moved(i.index, axes=tuple(terms))))


def moved(index, **changes):
    return dataclasses.replace(index, **changes)


def change_extent(kernel, random):
    """An axis has another length: none, one, many."""
    axis = pick(random, kernel.all_axes())
    new = Axis(axis.name, pick(random, (0, 1, 2, 16, 17, 64, -1, 2**62)))
    swap = lambda axes: tuple(new if a == axis else a for a in axes)  # noqa: E731
    loops = tuple(Loop(swap(loop.axes), loop.body) for loop in kernel.loops)
    return dataclasses.replace(kernel, axes=swap(kernel.axes), loops=loops)


def add_gather(kernel, random):
    """An access has a place that the data decide."""
    i, value = pick(random, of_kind(kernel, ACCESSES)), pick(random, values_of(kernel, "int64"))
    kept = i.index if random.integers(2) else Index(0)
    terms = (*kept.values, (value, pick(random, (1, 1, 1, 2, -1, 3, 2**61))))
    return replaced(kernel, i, dataclasses.replace(i, index=moved(kept, values=terms)))


def add_mask(kernel, random):
    """A load happens only where a value says so."""
    i, mask = pick(random, of_kind(kernel, Load)), pick(random, values_of(kernel, "bool"))
    return replaced(kernel, i, dataclasses.replace(i, mask=mask))


def change_operation(kernel, random):
    """Another operation for the same operands, mostly one that they fit."""
    i = pick(random, of_kind(kernel, Apply))
    types = {v.name: v.dtype for v in kernel.instructions()}
    given = tuple(types[a] for a in i.args)
    fits = [o.name for o in OPERATIONS_BY_NUMBER if o.admits(given, i.dtype)]
    wanted = [o for o in ("floordiv", "floormod", "div_int", "check", "shl", "shr") if o in fits]
    op = pick(random, wanted) if wanted and random.integers(2) else pick(random, fits)
    return replaced(kernel, i, dataclasses.replace(i, op=op))


def change_operand(kernel, random):
    """Another value as an operand."""
    i = pick(random, of_kind(kernel, Apply | Reduce | Scan))
    types = {v.name: v.dtype for v in kernel.instructions()}
    at = random.integers(len(i.args))
    other = pick(random, values_of(kernel, types[i.args[at]]))
    args = (*i.args[:at], other, *i.args[at + 1 :])
    return replaced(kernel, i, dataclasses.replace(i, args=args))


def change_stored(kernel, random):
    """A store writes another value, or elsewhere."""
    i = pick(random, of_kind(kernel, Store))
    names = [v.name for v in kernel.instructions() if v.name]
    buffers = [b.name for b in kernel.buffers if b.role != "in"]
    if random.integers(2):
        return replaced(kernel, i, dataclasses.replace(i, buffer=pick(random, buffers)))
    return replaced(kernel, i, dataclasses.replace(i, value=pick(random, names)))


def add_check(kernel, random):
    """A check of a value before one that used it."""
    loop = pick(random, [loop for loop in kernel.loops if loop.body])
    at = int(random.integers(len(loop.body) + 1))
    numbers = values_of(kernel, "int64")
    args = (pick(random, numbers), pick(random, numbers), pick(random, values_of(kernel, "bool")))
    op = pick(random, ("check", "check_index", "check_bounds", "check_divisor"))
    made = Apply(f"w{random.integers(10**9)}", "int64", op, args)
    body = (*loop.body[:at], made, *loop.body[at:])
    loops = tuple(Loop(loop.axes, body) if other is loop else other for other in kernel.loops)
    return dataclasses.replace(kernel, loops=loops)


def change_role(kernel, random):
    """A buffer that was only written is also read, by one of the loads."""
    buffer = pick(random, [b for b in kernel.buffers if b.role != "in"])
    shown = dataclasses.replace(buffer, role="inout")
    buffers = tuple(shown if b is buffer else b for b in kernel.buffers)
    kernel = dataclasses.replace(kernel, buffers=buffers)
    i = pick(random, [i for i in of_kind(kernel, Load) if i.dtype == buffer.dtype])
    return kernel if i is None else replaced(kernel, i, dataclasses.replace(i, buffer=buffer.name))


def move_store(kernel, random):
    """A store in another loop."""
    i, loop = pick(random, of_kind(kernel, Store)), pick(random, kernel.loops)
    loops = tuple(
        Loop(other.axes, (*(n for n in other.body if n is not i), *([i] if other is loop else [])))
        for other in kernel.loops
    )
    return dataclasses.replace(kernel, loops=loops)


CHANGES = (
    change_offset, change_stride, change_extent, add_gather, add_gather, add_mask, add_mask,
    change_operation, change_operation, change_operand, change_stored, add_check, change_role,
    move_store,
)  # fmt: skip


def changed_kernel(kernel, random, count):
    """The kernel after some changes, each of which leaves a kernel that can be saved."""
    for _ in range(count):
        try:
            other = pick(random, CHANGES)(kernel, random)
            encode_kernels([other])
        except (CannotSave, AttributeError, TypeError, KeyError, IndexError, ValueError):
            continue  # nothing there to change, or no kernel any more
        kernel = other
    return kernel


# ---- changes of the bytes ----------------------------------------------------------------------


def changed_bytes(section, random):
    """A section of one kernel with some bytes of it changed; mostly its length is put right."""
    head = 2  # no names, one kernel
    at, length = head, 0
    while section[at] > 127:
        at += 1
    length = at + 1
    body = bytearray(section[length:])
    for _ in range(1 + random.integers(3)):
        place = random.integers(len(body) + 1)
        kind = random.integers(6)
        if kind == 0:
            body.insert(place, int(random.integers(256)))
        elif place < len(body) and kind == 1:
            del body[place]
        elif place < len(body) and kind == 2:
            body[place] ^= 1 << int(random.integers(8))
        elif place < len(body):
            body[place] = int(random.integers(12)) if kind < 5 else body[place] + 1 & 255
    if random.integers(20) == 0:
        return section[:length] + bytes(body)
    return section[:head] + number(len(body)) + bytes(body)
