"""Loads, stores and index checks of the LLVM renderer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dovetail.codegen.llvm import guard, scalar
from dovetail.codegen.llvm.emit import TYPES, Code, Val, suffix, vector_type
from dovetail.codegen.llvm.interleave import deinterleave, interleave
from dovetail.codegen.llvm.report import report
from dovetail.ir.dtypes import COMPUTE, item_bytes
from dovetail.ir.kernel import Index, Instruction, Load, Store
from dovetail.ir.size import Dim

if TYPE_CHECKING:
    from dovetail.codegen.llvm.render import Renderer

Inner = tuple[str, dict[Instruction, Val]] | None
# What elements are in memory, where no LLVM type of their own is used.
STORED = {"bool": "uint8", "bfloat16": "int16"}
_WORD = 4  # bytes of the least that is gathered


def lane_numbers(lanes: int, dtype: str = "int64") -> Val:
    """0, 1, 2, … as a constant vector."""
    items = ", ".join(f"{TYPES[dtype]} {n}" for n in range(lanes))
    return Val(f"<{items}>" if lanes > 1 else "0", dtype, lanes)


def base(r: Renderer, buffer: str, index: Index, skip: str) -> Val:
    """The address of an access with the axis ``skip`` at zero and no gathered values."""
    c, dtype = r.c, r.dtypes[buffer]
    fixed = index.offset if isinstance(index.offset, int) else 0
    moving = replace(index, offset=0) if fixed else index
    terms = [f"{r.axes[axis].text} {stride}" for axis, stride in index.axes if axis != skip]

    def make() -> Val:
        start = address(c, r.pointers[buffer], scalar_offset(r, moving, skip), dtype)
        # LLVM looks for ways to step through a loop, and looks long where it sees how an address
        # before the loop comes about.
        return c.freeze(start) if skip else start

    start = c.once(f"{buffer} {moving.offset} at {terms}", make)
    return address(c, start, c.const(fixed, "int64"), dtype)


def address(c: Code, pointer: Val, offset: Val, dtype: str) -> Val:
    """The place of an element of a buffer."""
    if offset.text == "0":
        return pointer
    kind = TYPES[STORED.get(dtype, dtype)]
    text = f"getelementptr {kind}, ptr {pointer.text}, {offset.type} {offset.text}"
    return c.new(text, "ptr", offset.lanes)


def scalar_offset(r: Renderer, index: Index, skip: str) -> Val:
    """Offset + Σ axis * stride in elements, the vector axis at its first lane."""
    c = r.c
    total = r.size(index.offset)
    for axis, stride in index.axes:
        if axis != skip:
            total = _plus(c, total, times(r, r.axes[axis], stride))
    return total


def _plus(c: Code, left: Val, right: Val) -> Val:
    if left.text == "0" and left.lanes == 1:
        return right
    return left if right.text == "0" else c.op("add", left, right)


def times(r: Renderer, value: Val, stride: Dim) -> Val:
    """A value times a stride, in elements."""
    return value if stride == 1 else r.c.op("mul", value, r.size(stride))


def gathered(r: Renderer, index: Index) -> Val | None:
    """Σ value * stride, or None when nothing is gathered."""
    total: Val | None = None
    for name, stride in index.values:
        term = times(r, r.values[name], stride)
        total = term if total is None else r.c.op("add", total, term)
    return total


def _start(r: Renderer, access: Load | Store, inner: Inner) -> Val:
    """The address of an access, the vector axis at its first lane, gathered values left out."""
    if inner is None:
        return base(r, access.buffer, access.index, "")
    start, stride = inner[1][access], access.index.stride(inner[0])
    if stride == 0:
        return start
    offset = times(r, r.axes[inner[0]], stride)
    return address(r.c, start, offset, r.dtypes[access.buffer])


class _Access:
    """One access, sorted out: an address, and whether it is scalar, dense or scattered."""

    def __init__(self, r: Renderer, access: Load | Store, inner: Inner) -> None:
        c, index = r.c, access.index
        dtype = r.dtypes[access.buffer]
        start = _start(r, access, inner)
        step: Dim = 0 if r.axis is None else index.stride(r.axis.name)
        moved = gathered(r, index)
        self.dense, self.backwards = step in (1, -1), step == -1
        if moved is not None:
            if moved.lanes == 1:
                start = address(c, start, moved, dtype)
            else:
                self.dense = False
        self.address = start
        if not self.dense and (step != 0 or (moved is not None and moved.lanes > 1)):
            offsets = times(r, lane_numbers(r.lanes), step) if step != 0 else None
            if moved is not None and moved.lanes > 1:
                offsets = moved if offsets is None else c.op("add", offsets, moved)
            assert offsets is not None
            self.address = address(c, start, offsets, dtype)
        elif self.dense and self.backwards and r.lanes > 1:
            self.address = address(c, start, c.const(1 - r.lanes, "int64"), dtype)
        self.backwards = self.backwards and self.dense
        self.lanes = r.lanes if self.dense else self.address.lanes


def load(r: Renderer, instruction: Load, inner: Inner) -> Val:
    """The loaded value, in the type it is computed in."""
    c = r.c
    if r.guarded and guard.is_open(instruction):
        return guard.load(r, instruction)
    if instruction in r.transposed:
        return _load_transposed(r, instruction)
    if instruction in r.groups:
        return _load_group(r, instruction, inner)
    access = _Access(r, instruction, inner)
    mask = None if instruction.mask is None else r.values[instruction.mask]
    dtype = r.dtypes[instruction.buffer]
    stored = STORED.get(dtype, dtype)
    if access.lanes == 1 and mask is not None and mask.lanes > 1:
        raw = gather(c, stored, c.splat(access.address, r.lanes), both(c, mask, r.mask))
    elif access.lanes == 1:
        raw = load_scalar(c, stored, access.address, mask)
    else:
        lanes_in_use = both(c, mask, r.mask)
        lanes_in_use = None if lanes_in_use is None else c.splat(lanes_in_use, r.lanes)
        if access.dense:
            step = -1 if access.backwards else 1
            raw = load_along(c, stored, access.address, lanes_in_use, r.lanes, step)
        else:
            raw = gather(c, stored, access.address, lanes_in_use)
    return widen(c, raw, dtype)


def _load_transposed(r: Renderer, instruction: Load) -> Val:
    """A row of a tile that lies in a buffer already."""
    assert r.axis is not None
    c, dtype = r.c, r.dtypes[instruction.buffer]
    offset = c.op("add", r.tile_row, r.axes[r.axis.name])
    place = address(c, r.transposed[instruction], offset, dtype)
    return widen(c, load_dense(c, STORED.get(dtype, dtype), place, r.mask, r.lanes), dtype)


def _load_group(r: Renderer, instruction: Load, inner: Inner) -> Val:
    """One of several loads that are dense together; the first of them brings all."""
    c, group = r.c, r.groups[instruction]
    if instruction.name not in r.values:
        dtype = r.dtypes[instruction.buffer]
        stored = STORED.get(dtype, dtype)
        parts = [
            load_dense(c, stored, place, mask, r.lanes)
            for place, mask in _parts(r, group[0], inner, len(group))
        ]
        for each, value in zip(group, deinterleave(c, parts), strict=True):
            r.values[each.name] = widen(c, value, dtype)
    return r.values[instruction.name]


def _store_group(r: Renderer, instruction: Store, inner: Inner) -> None:
    """One of several stores that are dense together; the last of them writes all."""
    c, group = r.c, r.groups[instruction]
    r.waiting.add(instruction)
    if not r.waiting.issuperset(group):
        return
    r.waiting.difference_update(group)
    dtype = r.dtypes[instruction.buffer]
    stored = [r.values[s.value] for s in group if isinstance(s, Store)]
    values = [c.splat(narrow(c, value, dtype), r.lanes) for value in stored]
    places = _parts(r, group[0], inner, len(group))
    for value, (place, mask) in zip(interleave(c, values), places, strict=True):
        store_vector(c, value, place, mask)


def _parts(
    r: Renderer, first: Load | Store, inner: Inner, count: int
) -> list[tuple[Val, Val | None]]:
    """The vectors of ``count`` accesses that are dense together: places, and lanes in use."""
    c, dtype, start = r.c, r.dtypes[first.buffer], _start(r, first, inner)
    places = [address(c, start, c.const(n * r.lanes, "int64"), dtype) for n in range(count)]
    if r.mask is None:
        return [(place, None) for place in places]
    return list(zip(places, interleave(c, [r.mask] * count), strict=True))


def both(c: Code, left: Val | None, right: Val | None) -> Val | None:
    """The lanes that two masks allow; None: all of them."""
    if left is None or right is None:
        return left if right is None else right
    return c.op("and", left, right)


def prefetch(c: Code, place: Val, write: int) -> None:
    """Ask for a line of memory that is read, or written, soon."""
    c.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
    c.line(f"call void @llvm.prefetch.p0(ptr {place.text}, i32 {write}, i32 3, i32 1)")


def backwards(c: Code, value: Val) -> Val:
    """The lanes in opposite order."""
    if value.lanes == 1:
        return value
    return c.shuffle(value, None, reversed(range(value.lanes)))


def load_scalar(c: Code, dtype: str, address: Val, mask: Val | None) -> Val:
    """One element; where the mask is false it is not read, and zero."""
    kind = vector_type(dtype, 1)
    if mask is None:
        return c.new(f"load {kind}, ptr {address.text}", dtype, 1)
    nothing = c.slot(dtype, 1)
    c.put(nothing, Val("zeroinitializer", dtype, 1))
    place = c.new(f"select i1 {mask.text}, ptr {address.text}, ptr {nothing}", "ptr", 1)
    return c.new(f"load {kind}, ptr {place.text}", dtype, 1)


def load_dense(c: Code, dtype: str, address: Val, mask: Val | None, lanes: int) -> Val:
    """Elements next to each other; where the mask is false none is read."""
    kind, size = vector_type(dtype, lanes), item_bytes(dtype)
    if mask is None:
        return c.new(f"load {kind}, ptr {address.text}, align {size}", dtype, lanes)
    name, nothing = f"llvm.masked.load.{suffix(dtype, lanes)}.p0", (kind, "zeroinitializer")
    return c.call(name, dtype, lanes, address, ("i32", str(size)), mask, nothing)


def load_along(c: Code, dtype: str, low: Val, mask: Val | None, lanes: int, step: int) -> Val:
    """The same from the lowest address, the last lane there where ``step`` is -1."""
    if step > 0:
        return load_dense(c, dtype, low, mask, lanes)
    mask = None if mask is None else backwards(c, mask)
    return backwards(c, load_dense(c, dtype, low, mask, lanes))


def gather(c: Code, dtype: str, address: Val, mask: Val | None) -> Val:
    """An element from each address, zero where the mask is false."""
    if mask is not None and item_bytes(dtype) < _WORD:
        return _gather_words(c, dtype, address, mask)
    lanes = address.lanes
    kind, size = vector_type(dtype, lanes), item_bytes(dtype)
    mask = mask or c.const(True, "bool", lanes)
    name, nothing = f"llvm.masked.gather.{suffix(dtype, lanes)}.v{lanes}p0", "zeroinitializer"
    return c.call(name, dtype, lanes, address, ("i32", str(size)), mask, (kind, nothing))


def _gather_words(c: Code, dtype: str, address: Val, mask: Val) -> Val:
    """Small elements out of the aligned words they lie in: processors gather nothing smaller.

    Without that, a branch for each lane would be made of the mask. Such a word is in the page of
    its element, so that reading all of it is no fault.
    """
    places = c.convert("ptrtoint", address, "int64")
    within = c.op("and", places, c.like(_WORD - 1, places))
    words = c.convert("inttoptr", c.op("and", places, c.like(-_WORD, places)), "ptr")
    word = gather(c, "int32", words, mask)
    shift = c.convert("trunc", c.op("shl", within, c.like(3, within)), "int32")
    bits = "int16" if item_bytes(dtype) == 2 else "int8"
    small = c.convert("trunc", c.op("lshr", word, shift), bits)
    if dtype == "float16":
        return c.convert("bitcast", small, dtype)
    return Val(small.text, dtype, small.lanes)


def widen(c: Code, raw: Val, dtype: str) -> Val:
    """An element as it lies in memory, in the type it is computed in."""
    if dtype == "bool":
        return c.compare("icmp ne", raw, c.like(0, raw))
    if dtype == "bfloat16":
        bits = c.op("shl", c.convert("zext", raw, "int32"), c.const(16, "int32", raw.lanes))
        return c.convert("bitcast", bits, "float32")
    if dtype == "float16":
        return c.convert("fpext", raw, "float32")
    return raw


def narrow(c: Code, value: Val, dtype: str) -> Val:
    """The opposite: a value as it lies in memory."""
    if value.dtype != COMPUTE[dtype]:
        value = scalar.cast(c, value, COMPUTE[dtype])
    if dtype == "bool":
        return c.convert("zext", value, "uint8")
    if dtype == "bfloat16":
        bits = c.convert("bitcast", scalar.round_bfloat16(c, value), "int32")
        return c.convert("trunc", c.op("lshr", bits, c.like(16, bits)), "int16")
    if dtype == "float16":
        return c.convert("fptrunc", value, "float16")
    return value


def store(r: Renderer, instruction: Store, inner: Inner) -> None:
    """Write a value, in the type of its buffer."""
    c = r.c
    if r.guarded and guard.is_open(instruction):
        guard.store(r, instruction)
        return
    if instruction in r.groups:
        _store_group(r, instruction, inner)
        return
    access = _Access(r, instruction, inner)
    dtype = r.dtypes[instruction.buffer]
    value = narrow(c, r.values[instruction.value], dtype)
    if access.lanes == 1 and value.lanes > 1:  # all lanes to one place: the last stays
        store_vector(c, value, c.splat(access.address, value.lanes), r.mask)
        return
    if access.lanes == 1:
        c.line(f"store {value.type} {value.text}, ptr {access.address.text}")
        return
    value, mask = c.splat(value, r.lanes), r.mask
    if access.backwards:
        value, mask = backwards(c, value), None if mask is None else backwards(c, mask)
    store_vector(c, value, access.address, mask)


def store_vector(c: Code, value: Val, place: Val, mask: Val | None) -> None:
    """To one address, or to one for each lane; where the mask is false nothing is written."""
    size = item_bytes(value.dtype)
    if place.lanes == 1 and mask is None:
        c.line(f"store {value.type} {value.text}, ptr {place.text}, align {size}")
        return
    mask = mask or c.const(True, "bool", value.lanes)
    name, kind = ("store", "p0") if place.lanes == 1 else ("scatter", f"v{value.lanes}p0")
    full = f"llvm.masked.{name}.{suffix(value.dtype, value.lanes)}.{kind}"
    c.declare(full, "void", [value.type, place.type, "i32", mask.type])
    c.line(
        f"call void @{full}({value.type} {value.text}, {place.type} {place.text}, "
        f"i32 {size}, {mask.type} {mask.text})"
    )


def position(r: Renderer, index: Index) -> Val:
    """An affine expression's value, lane by lane; those that differ by a number share the rest."""
    c = r.c
    fixed = index.offset if isinstance(index.offset, int) else 0
    moving = replace(index, offset=0) if fixed else index
    terms = [f"{r.axes[axis].text} {stride}" for axis, stride in index.axes]

    def make() -> Val:
        total = scalar_offset(r, moving, "")
        step: Dim = 0 if r.axis is None else index.stride(r.axis.name)
        if step == 0 or r.lanes == 1:
            return total
        return c.op("add", c.splat(total, r.lanes), times(r, lane_numbers(r.lanes), step))

    along = "" if r.axis is None else r.axis.name
    found = c.once(f"position {moving.offset} at {terms} along {along}", make)
    return _plus(c, found, c.const(fixed, "int64"))


def check(r: Renderer, kind: str, index: Val, extent: Val, allowed: Val) -> Val:
    """An index, wrapped if negative where that is meant; out of range sets the flag and gives 0.

    Or a divisor: zero sets the flag and gives ``extent``.

    ``allowed`` is false where the index is not going to be used.
    """
    c = r.c
    if kind == "check":
        wrapped = c.op("add", index, extent)
        negative = c.compare("icmp slt", index, c.like(0, index))
        index = c.select(negative, wrapped, index)
    if kind == "check_divisor":
        bad, instead = c.compare("icmp eq", index, c.like(0, index)), extent
    else:
        bad, instead = c.compare("icmp uge", index, extent), c.like(0, index)
        if r.guarded:  # a real size is not negative
            bad = c.op("or", bad, c.compare("icmp slt", extent, c.like(0, extent)))
    reported = c.op("and", bad, allowed)
    if r.mask is not None and reported.lanes > 1:
        reported = c.op("and", reported, r.mask)
    report(c, reported, r.flag, kind)
    return c.select(bad, instead, index)
