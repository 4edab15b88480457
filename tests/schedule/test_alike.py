"""Kernels alike within a plan: worked out once, told apart by all that differs."""

from unittest.mock import patch

import torch

import dovetail
from dovetail.backends.cpu import program as cpu_program
from dovetail.backends.segment_artifact import artifact_bytes
from dovetail.ir.program import KernelCall
from dovetail.schedule import plan
from dovetail.schedule.program import Kernels
from dovetail.schedule.simplify import simplify
from tests.codegen.kernels import kernels_of
from tests.differential import assert_same, needs_code


def zeros_of_both_signs(x):
    """Three kernels, of which the second has the negative zero, with a library's call between."""
    for zero in (0.0, -0.0, 0.0):
        x = torch.where(x > 2, x, zero).sort().values
    return x


def test_kernels_alike_are_simplified_once(monkeypatch):
    seen = []

    def counted(kernel, limits):
        seen.append(kernel)
        return simplify(kernel, limits)

    monkeypatch.setattr(plan, "simplify", counted)
    kernels = kernels_of(zeros_of_both_signs, torch.randn(40))
    assert len({kernel.name for kernel in kernels}) == len(kernels) == 3
    assert len(seen) == 2
    assert kernels[0].loops is kernels[2].loops
    assert str(kernels[0].loops) != str(kernels[1].loops)
    names = Kernels()
    assert len({names.add(kernel) for kernel in kernels}) == 2


@needs_code
def test_zeros_keep_their_signs():
    x = torch.tensor([1.0, -3.0, 3.0, 0.5])

    def fn(x):
        first = torch.where(x > 2, x, 0.0)
        return first, torch.where(first.sort().values > 2, x, -0.0)

    found = torch.compile(fn, backend="cpu")(x)
    for ours, eager in zip(found, fn(x), strict=True):
        assert torch.equal(ours.signbit(), eager.signbit())


def recurrence(x, w):
    h = torch.zeros_like(x[0])
    for step in x.unbind(0):
        h = torch.tanh(step @ w + h)
    return h


def calls_of(fn, *args):
    """The kernels that the program of a function calls, in order."""
    found = []

    def spy(segment, lowered, *rest):
        found.extend(i.kernel for i in lowered.program.instructions if isinstance(i, KernelCall))
        return artifact_bytes(segment, lowered, *rest)

    with patch.object(cpu_program, "artifact_bytes", spy):
        assert_same(fn, *args, backend="cpu", dynamic=False, cache=False)
    return found


@needs_code
def test_steps_that_differ_in_where_they_read_are_one_kernel():
    calls = calls_of(recurrence, torch.randn(9, 4, 8), torch.randn(8, 8))
    assert len(calls) >= 9
    assert len(set(calls)) <= 4


def windows(x, y):
    """Reads that start later: of inputs, of what a library made, backwards, gathered, masked."""
    ordered = y.sort(0).values
    several = [x[k : k + 3, 1:] * 2 + ordered[k, 1:] for k in range(4)]
    back = x[2:].flip(0).exp()
    chosen = x[2:][torch.tensor([1, 0, 2])].sin()
    padded = torch.nn.functional.pad(x[3:, 2:], (2, 1, 1, 0)) + 1
    strided = x.t()[1::2, 1::3].neg()
    return several, back, chosen, padded, strided, x[5:].sum(), y[-1:].clone()


@needs_code
def test_windows_on_memory():
    x, y = torch.randn(7, 6), torch.randn(5, 6)
    assert_same(windows, x, y, backend="cpu")
    assert_same(windows, x.t().contiguous().t(), y[:, :1].expand(5, 6), backend="cpu")
    assert_same(windows, x[:, :3].repeat(1, 2)[:, ::1], y, backend="cpu", dynamic=True)
    wide = torch.randn(9, 8)
    assert_same(windows, wide[1:8, 1:7], wide[:5, 2:], backend="cpu")


@needs_code
def test_windows_in_a_file(tmp_path):
    """As code, and made again from kernel IR, with checks."""

    class Windows(torch.nn.Module):
        def forward(self, x, w):
            return recurrence(x, w), x[2, 1:] * 3

    args = torch.randn(5, 4, 8), torch.randn(8, 8)
    exported = dovetail.export(Windows(), args, backend="cpu")
    exported.save(tmp_path / "windows.dvt")
    for trust in (True, False):
        found = dovetail.load(tmp_path / "windows.dvt", trust=trust)(*args)
        torch.testing.assert_close(tuple(found), Windows()(*args))
