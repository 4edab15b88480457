"""Functions of math: the same bits from every processor, and float32 of two operands."""

import itertools
import math

import numpy as np
import pytest
import torch

from dovetail.ir.kernel_call import call_inputs, call_outputs
from tests.codegen.kernels import kernels_of
from tests.codegen.test_accuracy import SPECIAL, UNARY, ulps, whole_range
from tests.codegen.test_random_kernels import run_code, targets


@pytest.mark.parametrize("name", UNARY)
def test_processors_give_the_same_bits(name):
    x = whole_range(2**20 + 7)
    kernels = kernels_of(UNARY[name], x)
    assert len(kernels) == 1
    (given,), (result,) = call_inputs(kernels[0]), call_outputs(kernels[0])
    arrays = {given.name: x.numpy(), result.name: np.zeros(len(x), np.float32)}
    first, *others = (run_code(kernels[0], arrays, {}, target) for target in targets())
    if not others:
        pytest.skip("this machine runs one kind of code")
    for other in others:
        np.testing.assert_array_equal(first[result.name], other[result.name])


def pairs():
    """Numbers of every size, of like size, and all pairs of special ones."""
    g = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**31), 2**31, (2, 300_000), generator=g).to(torch.int32)
    near = torch.randn(2, 300_000, generator=g)
    special = torch.tensor(list(itertools.product(SPECIAL, SPECIAL))).t()
    return torch.cat([bits.view(torch.float32), near, special], 1)


@pytest.mark.parametrize("name", ["atan2", "hypot"])
def test_two_operands_beside_eager(name):
    fn, (x, y) = getattr(torch, name), pairs()
    exact = fn(x.double(), y.double())
    eager, ours = fn(x, y), torch.compile(fn, backend="cpu")(x, y)
    normal = exact.abs().float() >= 1.2e-38
    mine, theirs = (torch.where(normal, ulps(v, exact), 0.0).max() for v in (ours, eager))
    assert mine <= 2 * theirs, (mine, theirs)
    assert torch.equal(ours.isnan(), exact.isnan())
    assert torch.equal(ours == math.inf, exact.float() == math.inf)
    zero = exact == 0
    assert torch.equal(ours[zero], exact[zero].float())
    assert torch.equal(torch.signbit(ours[zero]), torch.signbit(exact[zero]))
