"""Kernels run by the C runtime's interpreter of kernel IR, on NumPy arrays, as the oracle is."""

import dataclasses

import numpy as np
import torch

from dovetail.file import container
from dovetail.file.container import section
from dovetail.file.kernel_encode import encode_kernels
from dovetail.ir.kernel_call import call_inputs, call_outputs, call_sizes
from dovetail.ir.program import Buffer, Kernel, Program, Symbol
from dovetail.ir.size import Size
from dovetail.ir.tensor import TensorDesc
from dovetail.runtime.loaded import INSPECT, open_native
from tests.artifact.files import file_bytes

NAME = "generated"


def kernel_file(kernel, lengths, sizes=None):
    """A file of one instruction that calls the kernel on flat buffers of these lengths.

    Symbols are read from inputs of their own, which nobody reads otherwise.
    """
    sizes = sizes or {}
    inputs, outputs = call_inputs(kernel), call_outputs(kernel)
    symbols = sorted(frozenset().union(*(s.symbols() for s in call_sizes(kernel)), ()))
    buffers = [
        Buffer(f"size_{name}", "input", TensorDesc("bool", (Size.symbol(name),), (1,)))
        for name in symbols
    ]
    for role, group in (("input", inputs), ("output", outputs)):
        buffers += [
            Buffer(b.name, role, TensorDesc(b.dtype, (lengths[b.name],), (1,))) for b in group
        ]
    call = Kernel(
        f"{NAME}@1",
        tuple(b.name for b in outputs),
        tuple(b.name for b in inputs),
        call_sizes(kernel),
    )
    program = Program(
        "p",
        tuple(buffers),
        (call,),
        tuple(b.name for b in outputs),
        symbols=tuple(Symbol(name, f"size_{name}", 0) for name in symbols),
    )
    data = encode_kernels([dataclasses.replace(kernel, name=NAME)])
    return file_bytes(
        str(program),
        generated={f"{NAME}@1": NAME},
        sections=[section(container.KERNEL_IR, data)],
    ), [np.zeros(sizes[name], dtype=bool) for name in symbols]


def interpret(kernel, buffers, sizes=None):
    """The kernel's results by buffer; ``buffers`` are flat arrays or tensors by name."""
    lengths = {name: len(value) for name, value in buffers.items()}
    data, given = kernel_file(kernel, lengths, sizes)
    native = open_native(data)
    given += [buffers[b.name] for b in call_inputs(kernel)]
    results = native(*(torch.as_tensor(value) for value in given))
    names = [b.name for b in call_outputs(kernel)]
    return {n: torch.from_dlpack(r) for n, r in zip(names, results, strict=True)}


__all__ = ["INSPECT", "NAME", "interpret", "kernel_file"]
