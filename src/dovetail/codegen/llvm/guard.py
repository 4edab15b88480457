"""Accesses and divisions of kernels that nobody vouches for, checked while they run.

The runtime shows before a call that every access without mask or gathered index lies within its
buffer. The others are compared here with how far the buffer reaches, element by element: what lies
outside is not touched, and reported as the interpreter of kernel IR reports it. So is an integer
that is divided by zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.codegen.llvm import memory
from dovetail.codegen.llvm.emit import Val
from dovetail.codegen.llvm.report import DIVIDE, OUTSIDE, report
from dovetail.ir.kernel import Apply, Kernel, Load, Store
from dovetail.ir.ops import CHECKS, DIVISIONS
from dovetail.ir.size import Dim

if TYPE_CHECKING:
    from dovetail.codegen.llvm.render import Renderer


def is_open(access: Load | Store) -> bool:
    """Whether an access could leave its buffer by the data, for all that is known beforehand."""
    return bool(access.index.values) or (isinstance(access, Load) and access.mask is not None)


def may_fail(kernel: Kernel, guarded: bool) -> bool:
    """Whether a kernel's code has anything to report."""
    reporting = (*CHECKS, *DIVISIONS) if guarded else CHECKS
    told = any(isinstance(i, Apply) and i.op in reporting for i in kernel.instructions())
    return told or (guarded and bool(open_buffers(kernel)))


def open_buffers(kernel: Kernel) -> tuple[str, ...]:
    """The buffers of which code must know how far they reach."""
    found = (i.buffer for i in kernel.instructions() if isinstance(i, Load | Store) and is_open(i))
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an access goes, in elements: one place, the first of a vector's, or each of them."""

    offset: Val
    step: int  # from lane to lane of a dense access; 0: there is one place, or each is given

    @property
    def is_dense(self) -> bool:
        return self.step != 0


def load(r: Renderer, access: Load) -> Val:
    """The loaded value, zero where nothing is meant to be read."""
    c, dtype = r.c, r.dtypes[access.buffer]
    stored = memory.STORED.get(dtype, dtype)
    mask = None if access.mask is None else r.values[access.mask]
    place = _place(r, access)
    if not place.is_dense and place.offset.lanes == 1:
        return memory.widen(c, _load_one(r, access, place, mask, stored), dtype)
    wanted = memory.both(c, mask, r.mask)
    wanted = None if wanted is None else c.splat(wanted, r.lanes)
    if place.is_dense:
        return memory.widen(c, _load_dense(r, access, place, wanted, stored), dtype)
    allowed = _allowed(r, access, place, wanted)
    address = memory.address(c, r.pointers[access.buffer], place.offset, dtype)
    return memory.widen(c, memory.gather(c, stored, address, allowed), dtype)


def _load_dense(r: Renderer, access: Load, place: _Place, wanted: Val | None, stored: str) -> Val:
    """Elements next to each other; that a whole vector lies in the buffer is soon seen."""
    c = r.c
    low = _lowest(r, place)
    address = memory.address(c, r.pointers[access.buffer], low, r.dtypes[access.buffer])

    def read(mask: Val | None) -> Val:
        return memory.load_along(c, stored, address, mask, r.lanes, place.step)

    if r.mask is not None:  # the rest of a row: not the case that counts
        return read(_allowed(r, access, place, wanted))
    slot = c.slot(stored, r.lanes)
    whole, part, done = c.label("whole"), c.label("part"), c.label("done")
    last = c.op("add", low, c.const(r.lanes - 1, "int64"))
    reach = r.reaches[access.buffer]
    crosses = c.op("or", c.compare("icmp uge", low, reach), c.compare("icmp uge", last, reach))
    c.line(f"br i1 {crosses.text}, label %{part}, label %{whole}, !prof !0")
    for label, checked in ((part, True), (whole, False)):
        c.start(label)
        shared, c.shared = c.shared, dict(c.shared)
        c.put(slot, read(_allowed(r, access, place, wanted) if checked else wanted))
        c.shared = shared
        c.line(f"br label %{done}")
    c.start(done)
    return c.get(slot, stored, r.lanes)


def _load_one(r: Renderer, access: Load, place: _Place, mask: Val | None, stored: str) -> Val:
    """One element for all lanes."""
    c = r.c
    single = mask if mask is not None and mask.lanes == 1 else None
    inside = _inside(r, access, place)
    _report_outside(r, inside, memory.both(c, mask, r.mask) if mask is not single else mask)
    readable = inside if single is None else c.op("and", inside, single)
    address = memory.address(c, r.pointers[access.buffer], place.offset, r.dtypes[access.buffer])
    value = memory.load_scalar(c, stored, address, readable)
    if mask is None or mask is single:
        return value
    return c.select(mask, c.splat(value, r.lanes), Val("zeroinitializer", stored, r.lanes))


def run_of(r: Renderer, access: Load, mask: Val | None, count: int, instead: Val) -> Val:
    """Where ``count`` elements start that are read one after another, if all are the buffer's."""
    c, reach = r.c, r.reaches[access.buffer]
    first = _place(r, access).offset
    last = c.op("add", first, c.const(count - 1, "int64"))
    below = c.compare("icmp ule", first, last)  # a sum that wraps is none
    inside = c.op("and", below, c.compare("icmp ult", last, reach))
    _report_outside(r, inside, mask)
    readable = inside if mask is None else c.op("and", inside, mask)
    address = memory.address(c, r.pointers[access.buffer], first, r.dtypes[access.buffer])
    return c.freeze(c.select(readable, address, instead))


def store(r: Renderer, access: Store) -> None:
    """Write a value where its place is one of the buffer's."""
    c, dtype = r.c, r.dtypes[access.buffer]
    place = _place(r, access)
    value = memory.narrow(c, r.values[access.value], dtype)
    if not place.is_dense and place.offset.lanes == 1 and value.lanes == 1:
        inside = _inside(r, access, place)
        _report_outside(r, inside, None)
        address = memory.address(c, r.pointers[access.buffer], place.offset, dtype)
        nowhere = c.slot(value.dtype, 1)
        text = f"select i1 {inside.text}, ptr {address.text}, ptr {nowhere}"
        address = c.new(text, "ptr", 1)
        c.line(f"store {value.type} {value.text}, ptr {address.text}")
        return
    if not place.is_dense:
        place = _Place(c.splat(place.offset, r.lanes), 0)
    allowed = _allowed(r, access, place, r.mask)
    value = c.splat(value, r.lanes)
    address = memory.address(
        c, r.pointers[access.buffer], _lowest(r, place) if place.is_dense else place.offset, dtype
    )
    if place.step < 0:
        value, allowed = memory.backwards(c, value), memory.backwards(c, allowed)
    memory.store_vector(c, value, address, allowed)


def divisor(r: Renderer, given: Val) -> None:
    """Report a divisor of zero; what is divided by it does not matter then."""
    c = r.c
    if not given.text.startswith("%") and given != c.like(0, given):
        return
    given = c.freeze(given)
    _report(r, c.compare("icmp eq", given, c.like(0, given)), DIVIDE)


# ---- places ------------------------------------------------------------------------------------


def _place(r: Renderer, access: Load | Store) -> _Place:
    """The place of an access; arithmetic wraps, what comes out is checked.

    It is frozen, so that what is checked and what is used are the same, whatever it came from.
    """
    c, index = r.c, access.index
    step: Dim = 0 if r.axis is None or r.lanes == 1 else index.stride(r.axis.name)
    offset = memory.scalar_offset(r, index, "")
    gathered = memory.gathered(r, index)
    if gathered is not None:
        offset = c.op("add", offset, gathered)
    dense = step in (1, -1) and offset.lanes == 1
    if step != 0 and not dense:
        offset = c.op("add", offset, memory.times(r, memory.lane_numbers(r.lanes), step))
    return _Place(c.freeze(offset), step if dense and isinstance(step, int) else 0)


def _lowest(r: Renderer, place: _Place) -> Val:
    """The first place in memory of a dense access."""
    if place.step > 0:
        return place.offset
    return r.c.op("add", place.offset, r.c.const(1 - r.lanes, "int64"))


def _inside(r: Renderer, access: Load | Store, place: _Place) -> Val:
    """Which places are the buffer's."""
    c, reach = r.c, r.reaches[access.buffer]
    if not place.is_dense:
        return c.compare("icmp ult", place.offset, c.splat(reach, place.offset.lanes))
    # Lane by lane, offset + lane lies in [0, reach) where -offset <= lane < reach - offset.
    zero, one = c.const(0, "int64"), c.const(1, "int64")
    if place.step > 0:
        low = c.intrinsic("ssub.sat", zero, place.offset)
        high = c.intrinsic("ssub.sat", reach, place.offset)
    else:
        last = c.intrinsic("ssub.sat", place.offset, reach)
        low = c.intrinsic("sadd.sat", last, one)
        high = c.intrinsic("sadd.sat", place.offset, one)
    lanes = memory.lane_numbers(r.lanes, "int32")
    below = c.compare("icmp slt", lanes, c.splat(_as_lane(r, high), r.lanes))
    return c.op("and", below, c.compare("icmp sge", lanes, c.splat(_as_lane(r, low), r.lanes)))


def _as_lane(r: Renderer, number: Val) -> Val:
    """A number as a lane's, or as one beyond them."""
    c = r.c
    most = c.intrinsic("smin", number, c.const(r.lanes, "int64"))
    return c.convert("trunc", c.intrinsic("smax", most, c.const(0, "int64")), "int32")


def _allowed(r: Renderer, access: Load | Store, place: _Place, wanted: Val | None) -> Val:
    """The lanes whose places are wanted and the buffer's; those outside are reported."""
    inside = _inside(r, access, place)
    _report_outside(r, inside, wanted)
    return inside if wanted is None else r.c.op("and", inside, wanted)


def _report_outside(r: Renderer, inside: Val, wanted: Val | None) -> None:
    c = r.c
    outside = c.op("xor", inside, c.like(True, inside))
    _report(r, outside if wanted is None else c.op("and", outside, wanted), OUTSIDE)


def _report(r: Renderer, wrong: Val, what: str) -> None:
    if r.mask is not None and wrong.lanes > 1:
        wrong = r.c.op("and", wrong, r.mask)
    report(r.c, wrong, r.flag, what)
