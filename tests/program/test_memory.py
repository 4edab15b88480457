"""Lifetimes become offsets: nothing that is alive at one time overlaps, and little is wasted."""

import random

import pytest
import torch

from dovetail import _native, errors
from dovetail.ir import memory
from dovetail.ir.memory import lifetimes, plan_memory, share_in_place
from dovetail.ir.program import Buffer, KernelCall, Program
from dovetail.ir.program_text import parse_program
from dovetail.ir.tensor import TensorDesc
from dovetail.runtime.loaded import open_native
from tests.artifact.cases import artifact_of, cases, package_of

pytestmark = pytest.mark.xdist_group("artifact")


def check(program, symbols):
    plan = plan_memory(program, symbols)
    lives = {life.name: life for life in lifetimes(program, symbols)}
    assert set(plan.offsets) == set(lives)
    items = list(lives.values())
    for i, a in enumerate(items):
        assert plan.offsets[a.name] % memory.ALIGNMENT == 0
        assert plan.offsets[a.name] + a.size <= plan.peak
        for b in items[:i]:
            apart = (
                plan.offsets[a.name] + a.size <= plan.offsets[b.name]
                or plan.offsets[b.name] + b.size <= plan.offsets[a.name]
            )
            assert apart or not a.meets(b)
    assert plan.bound <= plan.peak <= plan.total
    return plan


def random_program(seed, count=60):
    rng = random.Random(seed)
    buffers = [Buffer("t0", "constant", TensorDesc("float32", (64,), (1,)))]
    calls = []
    for i in range(1, count):
        size = rng.choice([16, 64, 256, 1000, 4096])
        buffers.append(Buffer(f"t{i}", "temporary", TensorDesc("float32", (size,), (1,))))
        inputs = tuple(f"t{rng.randrange(max(0, i - 8), i)}" for _ in range(2))
        calls.append(KernelCall("k@1", (f"t{i}",), inputs))
    return Program("p", tuple(buffers), tuple(calls), ())


@pytest.mark.parametrize("seed", range(20))
def test_no_two_live_buffers_overlap(seed):
    check(random_program(seed), {})


def test_symbolic_sizes_are_planned_per_call():
    program = parse_program(
        "program @p\nsymbol s0 = %x[0] in 0..99\ninput %x: float32[s0]\n"
        "temporary %a: float32[s0 * 16]\ntemporary %b: float32[s0 * 16]\n"
        "temporary %c: float32[s0 * 16]\noutput %y: float32[s0]\n"
        "kernel %a = k@1(%x)\nkernel %b = k@1(%a)\nkernel %c = k@1(%b)\nkernel %y = k@1(%c)\n"
        "return %y\n"
    )
    for size in (0, 1, 3, 99):
        plan = check(program, {"s0": size})
        assert plan.total == 3 * 64 * size
        assert plan.peak == plan.bound == 2 * 64 * size
    assert "sum 192" in str(plan_memory(program, {"s0": 1}))


def test_elementwise_results_take_over_dying_operands():
    text = (
        "program @p\ninput %x: float32[8]\ntemporary %a: float32[8]\ntemporary %b: float32[8]\n"
        "temporary %c: float32[8]\noutput %y: float32[8]\nkernel %a = relu@1(%x)\n"
        "kernel %b = neg@1(%a)\nkernel %c = add@1(%b, %a)\nkernel %y = neg@1(%c)\nreturn %y\n"
    )
    shared = share_in_place(parse_program(text), lambda _: True)
    assert shared.by_name["b"].of == ""  # its operand is needed by the next instruction
    assert shared.by_name["c"].of == "b"
    assert len(lifetimes(shared, {})) == 2
    untouched = share_in_place(parse_program(text), lambda _: False)
    assert len(lifetimes(untouched, {})) == 3


@pytest.mark.parametrize("name", sorted(cases()))
def test_arena_is_within_five_percent_of_the_bound(name):
    program = package_of(name, "portable").program
    plan = check(program, {s.name: 4 for s in program.symbols})
    assert plan.peak <= 1.05 * plan.bound


@pytest.mark.parametrize(
    ("lives", "error"),
    [
        ([(64, 0)], TypeError),
        ([[64, 0, 1]], TypeError),
        (((64, 0, 1),), TypeError),
        ([(64, 2, 1)], ValueError),
        ([(64, 0, 2**32 - 1)], ValueError),
        ([(2**62, 0, 1), (2**62, 0, 1)], errors.SizeError),
    ],
)
def test_the_planner_refuses_what_is_no_lifetime(lives, error):
    with pytest.raises(error):
        _native.plan_memory(lives)


def test_what_python_plans_is_what_the_runtime_allocates(tmp_path):
    artifact_of("block", "portable").save(tmp_path / "block.dvt")
    native = open_native(str(tmp_path / "block.dvt"))
    native.run(*(torch.zeros(shape) for _, _, _, shape in native.inputs()))
    plan = plan_memory(package_of("block", "portable").program)
    assert native.memory() == (plan.peak, plan.total, plan.bound)
    assert plan.peak > 0


@pytest.mark.parametrize("life", [(2**64 + 64, 0, 0), (64, 0, 2**32 + 1), (-1, 0, 0), (64, -1, 0)])
def test_numbers_that_do_not_fit_are_refused(life):
    """None may wrap to one that does: the arena would be too small."""
    with pytest.raises((OverflowError, ValueError)):
        _native.plan_memory([life])


def test_sizes_beyond_any_memory():
    with pytest.raises(errors.SizeError, match="which no memory has"):
        memory.plan_lifetimes([memory.Lifetime("x", 2**64, 0, 1)])
