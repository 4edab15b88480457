"""Several kernels as one LLVM module with an entry per group of kernels.

An entry takes one pointer, the table: addresses of the thread functions, the number of threads, a
flag, then the buffers' addresses and the sizes, eight bytes each. So the object code refers to
nothing outside itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail.codegen.llvm import render
from dovetail.codegen.llvm.emit import Code, Val
from dovetail.ir.affine import product
from dovetail.ir.kernel import Apply, Kernel, Load, Store
from dovetail.ir.size import Dim

PARALLEL, THREAD, TEAM, THREADS, FLAG = range(5)
HEADER = 5
GRAIN = 32768  # element operations that are worth a thread
_COSTLY = frozenset({"exp", "exp_normal", "tanh", "erf", "sigmoid", "div", "sqrt"})
_DEAR = frozenset({"sin", "cos", "tan", "log", "log2", "log10", "log1p", "expm1", "exp2", "pow"})


@dataclass(frozen=True, slots=True)
class Table:
    """The order of pointers and sizes behind the header."""

    pointers: tuple[str, ...]
    sizes: tuple[Dim, ...]

    def layout(self, names: Mapping[str, str]) -> render.Layout:
        """Where a kernel finds what it needs; ``names`` maps its buffers to the table's."""
        place = {name: HEADER + n for n, name in enumerate(self.pointers)}
        start = HEADER + len(self.pointers)
        sizes = {dim: start + n for n, dim in enumerate(self.sizes)}
        return render.Layout({k: place[v] for k, v in names.items()}, sizes, FLAG)


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with the table's names for its buffers."""

    kernel: Kernel
    buffers: Mapping[str, str]


def module_text(groups: Sequence[tuple[Table, Sequence[Launch]]], lanes: int) -> str:
    """The module: ``entry_0``, ``entry_1``, … run the groups."""
    parts: list[str] = []
    declared: dict[str, str] = {}
    constants: dict[str, str] = {}
    for number, (table, launches) in enumerate(groups):
        calls = []
        for position, launch in enumerate(launches):
            name = f"kernel_{number}_{position}"
            layout = table.layout(launch.buffers)
            renderer = render.Renderer(launch.kernel, name, layout, lanes)
            parts.append(renderer.render())
            declared |= renderer.c.declared
            constants |= renderer.c.globals
            calls.append((name, launch.kernel, layout))
        parts += [_task(*call) for call in calls]
        parts.append(_entry(f"entry_{number}", calls))
    flags = 'attributes #0 = { nounwind "prefer-vector-width"="512" }'
    return "\n\n".join([*constants.values(), *declared.values(), *parts, flags, ""])


def cost(kernel: Kernel) -> float:
    """Element operations at one point of the parallel axes and loops together."""
    total = 0.0
    for loop in kernel.loops:
        points = product(a.extent for a in loop.axes)
        each = 0.0
        for i in loop.body:
            if isinstance(i, Apply):
                each += 6 if i.op in _COSTLY else 16 if i.op in _DEAR else 0.5
            elif isinstance(i, Load | Store):
                each += 1
        total += each * (points if isinstance(points, int) else 256)
    return total


def _sized(c: Code, dim: Dim, layout: render.Layout) -> Val:
    """A size computed from those in the table."""
    if isinstance(dim, int):
        return c.const(dim, "int64")
    if dim in layout.sizes:
        place = c.new(f"getelementptr i64, ptr %table, i64 {layout.sizes[dim]}", "ptr", 1)
        return c.new(f"load i64, ptr {place.text}", "int64", 1)
    left, right = (_sized(c, arg, layout) for arg in dim.args)
    names = {"add": "add", "mul": "mul", "floordiv": "udiv"}  # sizes are not negative here
    return c.op(names[dim.op], left, right)


def _units(c: Code, kernel: Kernel, layout: render.Layout) -> Val:
    return _sized(c, render.units(kernel), layout)


def _header(c: Code, position: int, kind: str = "ptr") -> Val:
    place = c.new(f"getelementptr i64, ptr %table, i64 {position}", "ptr", 1)
    return c.new(f"load {kind}, ptr {place.text}", "ptr" if kind == "ptr" else "int64", 1)


def _task(name: str, kernel: Kernel, layout: render.Layout) -> str:
    """What each thread runs: its share of the units."""
    c = Code(1)
    count = _units(c, kernel, layout)
    numbers = []
    for position in (THREAD, TEAM):
        function = _header(c, position)
        number = c.new(f"call i32 {function.text}()", "int32", 1)
        numbers.append(c.convert("sext", number, "int64"))
    thread, team = numbers
    share = c.op("udiv", c.op("add", count, c.op("sub", team, c.const(1, "int64"))), team)
    begin = c.op("mul", thread, share)
    end = c.op("add", begin, share)
    end = c.select(c.compare("icmp slt", count, end), count, end)
    c.line(f"call void @{name}(ptr %table, i64 {begin.text}, i64 {end.text})")
    c.line("ret void")
    return "\n".join([f"define internal void @{name}_task(ptr %table) #0 {{", *c.lines, "}"])


def _entry(name: str, calls: Sequence[tuple[str, Kernel, render.Layout]]) -> str:
    """Run the kernels in order, each on as many threads as its work is worth."""
    c = Code(1)
    threads = _header(c, THREADS, "i64")
    parallel = _header(c, PARALLEL)
    for kernel_name, kernel, layout in calls:
        count = _units(c, kernel, layout)
        wanted = _wanted_threads(c, kernel, layout, count, threads)
        many, one, done = c.label("many"), c.label("one"), c.label("done")
        several = c.compare("icmp sgt", wanted, c.const(1, "int64"))
        c.line(f"br i1 {several.text}, label %{many}, label %{one}")
        c.start(many)
        narrow = c.convert("trunc", wanted, "int32")
        c.line(
            f"call void {parallel.text}(ptr @{kernel_name}_task, ptr %table, "
            f"i32 {narrow.text}, i32 0)"
        )
        c.line(f"br label %{done}")
        c.start(one)
        c.line(f"call void @{kernel_name}(ptr %table, i64 0, i64 {count.text})")
        c.block(done)
    c.line("ret void")
    return "\n".join([f"define void @{name}(ptr %table) #0 {{", *c.lines, "}"])


def _wanted_threads(
    c: Code, kernel: Kernel, layout: render.Layout, count: Val, threads: Val
) -> Val:
    points = _sized(c, product(a.extent for a in kernel.axes), layout)
    each = max(1, round(cost(kernel)))
    work = c.op("mul", points, c.const(each, "int64"))
    wanted = c.op("udiv", work, c.const(GRAIN, "int64"))
    for bound in (count, threads):
        wanted = c.select(c.compare("icmp slt", bound, wanted), bound, wanted)
    return wanted
