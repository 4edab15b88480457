"""Products of bfloat16 by the instruction that multiplies pairs, where the target has it."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import dovetail
from dovetail.codegen.llvm.module import module_text
from dovetail.errors import InvalidSchedule
from dovetail.file.processors import PROCESSORS, processor_here
from dovetail.ir.target import TARGETS
from dovetail.schedule.cpu.dots import MOST_ROWS_IN_PAIRS, MOST_ROWS_OF_LONG_PAIRS
from dovetail.schedule.cpu.register_tiles import least_target
from dovetail.schedule.cpu.strategy import make_schedule
from dovetail.schedule.text import parse_schedule, print_schedule
from dovetail.schedule.tiles import DotTile, ProductTile
from dovetail.schedule.verify_schedule import verify_schedule
from tests.codegen.kernels import assert_generated
from tests.codegen.matrix_kernels import Matrices
from tests.codegen.test_random_kernels import run_tensors
from tests.differential import needs_code

PLAIN, PAIRS = TARGETS["x86-64-v4"], TARGETS["x86-64-v4-bf16"]
INSTRUCTION = "@llvm.x86.avx512bf16.dpbf16ps.512("
needs_pairs = pytest.mark.skipif(
    PROCESSORS[PAIRS.name] not in range(processor_here() + 1), reason="needs AVX512-BF16"
)
pytestmark = needs_code


def product(*sizes, **given):
    return Matrices(*sizes, dtype="bfloat16", **given)


def check(made, **tile):
    """A kernel's code gives what float64 gives, of numbers whose sums are exact."""
    kernel, given = made.kernel(), made.integers()
    schedule = make_schedule(kernel, PAIRS)
    assert schedule.register_tiles.pairs
    schedule = replace(schedule, register_tiles=replace(schedule.register_tiles, **tile))
    schedule = verify_schedule(kernel, schedule, PAIRS)
    assert parse_schedule(print_schedule(schedule)) == schedule
    stored = {name: torch.from_numpy(a).bfloat16() for name, a in given.items()}
    inputs = [stored[b.name] for b in kernel.buffers if b.role == "in"]
    lengths = {name: len(a) for name, a in given.items()}
    found = run_tensors(kernel, lengths, inputs, PAIRS, schedule)["out"]
    assert torch.equal(found, expected(made, stored).bfloat16().flatten())


def expected(made, stored):
    shape = {"m": made.rows, "n": made.columns, "k": made.sum}

    def matrix(name, order):
        found = stored[name].double().view(made.batch, *(shape[axis] for axis in order))
        return found if order in ("mk", "kn", "mn") else found.mT

    found = matrix("left", made.left) @ matrix("right", made.right)
    if "bias" in made.epilogue:
        found = found + stored["bias"].double()
    if made.epilogue == "bias_relu":
        found = found.relu()
    if made.epilogue == "residual":
        found = found + matrix("residual", made.out)
    return (found if made.out == "mn" else found.mT).contiguous()


# ---- what code is made of ----------------------------------------------------------------------


@pytest.mark.parametrize("right", ["kn", "nk"])
@pytest.mark.parametrize("rows", [5, 70])
def test_the_instruction_is_used_where_the_target_has_it(rows, right):
    kernel = product(rows, 40, 33, right=right).kernel()
    for target, uses in ((PLAIN, False), (PAIRS, True)):
        schedule = verify_schedule(kernel, make_schedule(kernel, target), target)
        assert schedule.register_tiles.pairs == uses
        assert (INSTRUCTION in module_text({"k": (kernel, schedule)}, target)) == uses


def test_tiles_of_each_kind():
    few, many = (product(r, 64, 64, right="nk") for r in (MOST_ROWS_IN_PAIRS, 200))
    assert isinstance(make_schedule(few.kernel(), PAIRS).register_tiles, DotTile)
    tile = make_schedule(many.kernel(), PAIRS).register_tiles
    assert isinstance(tile, ProductTile)
    assert tile.packed


@pytest.mark.parametrize(
    "other",
    [
        Matrices(70, 40, 33),
        Matrices(70, 40, 33, dtype="float16"),
        Matrices(70, 40, 33, left="km", dtype="bfloat16"),
        Matrices(70, 40, 33, dtype="bfloat16", triangular=True),
    ],
)
def test_other_products_are_as_they_were(other):
    kernel = other.kernel()
    ours, before = (make_schedule(kernel, target) for target in (PAIRS, PLAIN))
    assert replace(ours, target=PLAIN.name) == before
    assert least_target([kernel], PAIRS) == PLAIN
    pairs = replace(ours, register_tiles=replace(ours.register_tiles, pairs=True, packed=True))
    with pytest.raises(InvalidSchedule, match="pairs of steps"):
        verify_schedule(kernel, pairs, PAIRS)


def test_half_the_time_of_a_product_is_expected():
    kernel = product(64, 64, 1024).kernel()
    ours, before = (make_schedule(kernel, target).cost for target in (PAIRS, PLAIN))
    assert ours < 0.6 * before


@pytest.mark.parametrize("rows", [5, 70])
def test_pairs_are_refused_elsewhere(rows):
    kernel = product(rows, 40, 33, right="nk").kernel()
    schedule = make_schedule(kernel, PAIRS)
    with pytest.raises(InvalidSchedule, match=r"pairs of steps on x86-64-v4$"):
        verify_schedule(kernel, replace(schedule, target=PLAIN.name), PLAIN)
    wrong = {"chunk": 16} if rows == 5 else {"packed": False}
    schedule = replace(schedule, register_tiles=replace(schedule.register_tiles, **wrong))
    with pytest.raises(InvalidSchedule, match=r"chunks of 16|half a pair"):
        verify_schedule(kernel, schedule, PAIRS)


def test_code_without_the_instruction_is_for_all_processors_of_the_level():
    plain, pairs = Matrices(70, 40, 33).kernel(), product(70, 40, 33).kernel()
    assert least_target([plain], PAIRS) == PLAIN
    assert least_target([plain, pairs], PAIRS) == PAIRS
    assert least_target([pairs], PLAIN) == PLAIN


# ---- what it computes --------------------------------------------------------------------------

SIZES = [
    (2, 2, 1),
    (3, 33, 3),
    (33, 17, 2),
    (40, 49, 5),
    (50, 100, 257),
    (130, 31, 64),
    (9, 50, 31),
]


@needs_pairs
@pytest.mark.parametrize("size", SIZES)
def test_sizes(size):
    for right, out in (("kn", "mn"), ("nk", "mn"), ("nk", "nm")):
        check(product(*size, right=right, out=out))


@needs_pairs
@pytest.mark.parametrize("epilogue", ["bias", "bias_relu", "residual"])
@pytest.mark.parametrize("rows", [7, 37])
def test_epilogues(rows, epilogue):
    check(product(rows, 45, 19, right="nk", epilogue=epilogue))


@needs_pairs
@pytest.mark.parametrize("wide", [False, True])
def test_sizes_that_are_known_when_a_kernel_runs(wide):
    """One kernel for any number of rows, and of steps."""
    torch.manual_seed(0)
    compiled = torch.compile(torch.mm, backend="dovetail", dynamic=True)
    for rows, steps, columns in ((40, 21, 35), (41, 301, 100), (70, 96, 35), (9, 22, 64)):
        x, w = torch.randn(rows, steps).bfloat16(), torch.randn(columns, steps).bfloat16()
        w = w.t() if wide else w.t().contiguous()
        exact = x.double() @ w.double()
        error, allowed = ((y.double() - exact).abs().max() for y in (compiled(x, w), x @ w))
        assert error <= 2 * allowed


@needs_pairs
@pytest.mark.parametrize("right", ["kn", "nk"])
def test_long_sums_go_part_by_part(right):
    made = product(MOST_ROWS_OF_LONG_PAIRS + 5, 49, 5001, right=right)
    assert make_schedule(made.kernel(), PAIRS).register_tiles.depth
    check(made)


@needs_pairs
@pytest.mark.parametrize("right", ["kn", "nk"])
def test_batches(right):
    for rows in (6, 37):
        check(product(rows, 20, 13, right=right, batch=3))


@needs_pairs
@pytest.mark.parametrize("ahead", [0, 1, 40])
@pytest.mark.parametrize("unroll", [2, 8])
def test_other_tiles(ahead, unroll):
    made = product(37, 40, 301, right="nk")
    check(made, ahead=ahead, unroll=unroll, chunk=64)
    check(
        made, unroll=unroll, chunk=0, depth=64, block=20, heights=tuple(range(14, 0, -1)), vectors=2
    )


@needs_pairs
def test_a_number_that_is_none_stays_where_it_is():
    """What is beside the last of an odd number of steps counts nothing."""
    x, w = torch.ones(40, 7).bfloat16(), torch.ones(7, 20).bfloat16()
    x[3, 6], x[5, 0] = float("inf"), float("nan")
    found = torch.compile(torch.mm, backend="dovetail")(x, w)
    assert torch.isinf(found[3]).all()
    assert torch.isnan(found[5]).all()
    rest = [n for n in range(40) if n not in (3, 5)]
    assert (found[rest] == 7).all()


def assert_near(run, module, x):
    """No further from float64 than twice what eager is."""
    exact = module.double()(x.double())
    eager = module.bfloat16()(x)
    error, allowed = ((y.double() - exact).abs().max() for y in (run(x), eager))
    assert error <= 2 * allowed


@needs_pairs
@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize(
    ("rows", "steps", "columns"), [(9, 300, 50), (64, 771, 96), (100, 64, 257)]
)
def test_layers(rows, steps, columns, freeze):
    """Long sums of random numbers, packed and not, with what follows a layer."""
    torch.manual_seed(rows)
    layer = nn.Sequential(nn.Linear(steps, columns), nn.GELU()).bfloat16().eval()
    compiled = torch.compile(layer, backend="dovetail", options={"freeze": freeze})
    x = torch.randn(rows, steps).bfloat16()
    with torch.no_grad():
        assert_near(compiled, layer, x)


@needs_pairs
def test_layers_are_kernels():
    layer = nn.Linear(64, 48).bfloat16()
    assert_generated(layer, torch.randn(40, 64).bfloat16())


@needs_pairs
@pytest.mark.e2e
def test_a_file_has_code_for_processors_with_and_without(tmp_path, monkeypatch):
    layer, x = nn.Linear(64, 48).bfloat16().eval(), torch.randn(40, 64).bfloat16()
    exported = dovetail.export(layer, (x,), backend="cpu")
    exported.save(tmp_path / "m.dvt", targets=["x86-64-v3", "x86-64-v4-bf16"])
    loaded = dovetail.load(tmp_path / "m.dvt")
    torch.testing.assert_close(loaded(x), layer(x), rtol=0.02, atol=0.02)
