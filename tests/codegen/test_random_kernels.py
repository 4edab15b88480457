"""Random kernels as native code, for this machine and for lesser ones, against the oracle."""

import numpy as np
import pytest
import torch

from dovetail.codegen.llvm.module import generate
from dovetail.codegen.llvm.target import named
from dovetail.file.encode import code_section
from dovetail.file.processors import PROCESSORS, target_here
from dovetail.ir.kernel_call import call_inputs, call_outputs
from dovetail.ir.kernel_text import parse_kernel
from dovetail.runtime.loaded import TRUST, open_native
from dovetail.schedule.cpu.strategy import make_schedule
from dovetail.testing.kernel_reference import run_kernel
from tests.artifact.files import file_bytes
from tests.native.interpret import kernel_program
from tests.native.random_kernels import RandomKernel
from tests.targets import family_targets


def run_tensors(kernel, lengths, given, target, schedule=None):
    """The kernel's results by name; there is nothing but the code that could give them."""
    schedule = schedule or make_schedule(kernel, target)
    code = generate({kernel.name: (kernel, schedule)}, target)
    data = file_bytes(
        str(kernel_program(kernel, lengths)),
        generated={f"{kernel.name}@1": kernel.name},
        sections=[code_section([(PROCESSORS[target.name], code)])],
    )
    results = open_native(data, flags=TRUST)(*map(torch.as_tensor, given))
    names = [b.name for b in call_outputs(kernel)]
    return {n: torch.from_dlpack(r) for n, r in zip(names, results, strict=True)}


def run_code(kernel, arrays, sizes, target, schedule=None):
    """The same on NumPy's arrays."""
    given = [np.zeros(sizes[name], dtype=bool) for name in sorted(kernel.symbols())]
    given += [arrays[b.name] for b in call_inputs(kernel)]
    lengths = {name: len(array) for name, array in arrays.items()}
    found = run_tensors(kernel, lengths, given, target, schedule)
    return {n: r.numpy() for n, r in found.items()}


def targets():
    """What code can be run for here."""
    here = target_here()
    smaller = (name for name in family_targets() if PROCESSORS[name] <= PROCESSORS[here.name])
    return {here, *map(named, smaller)}


@pytest.mark.parametrize("start", range(0, 120, 20))
def test_random_kernels(start):
    for seed in range(start, start + 20):
        made = RandomKernel(seed)
        found = [run_code(made.kernel, made.arrays, made.sizes, target) for target in targets()]
        run_kernel(made.kernel, made.arrays, made.sizes)
        for results in found:
            for name, result in results.items():
                np.testing.assert_array_equal(result, made.arrays[name], err_msg=str(seed))


NEIGHBOURS = """
kernel neighbours(in x: float32, out y: DTYPE) over [i: 40] {
  loop [n: 68] {
    v1: float32 = load x[2 | i * (70) | n * (1)]
    store y[2 | i * (70) | n * (1)] = v1
  }
  loop [j: 1] {
    v2: float32 = load x[1 | i * (70) | j * (1)]
    store y[1 | i * (70) | j * (1)] = v2
  }
  loop [k: 1] {
    v3: float32 = load x[0 | i * (70) | k * (1)]
    store y[0 | i * (70) | k * (1)] = v3
  }
}
"""


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int16", "int8", "bool"])
def test_one_small_element_is_all_that_is_written(dtype):
    """LLVM makes the store of a vector's first lane, where it knows the mask, four bytes wide."""
    kernel = parse_kernel(NEIGHBOURS.replace("DTYPE", dtype))
    x = torch.arange(1, 2801, dtype=torch.float32) % 120
    for target in targets():
        found = run_tensors(kernel, {"x": 2800, "y": 2800}, [x], target)["y"]
        assert torch.equal(found, x.to(getattr(torch, dtype))), target.name
