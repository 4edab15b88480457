"""Whole kernels in the C interpreter: random ones, and those the scheduler makes of programs."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from dovetail.errors import UntrustedArtifact
from dovetail.file import container
from dovetail.file.kernel_decode import decode_kernels
from dovetail.file.kernel_encode import encode_kernels
from dovetail.ir.kernel_text import parse_kernel
from dovetail.ir.kernel_verify import verify_kernel
from dovetail.runtime.loaded import INSPECT, open_native
from dovetail.schedule.build import Built
from dovetail.testing.kernel_reference import run_kernel
from tests.artifact.files import file_bytes
from tests.codegen.kernels import PROGRAMS, plan_of
from tests.codegen.test_programs import FUSED, LAYOUTS
from tests.native.interpret import call_of, interpret, ir_section, kernel_program, plan_file
from tests.native.random_kernels import RandomKernel

pytestmark = [
    pytest.mark.filterwarnings("ignore::dovetail.errors.FallbackWarning"),
    pytest.mark.xdist_group("kernel_ir"),
]
F = nn.functional


@pytest.mark.parametrize("start", range(0, 400, 50))
def test_random_kernels(start):
    """Encoded, decoded, and run: the same kernel, the oracle's results."""
    for seed in range(start, start + 50):
        made = RandomKernel(seed)
        kernel = verify_kernel(made.kernel)
        data = encode_kernels([kernel])
        assert encode_kernels(decode_kernels(data)) == data
        got = interpret(kernel, {n: a.copy() for n, a in made.arrays.items()}, made.sizes)
        run_kernel(kernel, made.arrays, made.sizes)
        for name, result in got.items():
            np.testing.assert_array_equal(result.numpy(), made.arrays[name], err_msg=str(seed))


# ---- what the scheduler makes ------------------------------------------------------------------


def randn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def indices(count, limit):
    return torch.randint(limit, (count,), generator=torch.Generator().manual_seed(count))


class Block(nn.Module):
    """A transformer block without its products' help: norms, gates, residuals."""

    def __init__(self):
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(48), nn.Parameter(torch.linspace(-1, 1, 48))

    def forward(self, x):
        y = F.gelu(self.norm(x)) * torch.sigmoid(self.gate)
        return torch.softmax(x + y, -1) * F.silu(x)


CASES = {
    **PROGRAMS,
    **{f"fused_{name}": (fn, (randn(32, 64),)) for name, fn in FUSED.items()},
    **{
        f"long_{name}": (fn, (randn(600, 64),))
        for name, fn in FUSED.items()
        if name != "group_norm"  # it splits 32 rows
    },
    **{
        f"layout_{name}": (lambda x: (x * 2 + 1, x.exp().sum(), x.sigmoid() - x), (make(),))
        for name, make in LAYOUTS.items()
        if name not in ("empty", "expanded")
    },
    "block": (Block().eval().requires_grad_(False), (randn(3, 7, 48),)),
    "wide_softmax": (lambda x: torch.softmax(x, -1), (randn(3, 2000),)),
    "column_softmax": (lambda x: torch.softmax(x, 0), (randn(50, 700),)),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), (randn(6, 3, 5, 5),)),
    "embedding": (lambda i, w: F.embedding(i, w) + 1, (indices(40, 9), randn(9, 12))),
    "pad": (lambda x: F.pad(x, (2, 1, 0, 3), value=7.0), (randn(4, 5),)),
    "roll": (lambda x: torch.roll(x, 3, 1) - x.flip(0), (randn(5, 9),)),
    "triangle": (lambda x: x.tril() + x.triu(1), (randn(9, 9),)),
    "half": (lambda x: (x.half() * 2).softmax(-1), (randn(8, 40),)),
    "bfloat16": (lambda x: F.layer_norm(x.bfloat16(), (40,)).float(), (randn(8, 40),)),
    "bools": (lambda x: (x > 0).any(1) & ~(x > 2).all(1), (randn(9, 30),)),
    "counts": (lambda x: (x > 0).sum(0), (randn(9, 30),)),
    "cumulative": (lambda x: x.amax(1) - x.amin(1) + x.mean(1), (randn(9, 30),)),
    "double": (lambda x: x.double().log_softmax(0), (randn(9, 30),)),
    "scalar": (lambda x: x.sum() / x.abs().max(), (randn(70, 90),)),
}


def memory_of(plan, args):
    """Each input's memory as the plan lays it out."""
    left = list(args)
    memory = {}
    for given in plan.segment.inputs:
        shape, dtype = tuple(given.desc.shape), getattr(torch, given.desc.dtype)
        found = next(a for a in left if tuple(a.shape) == shape and a.dtype == dtype)
        left = [a for a in left if a is not found]
        span = 1 + sum((n - 1) * s for n, s in zip(shape, given.desc.strides, strict=True))
        memory[plan.values[given.name, ()]] = found.as_strided((span,), (1,)).clone()
    return memory


def span_of(value):
    return 1 + sum((n - 1) * s for n, s in zip(value.shape, value.strides, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_kernels_of_programs(name):
    """Every kernel of a plan, on the oracle's inputs, gives the oracle's outputs."""
    fn, args = CASES[name]
    tensors = [*args, *(fn.parameters() if isinstance(fn, nn.Module) else ())]
    plan = plan_of(fn, *args)
    memory = memory_of(plan, tensors)
    for step in (s for s in plan.steps if isinstance(s, Built)):
        for value in step.buffers.values():
            if value not in memory:
                memory[value] = torch.zeros(span_of(value), dtype=getattr(torch, value.dtype))
        assert_kernel(step.kernel, {n: memory[v] for n, v in step.buffers.items()})


def assert_kernel(kernel, buffers):
    got = interpret(kernel, {n: v.clone() for n, v in buffers.items()})
    halves = {n for n, v in buffers.items() if v.dtype == torch.bfloat16}
    wide = {b.name: "float32" for b in kernel.buffers if b.name in halves}
    changed = tuple(dataclasses.replace(b, dtype=wide.get(b.name, b.dtype)) for b in kernel.buffers)
    arrays = {n: (v.float() if n in halves else v).numpy() for n, v in buffers.items()}
    run_kernel(dataclasses.replace(kernel, buffers=changed), arrays)
    for n, result in got.items():
        expected = torch.from_numpy(arrays[n]).to(result.dtype)
        buffers[n].copy_(expected)
        torch.testing.assert_close(result, expected, equal_nan=True)


@pytest.mark.parametrize("name", ["gelu", "softmax", "layer_norm", "argmax", "cat", "integers"])
def test_a_file_of_kernels_gives_eagers_result(name):
    fn, args = PROGRAMS[name]
    plan = plan_of(fn, *args)
    by_shape = {tuple(a.shape): a for a in args}
    given = [by_shape[tuple(g.desc.shape)] for g in plan.segment.inputs]
    (result,) = open_native(plan_file(plan))(*given)
    torch.testing.assert_close(torch.from_dlpack(result), fn(*args))


IN_PLACE = """\
program @p
input %x: float32[700]
temporary %a: float32[700]
temporary %b: float32[700] of %a
output %c: float32[700]
output %d: float32[700]
kernel %a = neg@1(%x)
kernel %b, %c = twice@1(%a)
kernel %d = neg@1(%b)
return %c, %d
"""
TWICE = """\
kernel twice(in x: float32, out y: float32, out z: float32) over [i: 700] {
  loop [] {
    a: float32 = load x[0 | i * (1)]
    b: float32 = add(a, a)
    store y[0 | i * (1)] = b
    c: float32 = mul(a, b)
    store z[0 | i * (1)] = c
  }
}
"""


def test_a_result_may_take_the_place_of_an_operand():
    """What was loaded stays as it was, although its memory has been written over."""
    kernel = parse_kernel(TWICE)
    native = open_native(
        file_bytes(IN_PLACE, generated={"twice@1": "twice"}, sections=[ir_section([kernel])])
    )
    x = torch.randn(700)
    c, d = map(torch.from_dlpack, native(x))
    assert torch.equal(c, 2 * x * x)
    assert torch.equal(d, 2 * x)


HALVES = """\
program @p
input %x: float32[4]
output %y: float32[8]
kernel %y = low@1(%x)
kernel %y = high@1(%x)
return %y
"""


def test_two_kernels_may_write_one_buffer():
    """What an earlier kernel wrote stays where a later one does not write."""
    text = """\
kernel NAME(in x: float32, out y: float32) over [i: 4] {
  loop [] {
    a: float32 = load x[0 | i * (1)]
    store y[OFFSET | i * (1)] = a
  }
}
"""
    kernels = [
        parse_kernel(text.replace("NAME", name).replace("OFFSET", offset))
        for name, offset in (("low", "0"), ("high", "4"))
    ]
    generated = {"low@1": "low", "high@1": "high"}
    native = open_native(file_bytes(HALVES, generated=generated, sections=[ir_section(kernels)]))
    assert torch.from_dlpack(native(torch.arange(4.0))[0]).tolist() == [0, 1, 2, 3] * 2


def test_many_threads_may_run_one_file():
    fn, args = PROGRAMS["layer_norm"]
    plan = plan_of(fn, *args)
    native = open_native(plan_file(plan))
    by_shape = {tuple(a.shape): a for a in args}
    given = [by_shape[tuple(g.desc.shape)] for g in plan.segment.inputs]
    expected = torch.from_dlpack(native(*given)[0])
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: torch.from_dlpack(native(*given)[0]), range(200)))
    assert all(torch.equal(r, expected) for r in results)


# ---- files -------------------------------------------------------------------------------------


def kernel_and_file(*sections, flags=0):
    """A file of one kernel with these sections besides, opened."""
    (step,) = plan_of(*[PROGRAMS["softmax"][0], *PROGRAMS["softmax"][1]]).steps
    kernel = dataclasses.replace(step.kernel, name="softmax_rows")
    lengths = {b.name: 6 * 33 for b in kernel.buffers}
    text = str(kernel_program(kernel, lengths))
    generated = {call_of(kernel).kernel: kernel.name}
    made = [s(kernel) if callable(s) else s for s in sections]
    return open_native(file_bytes(text, generated=generated, sections=made), flags=flags)


def untrusted_code():
    """A code section that nobody signed, so that it is not even looked at."""
    return container.section(container.CODE, bytes(64))


def test_code_that_is_not_trusted_is_interpreted():
    native = kernel_and_file(untrusted_code(), lambda kernel: ir_section([kernel]))
    assert native.code() == -2
    x = torch.randn(6 * 33)
    result = torch.from_dlpack(native(x)[0]).view(6, 33)
    torch.testing.assert_close(result, x.view(6, 33).softmax(-1))


def test_code_that_is_not_trusted_and_nothing_else_is_refused():
    with pytest.raises(UntrustedArtifact):
        kernel_and_file(untrusted_code())


def test_a_kernel_of_another_name_does_not_serve():
    with pytest.raises(UntrustedArtifact):
        kernel_and_file(
            untrusted_code(), lambda kernel: ir_section([dataclasses.replace(kernel, name="x")])
        )


def test_looking_at_a_file_interprets_nothing():
    native = kernel_and_file(lambda kernel: ir_section([kernel]), flags=INSPECT)
    assert native.code() == 0
