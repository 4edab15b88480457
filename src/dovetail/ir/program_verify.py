"""The one verifier of a Program: what passes it can be written, planned and run."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dovetail.errors import InvalidLayout, InvalidProgram, SizeError
from dovetail.ir import device_verify
from dovetail.ir.in_place import is_in_place
from dovetail.ir.layout import verify_memory
from dovetail.ir.program import (
    KINDS,
    VALUE,
    BlobCall,
    Buffer,
    Copy,
    HostCall,
    Instruction,
    KernelCall,
    Program,
    arguments,
    reads,
    writes,
)
from dovetail.ir.real import Real
from dovetail.ir.size import Dim, Size, symbols_of
from dovetail.ir.strides import same_dims
from dovetail.ir.verify import requirement

_NAME = re.compile(r"[\w.]+$")
_KERNEL_NAME = re.compile(r"[\w.]+@\d+$")
_PRESET = ("input", "constant", "state")  # hold something before the first instruction
_require = requirement(InvalidProgram)


def verify_program(program: Program) -> None:
    """Raise InvalidProgram unless every rule of the format holds."""
    _verify_symbols(program)
    _verify_buffers(program)
    device_verify.verify_devices(program)
    defined = {b.name for b in program.buffers if b.kind in _PRESET}
    last = last_uses(program)
    for number, instruction in enumerate(program.instructions):
        try:
            _verify_instruction(program, instruction, number, defined, last)
        except InvalidProgram as error:
            raise InvalidProgram(f"instruction {number}: {error}") from None
    _verify_outputs(program, defined)


def last_uses(program: Program) -> dict[str, int]:
    """Per buffer that has memory of its own, the last instruction that touches it."""
    last: dict[str, int] = {}
    for number, instruction in enumerate(program.instructions):
        for name in (*reads(instruction), *writes(instruction)):
            if name not in program.by_name:
                raise InvalidProgram(f"instruction {number} names no buffer: %{name}")
            last[program.viewed(name).name] = number
    return last


def _verify_symbols(program: Program) -> None:
    inputs = {b.name: b for b in program.inputs}
    names = [s.name for s in program.symbols]
    _require(len(set(names)) == len(names), "a symbol is declared twice")
    for symbol in program.symbols:
        source = inputs.get(symbol.input)
        if symbol.axis == VALUE and source is not None:
            number = source.desc.dtype == "int64" and source.desc.rank == 0
            _require(number, f"symbol {symbol.name} is the value of no number")
            _require(symbol.low <= symbol.high, f"symbol {symbol.name} has an empty range")
            continue
        fits = source is not None and symbol.axis < source.desc.rank
        _require(fits, f"symbol {symbol.name} is read from no input's dimension")
        assert source is not None
        _require(
            source.desc.shape[symbol.axis] == Size.symbol(symbol.name),
            f"symbol {symbol.name} is not dimension {symbol.axis} of %{symbol.input}",
        )
        _require(0 <= symbol.low <= symbol.high, f"symbol {symbol.name} has an empty range")
    known = frozenset(names)
    for guard in program.guards:
        _require_symbols((guard.left, guard.right), known, "a guard")


def _verify_buffers(program: Program) -> None:
    _require(len(program.by_name) == len(program.buffers), "two buffers have one name")
    known = frozenset(s.name for s in program.symbols)
    seen: dict[str, Buffer] = {}
    for buffer in program.buffers:
        what = f"buffer %{buffer.name}"
        _require(bool(_NAME.match(buffer.name)), f"{what}: not a name")
        _require(buffer.kind in KINDS, f"{what}: unknown kind {buffer.kind!r}")
        _require(len(buffer.desc.shape) == len(buffer.desc.strides), f"{what}: rank of strides")
        dims = (*buffer.desc.shape, *buffer.desc.strides, buffer.offset)
        _require_symbols(dims, known, what)
        _require(all(not isinstance(d, int) or d >= 0 for d in dims), f"{what}: negative size")
        _verify_layout(buffer, known)
        _verify_base(buffer, seen)
        seen[buffer.name] = buffer


def _verify_layout(buffer: Buffer, known: frozenset[str]) -> None:
    """What a buffer holds packed or with a halo must lie in exactly its memory."""
    layout, what = buffer.desc.layout, f"buffer %{buffer.name}"
    if layout is None:
        return
    try:
        verify_memory(buffer.desc, layout)
    except InvalidLayout as error:
        raise InvalidProgram(f"{what}: {error}") from None
    _require_symbols(layout.shape, known, what)


def _verify_base(buffer: Buffer, seen: dict[str, Buffer]) -> None:
    what = f"buffer %{buffer.name}"
    if not buffer.of:
        _require(buffer.kind != "view", f"{what}: a view of nothing")
        return
    base = seen.get(buffer.of)
    _require(base is not None, f"{what}: %{buffer.of} is not declared before it")
    assert base is not None
    _require(base.desc.device == buffer.desc.device, f"{what}: on another device than its base")
    if buffer.kind == "view":
        _require(base.desc.dtype == buffer.desc.dtype, f"{what}: another dtype than its base")
        _verify_window(buffer, base)
        return
    in_place = buffer.kind == "temporary" and base.kind == "temporary"
    _require(in_place, f"{what}: only a temporary takes another temporary's memory")
    _require(buffer.offset == 0, f"{what}: an in-place buffer has no offset")


def _verify_window(view: Buffer, base: Buffer) -> None:
    """A view of known extent must lie within a base of known extent."""
    needed, held = extent(view), extent(base)
    if isinstance(needed, int) and isinstance(held, int) and base.kind != "view":
        _require(needed <= held, f"buffer %{view.name}: reaches beyond %{base.name}")


def extent(buffer: Buffer) -> Dim:
    """The elements from the start of the memory to one past the last that is reached."""
    if any(size == 0 for size in buffer.desc.shape):
        return 0
    total: Dim = Size.binary("add", buffer.offset, 1)
    for size, stride in zip(buffer.desc.shape, buffer.desc.strides, strict=True):
        if size != 1 and stride != 0:
            steps = Size.binary("sub", size, 1)
            total = Size.binary("add", total, Size.binary("mul", steps, stride))
    return total


def _verify_instruction(
    program: Program,
    instruction: Instruction,
    number: int,
    defined: set[str],
    last: dict[str, int],
) -> None:
    for name in reads(instruction):
        base = program.viewed(name).name
        _require(base in defined, f"%{name} is used before it is written")
    if isinstance(instruction, KernelCall):
        _require(bool(_KERNEL_NAME.match(instruction.kernel)), "a kernel is called name@version")
        _require(bool(instruction.outputs), "a kernel without an output")
    device_verify.verify_sides(program, instruction)
    given = (arg.bits if isinstance(arg, Real) else arg for arg in arguments(instruction))
    sizes = (arg for arg in given if isinstance(arg, Size))
    _require_symbols(sizes, frozenset(s.name for s in program.symbols), "an argument")
    for name in writes(instruction):
        _verify_write(program, instruction, name, number, last)
        _verify_made(program, instruction, name, defined)
        defined.add(program.viewed(name).name)


def _verify_write(
    program: Program, instruction: Instruction, name: str, number: int, last: dict[str, int]
) -> None:
    target = program.viewed(name)
    if isinstance(instruction, Copy):
        writable = {"temporary", "output", "host", "input", "state"}
        same = _same(program, instruction.target, instruction.source)
        _require(same, "a copy between buffers of different shape or dtype")
    else:
        writable = _writable(program, instruction)
    _require(target.kind in writable, f"writes to %{name}, a {target.kind} buffer")
    if isinstance(instruction, HostCall):
        _require(not target.of, f"a host call cannot take over memory for %{name}")
        made = target.kind == "host" and program.by_name[name].kind == "view"
        _require(not made, f"a host call makes all of %{target.name}, not a view of it")
    if target.kind == "temporary" and target.of and isinstance(instruction, KernelCall):
        previous = program.viewed(target.of).name
        free = last.get(previous, -1) <= number
        _require(free, f"%{name} takes the memory of %{previous}, which is needed later")


def _verify_made(program: Program, instruction: Instruction, name: str, defined: set[str]) -> None:
    """A host buffer has memory once a host call has made it, and is made once."""
    target = program.viewed(name)
    if target.kind != "host":
        return
    if isinstance(instruction, Copy):
        _require(target.name in defined, f"copies into %{name} before a host call made it")
    else:
        _require(target.name not in defined, f"makes the host buffer %{target.name} twice")


def _writable(program: Program, instruction: Instruction) -> set[str]:
    """The kinds of buffers that an instruction other than a copy may write."""
    on_host = isinstance(instruction, BlobCall) and instruction.owner not in program.device_names
    host = {"host"} if on_host or isinstance(instruction, HostCall) else set()
    back = {"input", "state"} if is_in_place(instruction) and not program.devices else set()
    return {"temporary", "output"} | host | back


def _same(program: Program, left: str, right: str) -> bool:
    first, second = program.by_name[left].desc, program.by_name[right].desc
    return same_dims(first.shape, second.shape) and first.dtype == second.dtype


def _verify_outputs(program: Program, defined: set[str]) -> None:
    known = frozenset(s.name for s in program.symbols)
    owners: set[str] = set()
    for value in program.outputs:
        if isinstance(value, Size):
            _require_symbols((value,), known, "an output")
        if not isinstance(value, str):
            continue
        _require(value in program.by_name, f"output %{value} is no buffer")
        base = program.viewed(value)
        handed_out = base.kind == "output" or program.by_name[value].kind == "host"
        _require(handed_out, f"output %{value} is a {base.kind} buffer")
        _require(base.name in defined, f"output %{value} is never written")
        _require(base.name not in owners, f"output %{base.name} is handed out twice")
        owners.add(base.name)


def _require_symbols(dims: Iterable[Dim], known: frozenset[str], what: str) -> None:
    try:
        unknown = frozenset().union(*map(symbols_of, dims)) - known
    except SizeError as error:
        raise InvalidProgram(f"{what}: {error}") from None
    _require(not unknown, f"{what}: unknown symbol {', '.join(sorted(unknown))}")
