"""Random kernels as native code, for this machine and for lesser ones, against the oracle."""

import numpy as np
import pytest
import torch

from dovetail.codegen.llvm.module import generate
from dovetail.codegen.llvm.target import host, named, stored
from dovetail.file.encode import code_section
from dovetail.ir.kernel_call import call_inputs, call_outputs
from dovetail.ir.kernel_reference import run_kernel
from dovetail.runtime.loaded import TRUST_CODE, open_native
from tests.artifact.files import file_bytes
from tests.native.interpret import kernel_program
from tests.native.random_kernels import RandomKernel


def run_code(kernel, arrays, sizes, target):
    """The kernel's results; there is nothing but the code that could give them."""
    data = file_bytes(
        str(kernel_program(kernel, {name: len(array) for name, array in arrays.items()})),
        generated={f"{kernel.name}@1": kernel.name},
        sections=[code_section({target.level: generate({kernel.name: kernel}, target)})],
    )
    given = [np.zeros(sizes[name], dtype=bool) for name in sorted(kernel.symbols())]
    given += [arrays[b.name] for b in call_inputs(kernel)]
    results = open_native(data, flags=TRUST_CODE)(*map(torch.as_tensor, given))
    names = [b.name for b in call_outputs(kernel)]
    return {n: torch.from_dlpack(r).numpy() for n, r in zip(names, results, strict=True)}


@pytest.mark.parametrize("start", range(0, 120, 20))
def test_random_kernels(start):
    targets = {host(), *(t for t in map(named, stored()) if t.level <= host().level)}
    for seed in range(start, start + 20):
        made = RandomKernel(seed)
        found = [run_code(made.kernel, made.arrays, made.sizes, target) for target in targets]
        run_kernel(made.kernel, made.arrays, made.sizes)
        for results in found:
            for name, result in results.items():
                np.testing.assert_array_equal(result, made.arrays[name], err_msg=str(seed))
