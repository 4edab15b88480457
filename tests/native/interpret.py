"""Kernels run by the C runtime's interpreter of kernel IR, on NumPy arrays, as the oracle is."""

import dataclasses

import numpy as np
import torch

from dovetail.file import container
from dovetail.file.container import section
from dovetail.file.kernel_encode import encode_kernels
from dovetail.ir.kernel_call import call_inputs, call_outputs, call_sizes
from dovetail.ir.program import Buffer, KernelCall, Program, Symbol
from dovetail.ir.size import Size
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.values import Source
from dovetail.runtime.loaded import open_native
from tests.artifact.files import file_bytes


def ir_section(kernels):
    return section(container.KERNEL_IR, encode_kernels(kernels))


def call_of(kernel, names=None):
    """The instruction that calls a kernel, buffers under other names where given."""
    names = names or {b.name: b.name for b in kernel.buffers}
    outputs = tuple(names[b.name] for b in call_outputs(kernel))
    inputs = tuple(names[b.name] for b in call_inputs(kernel))
    return KernelCall(f"{kernel.name}@1", outputs, inputs, call_sizes(kernel))


def kernel_program(kernel, lengths):
    """A program of one call on flat buffers; symbols are read from inputs of their own."""
    symbols = sorted(kernel.symbols())
    buffers = [
        Buffer(f"size_{name}", "input", TensorDesc("bool", (Size.symbol(name),), (1,)))
        for name in symbols
    ]
    for b in (*call_inputs(kernel), *call_outputs(kernel)):
        desc = TensorDesc(b.dtype, (lengths[b.name],), (1,))
        buffers.append(Buffer(b.name, "input" if b.role == "in" else "output", desc))
    results = tuple(b.name for b in call_outputs(kernel))
    found = tuple(Symbol(name, f"size_{name}", 0) for name in symbols)
    return Program("p", tuple(buffers), (call_of(kernel),), results, symbols=found)


def kernel_file(kernel, lengths):
    """The bytes of such a program, with the kernel as kernel IR and no native code."""
    text = str(kernel_program(kernel, lengths))
    generated = {f"{kernel.name}@1": kernel.name}
    return file_bytes(text, generated=generated, sections=[ir_section([kernel])])


def run_file(data, kernel, buffers, sizes=None):
    """The results, by buffer, of a file of ``kernel_file``."""
    given = [np.zeros((sizes or {})[name], dtype=bool) for name in sorted(kernel.symbols())]
    given += [buffers[b.name] for b in call_inputs(kernel)]
    results = open_native(data)(*map(torch.as_tensor, given))
    names = [b.name for b in call_outputs(kernel)]
    return {n: torch.from_dlpack(r) for n, r in zip(names, results, strict=True)}


def interpret(kernel, buffers, sizes=None):
    """The kernel's results; ``buffers`` are flat arrays or tensors by name."""
    lengths = {name: len(value) for name, value in buffers.items()}
    return run_file(kernel_file(kernel, lengths), kernel, buffers, sizes)


def plan_file(plan):
    """The bytes of a whole plan of kernels: its inputs in order, its first output."""
    out = plan.segment.outputs[0]
    result = plan.values[out.name, out.path]
    names, buffers, calls, kernels = {}, [], [], []

    def named(value, kind):
        if value not in names:
            names[value] = f"m{len(names)}"
            desc = TensorDesc(value.dtype, tuple(value.shape), tuple(value.strides))
            buffers.append(Buffer(names[value], kind, desc))
        return names[value]

    for given in plan.segment.inputs:
        named(plan.values[given.name, ()], "input")
    for number, step in enumerate(plan.steps):
        kernel = dataclasses.replace(step.kernel, name=f"k{number}")
        for value in step.buffers.values():
            assert not isinstance(value, Source) or value in names
            named(value, "output" if value is result else "temporary")
        calls.append(call_of(kernel, {n: names[v] for n, v in step.buffers.items()}))
        kernels.append(kernel)
    program = Program("p", tuple(buffers), tuple(calls), (names[result],))
    generated = {f"{k.name}@1": k.name for k in kernels}
    return file_bytes(str(program), generated=generated, sections=[ir_section(kernels)])
