"""Memory: which temporaries may share bytes, and where each lies in the arena.

Two steps. ``share_in_place`` lets an elementwise result take over the memory of an operand that
dies there; that choice is part of the Program. ``plan_memory`` gives each remaining temporary an
offset for given values of the symbols. The planner is the C runtime's (``native/src/plan.c``),
which plans when it meets a new set of sizes: an artifact carries lifetimes, never offsets that
would have to be trusted. See docs/decisions/0080-one-memory-planner.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dovetail.errors import SizeError
from dovetail.ir.dtypes import item_bytes
from dovetail.ir.program import Buffer, KernelCall, Program, reads, writes
from dovetail.ir.program_verify import extent, last_uses
from dovetail.ir.size import evaluate
from dovetail.ir.strides import same_dims

ALIGNMENT = 64
_MOST = 2**63 - 1  # bytes that a pointer can tell apart


@dataclass(frozen=True, slots=True)
class Lifetime:
    """One piece of arena memory: its bytes, and the instructions from first write to last use.

    ``padding`` of the bytes belong to no element of the tensor that it holds (``ir/layout.py``).
    """

    name: str
    size: int
    first: int
    last: int
    padding: int = 0

    def meets(self, other: Lifetime) -> bool:
        """Whether both are needed at one time."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offsets in one arena; ``peak`` is its size, ``bound`` what no plan can go below.

    ``padding`` of the ``total`` bytes are halos, or fill the last blocks of packed tensors.
    """

    offsets: Mapping[str, int]
    peak: int
    total: int
    bound: int
    padding: int = 0

    def __str__(self) -> str:
        text = f"arena {self.peak} bytes, sum {self.total}, largest set alive {self.bound}"
        return f"{text}, padding {self.padding}" if self.padding else text


def plan_memory(
    program: Program, symbols: Mapping[str, int] | None = None, *, device: str = "cpu"
) -> MemoryPlan:
    """Where each temporary lies in the arena of a device, given the symbols' values."""
    return plan_lifetimes(lifetimes(program, symbols or {}, device=device))


def plan_lifetimes(lives: Sequence[Lifetime]) -> MemoryPlan:
    """Where each piece of memory lies; offsets are multiples of what all sizes are multiples of."""
    for life in lives:
        if life.size > _MOST:
            raise SizeError(f"{life.name} takes {life.size} bytes, which no memory has")
    start = min((life.first for life in lives), default=0)
    spans = [(life.size, life.first - start, life.last - start) for life in lives]
    native = importlib.import_module("dovetail._native")
    offsets, peak, total, bound = native.plan_memory(spans)
    names = (life.name for life in lives)
    padding = sum(life.padding for life in lives)
    return MemoryPlan(dict(zip(names, offsets, strict=True)), peak, total, bound, padding)


def aligned(size: int, alignment: int = ALIGNMENT) -> int:
    """The next multiple of the alignment."""
    return -(-size // alignment) * alignment


def lifetimes(
    program: Program, symbols: Mapping[str, int], *, device: str = "cpu"
) -> list[Lifetime]:
    """One entry for each temporary that has memory of its own, in-place successors included."""
    spans: dict[str, list[int]] = {}
    for number, instruction in enumerate(program.instructions):
        for name in (*reads(instruction), *writes(instruction)):
            root = program.root(name)
            if root.kind == "temporary" and root.desc.device == device:
                spans.setdefault(root.name, [number, number])[1] = number
    sizes = dict.fromkeys(spans, 0)
    for buffer in program.buffers:
        owner = program.root(buffer.name).name
        if buffer.kind == "temporary" and owner in sizes:
            sizes[owner] = max(sizes[owner], _bytes(buffer, symbols))
    return [
        Lifetime(name, sizes[name], first, last, _padding(program.by_name[name], symbols))
        for name, (first, last) in spans.items()
    ]


def _bytes(buffer: Buffer, symbols: Mapping[str, int]) -> int:
    shape = [evaluate(size, symbols) for size in buffer.desc.shape]
    count = 0 if 0 in shape else evaluate(extent(buffer), symbols)
    return aligned(count * item_bytes(buffer.desc.dtype))


def _padding(buffer: Buffer, symbols: Mapping[str, int]) -> int:
    if buffer.desc.layout is None:
        return 0
    return evaluate(buffer.desc.layout.padding, symbols) * item_bytes(buffer.desc.dtype)


def share_in_place(program: Program, elementwise: Callable[[str], bool]) -> Program:
    """Let results of elementwise kernels take over the memory of an operand that dies there."""
    last = last_uses(program)
    changed: dict[str, Buffer] = {}
    for number, instruction in enumerate(program.instructions):
        if isinstance(instruction, KernelCall) and elementwise(instruction.kernel):
            out = program.by_name[instruction.outputs[0]]
            donor = _donor(program, instruction, number, last, changed)
            if donor and out.kind == "temporary" and not out.of:
                changed[out.name] = replace(out, of=donor)
    buffers = tuple(changed.get(b.name, b) for b in program.buffers)
    return replace(program, buffers=_bases_first(buffers))


def _donor(
    program: Program,
    instruction: KernelCall,
    number: int,
    last: Mapping[str, int],
    changed: Mapping[str, Buffer],
) -> str:
    """An operand whose memory the result may take, or nothing."""
    out = program.by_name[instruction.outputs[0]].desc
    taken = {buffer.of for buffer in changed.values()}
    for name in instruction.inputs:
        given = program.by_name[name]
        others = [n for n in instruction.inputs if n != name]
        if (
            given.kind == "temporary"
            and last[name] == number
            and name not in taken
            and same_dims(given.desc.shape, out.shape)
            and same_dims(given.desc.strides, out.strides)
            and item_bytes(given.desc.dtype) == item_bytes(out.dtype)
            and all(program.viewed(n).name != name for n in others)
        ):
            return name
    return ""


def _bases_first(buffers: Sequence[Buffer]) -> tuple[Buffer, ...]:
    """The same buffers in an order in which each comes after the one it is based on."""
    by_name = {b.name: b for b in buffers}
    ordered: dict[str, Buffer] = {}
    for buffer in buffers:
        chain = [buffer]
        while chain[-1].of and chain[-1].of not in ordered:
            chain.append(by_name[chain[-1].of])
        for item in reversed(chain):
            ordered.setdefault(item.name, item)
    return tuple(ordered.values())
