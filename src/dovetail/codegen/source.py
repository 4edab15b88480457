"""Kernel IR as source in a language of C's family: what OpenCL C and plain C have in common.

A dialect subclasses ``SourceRenderer`` and says what its types, functions and pointers are called
and what a kernel's first and last lines look like. The interface between a rendered kernel and
whoever launches it is in order: a pointer for each of ``kernel.buffers``, a 64-bit integer for
each of ``call_sizes(kernel)``, the number of points, and, where the kernel ``has_checks``, a
pointer to a 64-bit flag that is set where an index is out of range.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dovetail.codegen.source_ops import SourceOperations
from dovetail.ir.affine import product
from dovetail.ir.dtypes import COMPUTE, FLOATS
from dovetail.ir.expand import expand
from dovetail.ir.kernel import (
    Apply,
    Axis,
    Const,
    Index,
    Instruction,
    Kernel,
    Load,
    Loop,
    Position,
    Reduce,
    Scan,
    Store,
)
from dovetail.ir.kernel_call import call_sizes
from dovetail.ir.kernel_verify import InvalidKernel, verify_kernel
from dovetail.ir.ops import CHECKS, REDUCTIONS
from dovetail.ir.size import Dim
from dovetail.ir.verify import verify_stage

RUN = 256  # values summed before their sum is added to the total, so that errors grow slowly


def points(kernel: Kernel) -> Dim:
    """How many points the parallel iteration space of a kernel has."""
    return product(axis.extent for axis in kernel.axes)


def has_checks(kernel: Kernel) -> bool:
    """Whether a kernel reports indices that are out of range."""
    return any(isinstance(i, Apply) and i.op in CHECKS for i in kernel.instructions())


class SourceRenderer(SourceOperations):
    """Writes one kernel: each point of its parallel axes runs the loops one after another."""

    prelude: ClassVar[str] = ""  # what stands once at the top of a file
    pointers: ClassVar[Mapping[str, str]] = {}  # a storage type → what a pointer to it is called
    # How half precision is read from a place of a buffer, and written there.
    half: ClassVar[tuple[str, str]] = ("{0}[{1}]", "{0}[{1}] = {2};")

    def __init__(self, kernel: Kernel) -> None:
        kernel = verify_stage("codegen", expand(kernel, self.has), verify_kernel)
        self.kernel = kernel
        self.lines: list[str] = []
        self.depth = 1
        self.sizes = {dim: f"s{n}" for n, dim in enumerate(call_sizes(kernel))}
        self.stored = {b.name: b.dtype for b in kernel.buffers}
        self.types = {i.name: i.dtype for i in kernel.instructions()}
        for name in (kernel.name, *self.stored, *self.types, *(a.name for a in kernel.all_axes())):
            if name and not name.isidentifier():
                raise InvalidKernel(f"{name!r} is not a name")

    def render(self) -> str:
        """The kernel as a function; ``prelude`` has to stand before it."""
        self.begin()
        self._decode(self.kernel.axes)
        for loop in self.kernel.loops:
            self._loop(loop)
        self.end()
        return "\n".join(self.lines) + "\n"

    # ---- what a dialect says ---------------------------------------------------------------

    def begin(self) -> None:
        """The function's head, up to the declaration of ``point``."""
        raise NotImplementedError

    def end(self) -> None:
        """The function's last lines."""
        self.lines.append("}")

    def parameters(self, flag: str) -> list[str]:
        """The function's parameters, where it takes them one by one."""
        roles = {b.name: b.role for b in self.kernel.buffers}
        found = [
            f"{self.pointers[dtype].format('const ' if roles[name] == 'in' else '')}p_{name}"
            for name, dtype in self.stored.items()
        ]
        whole = self.names["int64"]
        found += [f"const {whole} {name}" for name in self.sizes.values()]
        found.append(f"const {whole} points")
        return [*found, flag] if has_checks(self.kernel) else found

    def load(self, buffer: str, place: str, dtype: str) -> str:
        """An element in the type it is computed in."""
        if dtype == "bool":
            return f"(p_{buffer}[{place}] != 0)"
        if dtype == "bfloat16":
            return f"from_bfloat16(p_{buffer}[{place}])"
        if dtype == "float16":
            return self.half[0].format(f"p_{buffer}", place)
        return f"p_{buffer}[{place}]"

    def store(self, buffer: str, place: str, value: str, dtype: str) -> str:
        """A statement that writes an element."""
        if dtype == "bfloat16":
            return f"p_{buffer}[{place}] = to_bfloat16({value});"
        if dtype == "float16":
            return self.half[1].format(f"p_{buffer}", place, value)
        return f"p_{buffer}[{place}] = {value};"

    # ---- structure -------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """One more line at the present depth."""
        self.lines.append("    " * self.depth + text)

    def size(self, dim: Dim) -> str:
        """A size, known or given."""
        return self.number(dim, "int64") if isinstance(dim, int) else self.sizes[dim]

    def _decode(self, axes: tuple[Axis, ...]) -> None:
        """The point's number as a position on each axis, the last one fastest."""
        whole = self.names["int64"]
        for n, axis in reversed(list(enumerate(axes))):
            if n == 0:
                self.line(f"const {whole} i_{axis.name} = point;")
                continue
            self.line(f"const {whole} i_{axis.name} = point % {self.size(axis.extent)};")
            self.line(f"point /= {self.size(axis.extent)};")

    def _loop(self, loop: Loop) -> None:
        if not loop.axes:
            for instruction in loop.body:
                self._emit(instruction)
            return
        reductions = [i for i in loop.body if isinstance(i, Reduce | Scan)]
        for reduction in reductions:
            self._start(reduction, loop)
        for axis in loop.axes:
            i, extent = f"i_{axis.name}", self.size(axis.extent)
            self.line(f"for ({self.names['int64']} {i} = 0; {i} < {extent}; ++{i}) {{")
            self.depth += 1
        for instruction in loop.body:
            if isinstance(instruction, Reduce):
                self._accumulate(instruction)
            else:
                self._emit(instruction)
        for _ in loop.axes:
            self.depth -= 1
            self.line("}")
        for reduction in reductions:
            if _in_runs(reduction):
                self.line(f"v_{reduction.name} = v_{reduction.name} + run_{reduction.name};")

    # ---- instructions ----------------------------------------------------------------------

    def _emit(self, i: Instruction) -> None:
        if isinstance(i, Store):
            stored = self.stored[i.buffer]
            value = self.cast(f"v_{i.value}", self.types[i.value], COMPUTE[stored])
            self.line(self.store(i.buffer, self._place(i.index), value, stored))
        elif isinstance(i, Apply) and i.op in CHECKS:
            self._check(i)
        elif isinstance(i, Scan):
            self._accumulate(i)
            self.line(f"const {self.names[i.dtype]} v_{i.name} = {_total(i)};")
        else:
            self.line(f"const {self.names[i.dtype]} v_{i.name} = {self._value(i)};")

    def _value(self, i: Instruction) -> str:
        if isinstance(i, Const):
            return self.number(i.value, i.dtype)
        if isinstance(i, Position):
            return self._place(i.index)
        if isinstance(i, Load):
            found = self.load(i.buffer, self._place(i.index), self.stored[i.buffer])
            return found if i.mask is None else f"v_{i.mask} ? {found} : 0"
        assert isinstance(i, Apply)
        args = [f"v_{a}" for a in i.args]
        if i.op == "cast":
            return self.cast(args[0], self.types[i.args[0]], i.dtype)
        result = self.apply(i.op, self.types[i.args[-1]], args)
        return f"({self.names[i.dtype]})({result})"

    def _place(self, index: Index) -> str:
        terms = [(f"i_{name}", stride) for name, stride in index.axes]
        terms += [(f"v_{name}", stride) for name, stride in index.values]
        texts = [n if stride == 1 else f"{n} * {self.size(stride)}" for n, stride in terms]
        if index.offset != 0 or not texts:
            texts.insert(0, self.size(index.offset))
        return " + ".join(texts)

    def _check(self, i: Apply) -> None:
        """An index, wrapped if negative where that is meant; out of range sets the flag.

        Or a divisor: zero sets the flag, and something else takes its place.
        """
        index, extent, allowed = (f"v_{a}" for a in i.args)
        wraps = f"{index} < 0 ? {index} + {extent} : {index}" if i.op == "check" else index
        whole, name = self.names["int64"], f"v_{i.name}"
        self.line(f"{whole} {name} = {wraps};")
        code = CHECKS.index(i.op) + 1
        divides = i.op == "check_divisor"
        bad = f"{name} == 0" if divides else f"{name} < 0 || {name} >= {extent}"
        self.line(f"if ({bad}) {{")
        self.line(f"    if ({allowed}) *flag = {code};")
        self.line(f"    {name} = {extent if divides else 0};")
        self.line("}")

    # ---- reductions ------------------------------------------------------------------------

    def _start(self, reduction: Reduce | Scan, loop: Loop) -> None:
        dtype, name = self._accumulated_in(reduction), reduction.name
        first = self.number(REDUCTIONS[reduction.op].identity(dtype), dtype)
        if reduction.op.startswith("arg"):
            self.line(f"{self.names[dtype]} best_{name} = {first};")
            first = self._last_place(loop)
        self.line(f"{self.names[reduction.dtype]} {_total(reduction)} = {first};")
        if _in_runs(reduction):
            self.line(f"{self.names[dtype]} run_{name} = {first};")
            self.line(f"unsigned int count_{name} = 0;")

    def _last_place(self, loop: Loop) -> str:
        """A position that any other comes before; 0 where there is no other."""
        unknown = [a.extent for a in loop.axes if not isinstance(a.extent, int) or a.extent < 1]
        last = self.number(2**63 - 1, "int64")
        tests = " || ".join(f"{self.size(extent)} < 1" for extent in unknown)
        return f"{tests} ? 0 : {last}" if tests else last

    def _accumulated_in(self, reduction: Reduce | Scan) -> str:
        return self.types[reduction.args[0]] if reduction.op.startswith("arg") else reduction.dtype

    def _accumulate(self, reduction: Reduce | Scan) -> None:
        dtype, name, total = self._accumulated_in(reduction), reduction.name, _total(reduction)
        new = self.cast(f"v_{reduction.args[0]}", self.types[reduction.args[0]], dtype)
        if isinstance(reduction, Reduce) and reduction.op.startswith("arg"):
            self._reduce_position(reduction, dtype, new)
        elif _in_runs(reduction):
            self.line(f"run_{name} = run_{name} + {new};")
            self.line(f"if (++count_{name} % {RUN} == 0) {{")
            self.line(f"    {total} = {total} + run_{name};")
            self.line(f"    run_{name} = 0;")
            self.line("}")
        else:
            both = self.apply(REDUCTIONS[reduction.op].operation, dtype, [new, total])
            self.line(f"{total} = ({self.names[dtype]})({both});")

    def _reduce_position(self, reduction: Reduce, dtype: str, new: str) -> None:
        """The better value's position; a NaN beats all, the first of equals wins."""
        best, at, place = f"best_{reduction.name}", f"v_{reduction.name}", f"v_{reduction.args[1]}"
        better = f"{new} {'>' if reduction.op == 'argmax' else '<'} {best}"
        equal = f"{new} == {best}"
        if dtype in FLOATS:
            better += f" || ({new} != {new} && {best} == {best})"
            equal += f" || ({new} != {new} && {best} != {best})"
        self.line(f"if ({better} || (({equal}) && {place} < {at})) {{")
        self.line(f"    {best} = {new};")
        self.line(f"    {at} = {place};")
        self.line("}")


def _total(reduction: Reduce | Scan) -> str:
    """What a reduction has come to: its value in the end, and a scan's at each point."""
    return f"{'so_far' if isinstance(reduction, Scan) else 'v'}_{reduction.name}"


def _in_runs(reduction: Reduce | Scan) -> bool:
    return isinstance(reduction, Reduce) and reduction.op == "sum" and reduction.dtype in FLOATS
