"""Kernels as one LLVM module: a function the C runtime calls for each of them.

Such a function has the type of ``dvt_kernel.run`` in ``dovetail.h``. It collects the addresses of
its operands and the sizes in a table on its stack and runs the kernel's body over its units of
work, on as many threads as they are worth. So the object code refers to nothing outside itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail import history
from dovetail.codegen.llvm import render
from dovetail.codegen.llvm.emit import Code, Val
from dovetail.codegen.llvm.guard import may_fail, open_buffers
from dovetail.codegen.llvm.report import status
from dovetail.codegen.llvm.target import assemble
from dovetail.ir.affine import count_points
from dovetail.ir.kernel import Kernel, KernelBuffer
from dovetail.ir.kernel_call import call_inputs, call_outputs, call_sizes
from dovetail.ir.ops import LOAD_COST
from dovetail.ir.size import Dim, Size
from dovetail.ir.target import Target
from dovetail.schedule.schedule import Schedule

# Bytes from the start of a dvt_call and of a dvt_tensor in dovetail.h.
_OUTPUTS, _INPUTS, _ATTRIBUTES, _PARALLEL = 16, 24, 32, 40
_DATA, _BYTE_OFFSET = 0, 40
# How often the branches with this note are taken.
SELDOM = '!0 = !{!"branch_weights", i32 1, i32 1000}'
_FLAG = 0  # the table starts with the address of the flag that checks set
# The elements from a tensor's first to its last: 1 + Σ (size - 1) * stride, none if a size is zero.
# Before a call the runtime has shown that this does not overflow.
_REACH = """\
define private i64 @reach(ptr %tensor) #0 {
entry:
  %ndim_at = getelementptr i8, ptr %tensor, i64 16
  %shape_at = getelementptr i8, ptr %tensor, i64 24
  %strides_at = getelementptr i8, ptr %tensor, i64 32
  %few = load i32, ptr %ndim_at
  %ndim = sext i32 %few to i64
  %shape = load ptr, ptr %shape_at
  %strides = load ptr, ptr %strides_at
  br label %next
next:
  %d = phi i64 [ 0, %entry ], [ %following, %dim ]
  %total = phi i64 [ 1, %entry ], [ %more, %dim ]
  %left = icmp slt i64 %d, %ndim
  br i1 %left, label %dim, label %done
dim:
  %size_at = getelementptr i64, ptr %shape, i64 %d
  %stride_at = getelementptr i64, ptr %strides, i64 %d
  %size = load i64, ptr %size_at
  %stride = load i64, ptr %stride_at
  %last = sub i64 %size, 1
  %step = mul i64 %last, %stride
  %more = add i64 %total, %step
  %following = add i64 %d, 1
  %none = icmp eq i64 %size, 0
  br i1 %none, label %empty, label %next
empty:
  ret i64 0
done:
  ret i64 %total
}"""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A kernel's functions, and by their names what else of the module they refer to."""

    text: str
    declared: Mapping[str, str]
    constants: Mapping[str, str]
    functions: Mapping[str, str]


Scheduled = tuple[Kernel, Schedule]


def generate(
    kernels: Mapping[str, Scheduled], target: Target, *, guarded: bool = False, effort: int = 1
) -> bytes:
    """Object code with a function of each kernel's name; ``guarded``: nobody vouches for them."""
    with history.step("codegen"):
        return assemble(module_text(kernels, target, guarded=guarded), target, effort)


def module_text(kernels: Mapping[str, Scheduled], target: Target, *, guarded: bool = False) -> str:
    """The module's text."""
    parts = [rendered(name, *each, target, guarded=guarded) for name, each in kernels.items()]
    return joined(parts, guarded=guarded)


def rendered(
    name: str, kernel: Kernel, schedule: Schedule, target: Target, *, guarded: bool = False
) -> Rendered:
    """A kernel's part of a module."""
    layout = table_layout(kernel, guarded=guarded)
    body = f"{name}.body"
    renderer = render.Renderer(kernel, schedule, target, body, layout, guarded=guarded)
    entry = _entry(name, kernel, schedule, layout, may_fail(kernel, guarded))
    text, c = "\n\n".join([renderer.render(), entry]), renderer.c
    return Rendered(text, c.declared, c.globals, c.functions)


def joined(parts: Sequence[Rendered], *, guarded: bool = False) -> str:
    """The text of a module of these parts."""
    declared: dict[str, str] = {}
    constants: dict[str, str] = {}
    functions: dict[str, str] = {}
    for part in parts:
        declared |= part.declared
        constants |= part.constants
        functions |= part.functions
    reach = [_REACH] if guarded else []
    # A frame larger than a page touches each, so that none is stepped over at a stack's end.
    probes = ' "probe-stack"="inline-asm"' if guarded else ""
    flags = f'attributes #0 = {{ nounwind "prefer-vector-width"="512"{probes} }}\n{SELDOM}'
    shared = [*constants.values(), *declared.values(), *functions.values()]
    return "\n\n".join([*shared, *(part.text for part in parts), *reach, flags, ""])


def table_layout(kernel: Kernel, *, guarded: bool = False) -> render.TableLayout:
    """The flag, the outputs, the inputs, the sizes, how far buffers reach: eight bytes each."""
    buffers = (*call_outputs(kernel), *call_inputs(kernel))
    pointers = {b.name: 1 + n for n, b in enumerate(buffers)}
    sizes: dict[Dim, int] = {d: 1 + len(buffers) + n for n, d in enumerate(call_sizes(kernel))}
    at = 1 + len(buffers) + len(sizes)
    known = open_buffers(kernel) if guarded else ()
    return render.TableLayout(
        pointers, sizes, _FLAG, {name: at + n for n, name in enumerate(known)}
    )


# ---- the function that the runtime calls ---------------------------------------------------


def _entry(
    name: str, kernel: Kernel, schedule: Schedule, layout: render.TableLayout, told: bool
) -> str:
    """Fill the table, run the body on one thread or several, report what the checks found."""
    c = Code(1)
    places = 1 + len(layout.pointers) + len(layout.sizes) + len(layout.reaches)
    c.line("%flag = alloca i64, align 8")
    c.line(f"%table = alloca [{places} x i64], align 8")
    c.line("store i64 0, ptr %flag")
    c.line("store ptr %flag, ptr %table")
    _fill_pointers(c, _OUTPUTS, call_outputs(kernel), layout)
    _fill_pointers(c, _INPUTS, call_inputs(kernel), layout)
    _fill_sizes(c, layout)
    count = _sized(c, schedule.units(kernel), layout)
    _run(c, f"{name}.body", count, _wanted_pieces(c, kernel, schedule, layout, count))
    flag = c.new("load i64, ptr %flag", "int64", 1) if told else None
    c.line(f"ret i32 {'0' if flag is None else status(c, flag).text}")
    return "\n".join([f"define i32 @{name}(ptr %call, ptr %error) #0 {{", *c.lines, "}"])


def _at(c: Code, base: str, offset: int, kind: str) -> Val:
    """What lies ``offset`` bytes behind ``base``."""
    place = c.new(f"getelementptr i8, ptr {base}, i64 {offset}", "ptr", 1)
    return c.new(f"load {kind}, ptr {place.text}", "ptr" if kind == "ptr" else "int64", 1)


def _put(c: Code, position: int, value: Val) -> None:
    place = c.new(f"getelementptr i64, ptr %table, i64 {position}", "ptr", 1)
    c.line(f"store {value.type} {value.text}, ptr {place.text}")


def _fill_pointers(
    c: Code, field: int, buffers: Sequence[KernelBuffer], layout: render.TableLayout
) -> None:
    if not buffers:
        return
    tensors = _at(c, "%call", field, "ptr")
    for n, buffer in enumerate(buffers):
        tensor = _at(c, tensors.text, 8 * n, "ptr")
        data = _at(c, tensor.text, _DATA, "ptr")
        offset = _at(c, tensor.text, _BYTE_OFFSET, "i64")
        start = c.new(f"getelementptr i8, ptr {data.text}, i64 {offset.text}", "ptr", 1)
        _put(c, layout.pointers[buffer.name], start)
        if buffer.name in layout.reaches:
            reach = c.new(f"call i64 @reach(ptr {tensor.text})", "int64", 1)
            _put(c, layout.reaches[buffer.name], reach)


def _fill_sizes(c: Code, layout: render.TableLayout) -> None:
    if not layout.sizes:
        return
    attributes = _at(c, "%call", _ATTRIBUTES, "ptr")
    for n, position in enumerate(layout.sizes.values()):
        _put(c, position, _at(c, attributes.text, 8 * n, "i64"))


def _sized(c: Code, dim: Dim, layout: render.TableLayout) -> Val:
    """A size computed from those in the table."""
    if isinstance(dim, int):
        return c.const(dim, "int64")
    factor, rest = _factored(dim)
    for size, position in layout.sizes.items():
        times, own = _factored(size)
        # A product joins numbers: the table may have 12 * s0 where 384 * s0 is asked.
        if own == rest and factor % times == 0:
            place = c.new(f"getelementptr i64, ptr %table, i64 {position}", "ptr", 1)
            value = c.new(f"load i64, ptr {place.text}", "int64", 1)
            number = c.const(factor // times, "int64")
            return value if factor == times else c.op("mul", value, number)
    left, right = (_sized(c, arg, layout) for arg in dim.args)
    names = {"add": "add", "mul": "mul", "floordiv": "udiv"}  # sizes are not negative here
    return c.op(names[dim.op], left, right)


def _factored(dim: Dim) -> tuple[int, Dim]:
    """A size as a number, positive, times the rest."""
    if isinstance(dim, Size) and dim.op == "mul" and isinstance(dim.args[0], int):
        return (dim.args[0], dim.args[1]) if dim.args[0] > 0 else (1, dim)
    return 1, dim


def _wanted_pieces(
    c: Code, kernel: Kernel, schedule: Schedule, layout: render.TableLayout, count: Val
) -> Val:
    """How many threads the work is worth, and no more than there are units."""
    points = _sized(c, count_points(a.extent for a in kernel.axes), layout)
    # In units of a load: small numbers, which do not overflow.
    each = max(1, round(schedule.cost / LOAD_COST))
    work = c.op("mul", points, c.const(each, "int64"))
    wanted = c.op("udiv", work, c.const(schedule.grain // LOAD_COST, "int64"))
    return c.select(c.compare("icmp slt", count, wanted), count, wanted)


def _run(c: Code, body: str, count: Val, pieces: Val) -> None:
    many, one, done = c.label("many"), c.label("one"), c.label("done")
    several = c.compare("icmp sgt", pieces, c.const(1, "int64"))
    c.line(f"br i1 {several.text}, label %{many}, label %{one}")
    c.start(many)
    more = c.op("add", count, c.op("sub", pieces, c.const(1, "int64")))
    grain = c.op("udiv", more, pieces)
    parallel = _at(c, "%call", _PARALLEL, "ptr")
    c.line(
        f"call void {parallel.text}(i64 {count.text}, i64 {grain.text}, ptr @{body}, ptr %table)"
    )
    c.line(f"br label %{done}")
    c.start(one)
    c.line(f"call void @{body}(ptr %table, i64 0, i64 {count.text})")
    c.block(done)
