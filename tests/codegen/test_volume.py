"""Kernels that would become too much code: written once, with calls, with the same results."""

import itertools

import numpy as np
import pytest
import torch

from dovetail.backends.cpu.code import scheduled
from dovetail.codegen.llvm import outline
from dovetail.codegen.llvm.emit import Code, Val
from dovetail.codegen.llvm.math import FUNCTIONS
from dovetail.codegen.llvm.module import module_text
from dovetail.codegen.llvm.ranges import small_divisions
from dovetail.codegen.llvm.scalar import has
from dovetail.ir.dtypes import COMPUTED, FLOATS
from dovetail.ir.kernel import Apply
from dovetail.ir.ops import OPERATIONS
from dovetail.ir.target import TARGETS
from dovetail.schedule.cpu import code_size, strategy
from dovetail.schedule.cpu.strategy import make_schedule
from dovetail.schedule.cpu.volume import Budget, step_counts
from dovetail.testing.kernel_reference import run_kernel
from tests.codegen.kernels import PROGRAMS, kernels_of, plan_of
from tests.codegen.test_random_kernels import run_code, targets
from tests.differential import assert_same
from tests.native.random_kernels import RandomKernel


@pytest.fixture
def nothing_fits(monkeypatch):
    """Every kernel is over the limit, and every function is worth a call."""
    monkeypatch.setattr(strategy, "BUDGET", Budget(kernel=0, call=0))


@pytest.mark.parametrize("start", range(0, 40, 20))
def test_the_short_form_computes_the_same(nothing_fits, start):
    for seed in range(start, start + 20):
        made = RandomKernel(seed)
        found = [run_code(made.kernel, made.arrays, made.sizes, target) for target in targets()]
        run_kernel(made.kernel, made.arrays, made.sizes)
        for results in found:
            for name, result in results.items():
                np.testing.assert_array_equal(result, made.arrays[name], err_msg=str(seed))


@pytest.mark.parametrize("name", ["gelu", "softmax", "layer_norm", "column_sum", "argmax"])
def test_programs_in_the_short_form(nothing_fits, name):
    fn, args = PROGRAMS[name]
    torch._dynamo.reset()
    with torch.no_grad():
        result = torch.compile(fn, backend="cpu", dynamic=False)(*args)
    torch.testing.assert_close(result, fn(*args))


AVX512 = TARGETS["x86-64-v4"]


def masks(kernel):
    """Where each way along a vector axis leaves out lanes."""
    schedule = make_schedule(kernel, AVX512)
    ways = [schedule.steps, *(loop.steps for loop in schedule.loops)]
    return {steps.masked for steps in ways if steps is not None}


def test_small_kernels_are_written_as_ever():
    (kernel,) = kernels_of(torch.exp, torch.randn(7, 251))
    assert masks(kernel) == {"rest"}
    assert not make_schedule(kernel, AVX512).calls


def test_a_function_needed_several_times_is_called():
    def fn(x):
        return (x.erfc() - x.erfc().mean(-1, keepdim=True)) * x.erfc().amax(-1, keepdim=True)

    (kernel,) = kernels_of(fn, torch.randn(8, 250, dtype=torch.float64))
    assert masks(kernel) == {"all"}
    assert ("erfc", "float64") in make_schedule(kernel, AVX512).calls
    text = module_text(scheduled({"k": kernel}, AVX512), AVX512)
    assert text.count("define private <16 x double> @math.erfc.float64.16") == 1
    assert text.count("call <16 x double> @math.erfc.float64.16") > 1


def test_sine_and_cosine_share_their_reduction():
    (kernel,) = kernels_of(lambda x: x.sin() + x.cos(), torch.randn(64, 64))
    text = module_text(scheduled({"k": kernel}, AVX512), AVX512)
    assert text.count("call void @math.large_angles.short") == 1


def test_many_functions_are_several_kernels():
    def fn(x):
        for each in (torch.sin, torch.tan, torch.erfc, torch.asinh, torch.atan, torch.sinh):
            x = each(x)
        return x

    assert len(plan_of(fn, torch.randn(64)).steps) > 1
    assert len(plan_of(lambda x: x.sin().sin().sin().sin().sin().sin(), torch.randn(64)).steps) == 1


@pytest.mark.parametrize(
    ("extent", "unroll", "expected"),
    [
        (8, 4, []),
        (16, 4, [1]),
        (63, 4, [1]),
        (64, 4, [4]),
        (70, 4, [4]),
        (80, 4, [4, 1]),
        (80, 1, [1]),
    ],
)
def test_loops_that_would_not_run_are_not_written(extent, unroll, expected):
    assert step_counts(extent, 16, unroll) == tuple(expected)


def combinations():
    """Operations with the types they give and are given, as kernels have them."""
    for row in OPERATIONS.values():
        for dtype, result in itertools.product(COMPUTED, COMPUTED):
            for given in ((dtype,) * row.arity, ("bool", dtype, dtype)):
                if row.admits(given, result) and row.rule != "check" and has(row.name):
                    yield row.name, result, given
    yield from ((outline.ERF_PLUS_ONE, dtype, (dtype,)) for dtype in sorted(FLOATS))


@pytest.mark.parametrize("target", ["armv8-a", "x86-64-v3", "x86-64-v4"])
def test_the_table_of_sizes_is_what_is_emitted(target):
    native = TARGETS[target].lanes
    wrong = []
    for op, dtype, given in combinations():
        for lanes in (1, 2, native // 2, native, 4 * native):
            c = Code(native)
            outline.write(c, op, dtype, tuple(Val(f"%a{n}", t, lanes) for n, t in enumerate(given)))
            wide = sum("double" in line or "i64" in line for line in c.lines)
            avx512 = "avx512f" in TARGETS[target].features and lanes == native
            listed = code_size.lines(op, dtype, given, lanes, avx512)
            if listed != (len(c.lines), wide):
                wrong.append(f"{op} {dtype} {given} of {lanes}: {len(c.lines)}, {wide}")
    assert not wrong, "\n".join(wrong)


def test_the_functions_are_those_of_the_renderer():
    assert {*FUNCTIONS, outline.ERF_PLUS_ONE} == code_size.FUNCTIONS


def test_divisions_of_positions_are_small():
    kernels = kernels_of(
        lambda x: torch.nn.functional.adaptive_avg_pool1d(x, 5), torch.randn(2, 3, 8)
    )
    divisions = [
        i.name for k in kernels for i in k.instructions() if isinstance(i, Apply) and "div" in i.op
    ]
    small = set().union(*map(small_divisions, kernels))
    assert small
    assert small <= set(divisions)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int16", "int8", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(5, 7), (40, 37)])
def test_small_elements_gathered_under_a_mask(dtype, shape):
    """Odd places, the last element and what lies beyond: nothing else is seen."""
    g = torch.Generator().manual_seed(3)
    x = torch.randint(0, 2, shape, generator=g).to(getattr(torch, dtype))
    places = torch.randint(0, shape[1], shape, generator=g)

    def fn(x, places):
        return torch.nn.functional.pad(x.gather(1, places), (1, 2)), x[:, ::2].clone()

    torch._dynamo.reset()
    result = torch.compile(fn, backend="cpu", dynamic=False)(x, places)
    torch.testing.assert_close(result, fn(x, places))


@pytest.mark.parametrize("by", [2**62, 6364136223846793005])
def test_positions_that_wrap_around_are_not_small(by):
    def fn():
        return torch.arange(20) * by // 2**40 % 17, torch.arange(20) * by // 2**60 // 3

    torch._dynamo.reset()
    for ours, eager in zip(torch.compile(fn, backend="cpu")(), fn(), strict=True):
        assert torch.equal(ours, eager)


def test_types_of_one_width_have_functions_of_their_own():
    """LLVM's integers have no sign, but a power depends on it."""

    def many(a, b):
        found = a
        for n in range(24):
            found = torch.pow(a + n, b) ^ found
        return found

    def both(a, b, c, d):
        return many(a, b), many(c, d)

    g = torch.Generator().manual_seed(0)
    unsigned = [torch.randint(0, 256, (1003,), generator=g).to(torch.uint8) for _ in range(2)]
    signed = [torch.randint(0, 128, (1003,), generator=g).to(torch.int8) for _ in range(2)]
    for given in (*signed, *unsigned), (*unsigned, *signed):
        assert_same(both, *given, backend="cpu")
