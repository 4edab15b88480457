"""Writing a few places of an input where it lies, in place of a copy that is copied back.

A key-value cache is written by ``index_put`` or ``index_copy``: a graph that is functional makes a
new cache of the old one and copies it over the old one, when one position of thousands changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dovetail.ir.call import Arg, Ref
from dovetail.ir.program import Copy, HostCall, Instruction, KernelCall, Program, reads, writes
from dovetail.ir.strides import same_dims

# The kernel whose result is its first operand but for the places that others name: it may be told
# to write to that operand (native/src/flow.c).
PUT = "put@1"
_ADDS = 0  # the attribute that says so


@dataclass(frozen=True, slots=True)
class _Written:
    """The kernel call that makes the new contents of an input, and the copy of them into it."""

    call: int
    copy: int
    target: str
    made: str


def write_in_place(program: Program) -> Program:
    """Let kernels that change some places of an input write there, where nobody can tell."""
    found = list(_written(program))
    return _rewritten(program, found) if found else program


def is_in_place(instruction: Instruction) -> bool:
    """Whether a kernel's result is memory of its first operand's."""
    return (
        isinstance(instruction, KernelCall)
        and instruction.kernel == PUT
        and instruction.outputs == instruction.inputs[:1]
    )


def _written(program: Program) -> Iterator[_Written]:
    makers = {n: k for k, i in enumerate(program.instructions) for n in writes(i)}
    touched = [_Touched.by(program, i) for i in program.instructions]
    for number, copy in enumerate(program.instructions):
        if isinstance(copy, Copy) and copy.source in makers:
            found = _Written(makers[copy.source], number, copy.target, copy.source)
            if _is_alike(program, found) and _nobody_can_tell(program, found, touched):
                yield found


@dataclass(frozen=True, slots=True)
class _Touched:
    """The buffers whose memory an instruction reads and writes."""

    read: frozenset[str]
    written: frozenset[str]
    may_alias: bool  # its results may be memory of what it reads

    @staticmethod
    def by(program: Program, instruction: Instruction) -> _Touched:
        read, written = (
            frozenset(program.root(n).name for n in names)
            for names in (reads(instruction), writes(instruction))
        )
        return _Touched(read, written, not isinstance(instruction, Copy | KernelCall))


def _is_alike(program: Program, found: _Written) -> bool:
    """Whether a kernel that sets places made the new contents, and they lie as the old ones."""
    target, made = program.by_name[found.target], program.by_name[found.made]
    call = program.instructions[found.call]
    if target.kind not in ("input", "state") or made.kind != "temporary" or made.of:
        return False
    if not isinstance(call, KernelCall) or call.kernel != PUT or call.attributes[_ADDS] != 0:
        return False
    alike = same_dims(made.desc.strides, target.desc.strides) and made.desc == replace(
        target.desc, strides=made.desc.strides
    )
    return alike and call.outputs == (found.made,) and call.inputs[0] == found.target


def _nobody_can_tell(program: Program, found: _Written, touched: Sequence[_Touched]) -> bool:
    """Whether the old contents are needed by nobody, and the new ones stay what they are."""
    call = program.instructions[found.call]
    assert isinstance(call, KernelCall)
    if any(program.root(n).name == found.target for n in call.inputs[1:]):
        return False
    for number, each in enumerate(touched):
        own = number in (found.call, found.copy)
        if not own and not each.written.isdisjoint((found.target, found.made)):
            return False
        if found.call < number < found.copy and found.target in each.read:
            return False
        if number < found.call and each.may_alias and found.target in each.read:
            return False
    return all(b.of != found.made or b.kind == "view" for b in program.buffers)


def _rewritten(program: Program, found: Sequence[_Written]) -> Program:
    names, copies = {w.made: w.target for w in found}, {w.copy for w in found}
    instructions = tuple(
        _renamed(each, names)
        for number, each in enumerate(program.instructions)
        if number not in copies
    )
    buffers = tuple(
        replace(b, of=names.get(b.of, b.of)) for b in program.buffers if b.name not in names
    )
    return replace(program, buffers=buffers, instructions=instructions)


def _renamed(instruction: Instruction, names: Mapping[str, str]) -> Instruction:
    def new(name: str) -> str:
        return names.get(name, name)

    def arg(given: Arg) -> Arg:
        if isinstance(given, Ref):
            return replace(given, name=new(given.name))
        return tuple(map(arg, given)) if isinstance(given, tuple) else given

    changed: dict[str, Any] = {}
    if isinstance(instruction, Copy):
        return Copy(new(instruction.target), new(instruction.source))
    if isinstance(instruction, KernelCall):
        changed["inputs"] = tuple(map(new, instruction.inputs))
    elif isinstance(instruction, HostCall):
        changed["args"] = tuple(map(arg, instruction.args))
        changed["kwargs"] = {key: arg(value) for key, value in instruction.kwargs.items()}
    changed["outputs"] = tuple(map(new, instruction.outputs))
    return replace(instruction, **changed)
