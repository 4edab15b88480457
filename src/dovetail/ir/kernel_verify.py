"""The kernel verifier: definitions before uses, known names, types that fit."""

from __future__ import annotations

from dovetail.errors import UnsupportedGraph
from dovetail.ir.dtypes import ANY, COMPUTE
from dovetail.ir.kernel import (
    Apply,
    Const,
    Instruction,
    Kernel,
    Load,
    Loop,
    Position,
    Reduce,
    Scan,
    Store,
)
from dovetail.ir.ops import OPERATIONS, REDUCTIONS
from dovetail.ir.verify import requirement


class InvalidKernel(UnsupportedGraph):
    """A kernel breaks a rule of the IR."""


_require = requirement(InvalidKernel)


def verify_kernel(kernel: Kernel) -> Kernel:
    """The kernel, when it is well formed; InvalidKernel says what is wrong with it."""
    names = [b.name for b in kernel.buffers]
    _require(len(set(names)) == len(names), "two buffers of one name")
    _require(all(b.dtype in COMPUTE for b in kernel.buffers), "a buffer of an unknown type")
    axes = {a.name for a in kernel.axes}
    _require(len(axes) == len(kernel.axes), "two axes of one name")
    visible: dict[str, str] = {}
    for loop in kernel.loops:
        visible |= _verify_loop(kernel, loop, visible, axes)
    return kernel


def _verify_loop(
    kernel: Kernel, loop: Loop, outside: dict[str, str], outer: set[str]
) -> dict[str, str]:
    """Check one loop; what later loops may read."""
    inner = {a.name for a in loop.axes}
    _require(not inner & outer, "a loop's axis is one of the kernel's")
    types, reduced = dict(outside), {}
    for i in loop.body:
        for name in i.uses:
            _require(name in types, f"{name} is used before it is defined")
        _verify_instruction(kernel, i, types, inner | outer)
        if isinstance(i, Reduce):
            _require(bool(loop.axes), "a reduction in a loop without axes")
            reduced[i.name] = i.dtype
        elif isinstance(i, Scan) and len(loop.axes) != 1:
            raise InvalidKernel("a scan in a loop of other than one axis")
        elif not isinstance(i, Store):
            _require(i.name not in types, f"{i.name} is defined twice")
            types[i.name] = i.dtype
    return {n: t for n, t in types.items() if not loop.axes and n not in outside} | reduced


def _verify_instruction(
    kernel: Kernel, i: Instruction, types: dict[str, str], axes: set[str]
) -> None:
    buffers = {b.name: b for b in kernel.buffers}
    if isinstance(i, Load | Store | Position):
        walked = [n for n, _ in i.index.axes]
        _require(all(n in axes for n in walked), "an index along an unknown axis")
        _require(len(set(walked)) == len(walked), "an index along an axis twice")
        _require(all(types[n] == "int64" for n, _ in i.index.values), "an index that is not int64")
    if isinstance(i, Load | Store):
        _require(i.buffer in buffers, f"an unknown buffer {i.buffer}")
        role = buffers[i.buffer].role
        _require(role != ("out" if isinstance(i, Load) else "in"), f"{i.buffer} is {role}")
    if isinstance(i, Store) and i.sums:
        dtype = buffers[i.buffer].dtype
        _require(dtype == types[i.value] and dtype.startswith("float"), f"a sum of {dtype}")
        alone = [s for s in kernel.instructions() if isinstance(s, Store) and s.buffer == i.buffer]
        _require(len(alone) == 1 and not i.index.values, "a sum in memory that others write to")
    if isinstance(i, Position):
        _require(i.dtype == "int64" and not i.index.values, "a position that is not int64")
    if isinstance(i, Const):
        _require(i.dtype in ANY, f"a constant of {i.dtype}")
    if isinstance(i, Load):
        _require(i.mask is None or types[i.mask] == "bool", "a mask that is no bool")
        _require(i.dtype == COMPUTE[buffers[i.buffer].dtype], "a load of another type")
    if isinstance(i, Apply):
        _verify_apply(i, types)
    if isinstance(i, Scan):
        _require(len(i.args) == 1, f"a scan {i.op} of {len(i.args)}")
    if isinstance(i, Reduce | Scan):
        given = tuple(types[a] for a in i.args)
        fits = i.op in REDUCTIONS and REDUCTIONS[i.op].admits(given, i.dtype)
        _require(fits, f"a reduction {i.op} of {_listed(given)} as {i.dtype}")


def _listed(given: tuple[str, ...]) -> str:
    return ", ".join(given) or "nothing"


def _verify_apply(i: Apply, types: dict[str, str]) -> None:
    given = tuple(types[a] for a in i.args)
    fits = i.op in OPERATIONS and OPERATIONS[i.op].admits(given, i.dtype)
    _require(fits, f"{i.op} of {_listed(given)} as {i.dtype}")
