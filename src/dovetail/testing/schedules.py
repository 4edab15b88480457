"""Any schedule of a kernel, run and compared with the reference: what a tuner proposes is right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.codegen.llvm.module import generate
from dovetail.file import container
from dovetail.file.encode import code_section, encode_program
from dovetail.file.processors import PROCESSORS
from dovetail.ir.kernel import Kernel
from dovetail.ir.kernel_call import call_inputs, call_outputs, call_sizes
from dovetail.ir.program import Buffer, KernelCall, Program, Symbol
from dovetail.ir.size import Size
from dovetail.ir.target import Target
from dovetail.ir.tensor import TensorDesc
from dovetail.runtime.loaded import TRUST, open_native
from dovetail.schedule.schedule import Schedule
from dovetail.schedule.verify_schedule import verify_schedule
from dovetail.testing.kernel_reference import run_kernel

Array = Any


def check_schedule(
    kernel: Kernel,
    schedule: Schedule,
    target: Target,
    buffers: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
    *,
    rtol: float = 0.0,
) -> None:
    """Run a kernel under a schedule on this machine; AssertionError where it is not the reference.

    ``buffers`` are flat NumPy arrays, which stay as they are. InvalidSchedule for a schedule of
    something else. Where values are rounded ``rtol`` says how far apart results may be.
    """
    import numpy as np

    verify_schedule(kernel, schedule, target)
    expected = {name: array.copy() for name, array in buffers.items()}
    run_kernel(kernel, expected, sizes or {})
    for name, result in run_schedule(kernel, schedule, target, buffers, sizes).items():
        np.testing.assert_allclose(result, expected[name], rtol=rtol, atol=0, err_msg=name)


def run_schedule(
    kernel: Kernel,
    schedule: Schedule,
    target: Target,
    buffers: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
) -> dict[str, Array]:
    """What a kernel writes under a schedule, by buffer; the C runtime runs its code."""
    import numpy as np

    code = generate({kernel.name: (kernel, schedule)}, target)
    program = _program(kernel, {name: len(array) for name, array in buffers.items()})
    trees = {"inputs": {"tuple": []}, "outputs": {"tensor": 0}}
    name = {f"{kernel.name}@1": kernel.name}
    sections, features = encode_program(program, {}, trees, generated=name, debug=False)
    sections.append(code_section([(PROCESSORS[target.name], code)]))
    data = b"".join(container.chunks(*container.lay_out(sections, features)))
    given = [np.zeros((sizes or {})[symbol], dtype=bool) for symbol in sorted(kernel.symbols())]
    given += [buffers[b.name] for b in call_inputs(kernel)]
    results = open_native(data, flags=TRUST)(*given)
    names = [b.name for b in call_outputs(kernel)]
    return {n: np.from_dlpack(r) for n, r in zip(names, results, strict=True)}


def _program(kernel: Kernel, lengths: Mapping[str, int]) -> Program:
    """One call on flat buffers; symbols are read from inputs of their own."""
    symbols = sorted(kernel.symbols())
    buffers = [
        Buffer(f"size_{name}", "input", TensorDesc("bool", (Size.symbol(name),), (1,)))
        for name in symbols
    ]
    for b in (*call_inputs(kernel), *call_outputs(kernel)):
        desc = TensorDesc(b.dtype, (lengths[b.name],), (1,))
        buffers.append(Buffer(b.name, "input" if b.role == "in" else "output", desc))
    outputs = tuple(b.name for b in call_outputs(kernel))
    inputs = tuple(b.name for b in call_inputs(kernel))
    call = KernelCall(f"{kernel.name}@1", outputs, inputs, call_sizes(kernel))
    found = tuple(Symbol(name, f"size_{name}", 0) for name in symbols)
    return Program("checked", tuple(buffers), (call,), outputs, symbols=found)
