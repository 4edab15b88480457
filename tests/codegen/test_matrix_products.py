"""Products of matrices in tiles of registers: right for every size, layout, schedule and target."""

import itertools
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dovetail.codegen.llvm.module import module_text
from dovetail.errors import InvalidSchedule
from dovetail.ir.kernel_product import kernel_product
from dovetail.ir.target import TARGETS
from dovetail.schedule.build import Built
from dovetail.schedule.cpu.dots import MOST_ROWS, MOST_ROWS_IN_PAIRS
from dovetail.schedule.cpu.strategy import make_schedule
from dovetail.schedule.text import parse_schedule, print_schedule
from dovetail.schedule.tiles import DotTile, ProductTile
from dovetail.schedule.verify_schedule import verify_schedule
from dovetail.testing.schedules import check_schedule, run_schedule
from tests.codegen.kernels import assert_generated, plan_of
from tests.codegen.matrix_kernels import Matrices
from tests.codegen.test_random_kernels import run_tensors, targets
from tests.differential import assert_same, needs_code

F = nn.functional
pytestmark = needs_code


def data(*shape, dtype=torch.float32):
    g = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(shape, generator=g).to(dtype)


def check(made, target, schedule=None):
    kernel = made.kernel()
    schedule = schedule or make_schedule(kernel, target)
    check_schedule(kernel, schedule, target, made.integers(), made.symbols())


# ---- sizes and layouts -------------------------------------------------------------------------

SIZES = [
    (2, 2, 1),
    (2, 33, 3),
    (3, 16, 4),
    (5, 17, 300),
    (9, 50, 31),
    (13, 49, 5),
    (16, 48, 64),
    (29, 100, 7),
    (130, 31, 9),
]
LAYOUTS = list(itertools.product(("mk", "km"), ("kn", "nk"), ("mn", "nm")))


@pytest.mark.parametrize("number", range(len(SIZES)))
def test_sizes(number):
    """Each with a layout or two, so that all of them occur."""
    rows, columns, steps = SIZES[number]
    for left, right, out in (LAYOUTS[number % 8], LAYOUTS[(3 * number + 1) % 8]):
        made = Matrices(rows, columns, steps, left, right, out)
        for target in targets():
            assert make_schedule(made.kernel(), target).register_tiles is not None
            check(made, target)


@pytest.mark.parametrize(
    ("unknown", "right"), [("m", "kn"), ("m", "nk"), ("mn", "kn"), ("mnk", "nk"), ("kp", "kn")]
)
def test_sizes_that_are_known_when_a_kernel_runs(unknown, right):
    """One kernel's code for each of them: every height of tiles, several blocks, nothing."""
    made = Matrices(9, 35, 21, right=right, epilogue="bias", unknown=unknown, batch=2)
    sizes = [(9, 35, 21, 2), (1, 35, 21, 2), (64, 35, 21, 2), (261, 35, 21, 3), (0, 35, 21, 2)]
    sizes += [(13, 1, 21, 2), (13, 96, 300, 2), (5, 70, 1, 2), (6, 35, 0, 2), (6, 35, 21, 4)]
    for target in targets():
        code = make_schedule(made.kernel(), target)
        assert code.register_tiles is not None
        for m, n, k, p in sizes:
            now = {"m": m, "n": n, "k": k, "p": p}
            given = (now[x] if x in unknown else {"m": 9, "n": 35, "k": 21, "p": 2}[x] for x in now)
            rows, columns, steps, batch = given
            other = replace(made, rows=rows, columns=columns, sum=steps, batch=batch)
            assert other.kernel() == made.kernel()
            check(other, target, code)


@pytest.mark.parametrize("right", ["kn", "nk"])
def test_long_sums_of_few_rows_go_part_by_part(right):
    made = Matrices(3, 20, 9000, left="km", right=right)
    for target in targets():
        schedule = make_schedule(made.kernel(), target)
        deep = replace(schedule.register_tiles, depth=512)
        check(made, target, replace(schedule, register_tiles=deep))


@pytest.mark.parametrize("right", ["kn", "nk"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_products_take_little_of_the_stack(dtype, right):
    """A thread may have a small one."""
    for rows, columns, steps in [
        (256, 512, 4000),
        (64, 96, 300),
        (2048, 48, 100_000),
        (8, 64, 700),
    ]:
        kernel = Matrices(rows, columns, steps, right=right, dtype=dtype).kernel()
        for target in targets():
            verify_schedule(kernel, make_schedule(kernel, target), target)


def test_a_product_runs_in_a_thread_with_a_small_stack():
    fn = torch.compile(lambda a, b: torch.relu(a @ b.t()), backend="cpu")
    a, b = torch.randn(64, 4000), torch.randn(96, 4000)
    expected, found = fn(a, b), []
    before = threading.stack_size(256 << 10)
    try:
        thread = threading.Thread(target=lambda: found.append(fn(a, b)))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert torch.equal(found[0], expected)


@pytest.mark.parametrize("epilogue", ["bias", "bias_relu", "residual"])
def test_epilogues(epilogue):
    made = Matrices(11, 37, 20, right="nk", epilogue=epilogue)
    for target in targets():
        check(made, target)


def test_an_epilogue_with_a_function():
    made = Matrices(11, 37, 20, epilogue="gelu")
    kernel, given = made.kernel(), made.integers()
    left, right = given["left"].reshape(11, 20), given["right"].reshape(20, 37)
    sums = torch.from_numpy(left.astype("float64") @ right.astype("float64") + given["bias"])
    for target in targets():
        found = run_schedule(kernel, make_schedule(kernel, target), target, given)["out"]
        found = torch.from_numpy(found).view(11, 37).double()
        torch.testing.assert_close(found, F.gelu(sums), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rows", [7, MOST_ROWS_IN_PAIRS + 1])
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_types(dtype, rows):
    """Half precision is widened as it is loaded and summed in float32."""
    made = Matrices(rows, 37, 20, right="nk", dtype=dtype)
    for target in targets():
        kernel, given = made.kernel(), made.integers()
        schedule = verify_schedule(kernel, make_schedule(kernel, target), target)
        kind = ProductTile if rows > MOST_ROWS else DotTile
        assert isinstance(schedule.register_tiles, kind)
        kind = getattr(torch, dtype)
        stored = {n: torch.from_numpy(a).to(kind) for n, a in given.items()}
        lengths = {n: len(a) for n, a in given.items()}
        found = run_tensors(kernel, lengths, [stored["left"], stored["right"]], target, schedule)
        left = torch.from_numpy(given["left"]).double().view(rows, 20)
        right = torch.from_numpy(given["right"]).double().view(37, 20)
        assert torch.equal(found["out"].view(rows, 37), (left @ right.t()).to(kind))


@pytest.mark.parametrize("ahead", [0, 1, 40])
@pytest.mark.parametrize("right", ["kn", "nk"])
def test_columns_asked_for_ahead(ahead, right):
    """Asking for memory, also for what lies behind the columns, changes no result."""
    for target in targets():
        made = Matrices(11, 37, 21, left="km", right=right)
        schedule = make_schedule(made.kernel(), target)
        tile = schedule.register_tiles
        assert isinstance(tile, ProductTile)
        assert tile.ahead > 0
        schedule = replace(schedule, register_tiles=replace(tile, ahead=ahead))
        assert parse_schedule(print_schedule(schedule)) == schedule
        check(made, target, schedule)


def dots_of(made, target):
    schedule = make_schedule(made.kernel(), target)
    assert isinstance(schedule.register_tiles, DotTile)
    return schedule


@pytest.mark.parametrize("rows", [2, 3, 7, 13, MOST_ROWS])
@pytest.mark.parametrize("epilogue", ["", "bias_relu", "residual"])
def test_few_rows_are_summed_in_vectors_of_steps(rows, epilogue):
    """Columns and steps that no tile and no vector divides; one sum, and columns left over."""
    for target in targets():
        for columns, steps in [(37, 20), (3, 33), (130, 64), (2, 777)]:
            made = Matrices(rows, columns, steps, right="nk", epilogue=epilogue)
            schedule = dots_of(made, target)
            assert parse_schedule(print_schedule(schedule)) == schedule
            check(made, target, schedule)


def test_vectors_of_steps_of_batches_and_of_sizes_not_known():
    for target in targets():
        check(Matrices(3, 21, 40, right="nk", batch=5, epilogue="bias"), target)
        made = Matrices(3, 21, 40, right="nk", batch=2, unknown="nkp")
        schedule = dots_of(made, target)
        for columns, steps, batch in [(1, 1, 1), (64, 3000, 3), (21, 0, 2), (0, 5, 2), (67, 17, 1)]:
            other = replace(made, columns=columns, sum=steps, batch=max(batch, 2))
            check(other, target, schedule)


@pytest.mark.parametrize("together", [1, 2, 4])
@pytest.mark.parametrize("chunk", [0, 16, 64])
def test_vectors_of_steps_in_other_tiles(together, chunk):
    made = Matrices(5, 23, 150, right="nk")
    for target in targets():
        schedule = dots_of(made, target)
        tile = replace(schedule.register_tiles, together=together, chunk=chunk, ahead=1)
        for heights in ((5,), (3, 2), (1,)):
            check(made, target, replace(schedule, register_tiles=replace(tile, heights=heights)))


def test_tiles_of_vectors_of_steps_that_cannot_be():
    for target in targets():
        kernel = Matrices(5, 23, 150, right="nk").kernel()
        schedule = make_schedule(kernel, target)
        tile = schedule.register_tiles
        for wrong in [
            {"together": 3},
            {"together": 2 * schedule.lanes},
            {"heights": (4,)},
            {"block": 2},
            {"chunk": 3},
            {"rows": "n"},
            {"ahead": -1},
            {"block": 1 << 16},
        ]:
            bad = replace(schedule, register_tiles=replace(tile, **wrong))
            with pytest.raises(InvalidSchedule):
                verify_schedule(kernel, bad, target)
        across = Matrices(5, 23, 150, right="kn").kernel()
        with pytest.raises(InvalidSchedule, match="dense along the sum"):
            verify_schedule(across, schedule, target)


def test_long_sums_in_vectors_of_steps_stay_accurate():
    made = Matrices(2, 16, 20_000, right="nk")
    random = np.random.default_rng(3)
    given = {n: random.standard_normal(s).astype("float32") for n, s in made.shapes().items()}
    left, right = given["left"].reshape(2, -1), given["right"].reshape(16, -1)
    exact = left.astype("float64") @ right.astype("float64").T
    for target in targets():
        found = run_schedule(made.kernel(), dots_of(made, target), target, given)["out"]
        off = np.abs(found.reshape(2, 16) - exact).max()
        assert off <= 2 * np.abs((left @ right.T) - exact).max()


def test_batches():
    for target in targets():
        check(Matrices(6, 20, 10, right="nk", batch=3), target)
        check(Matrices(6, 20, 10, batch=3, epilogue="bias"), target)


def test_values_that_are_no_numbers_stay_where_they_are():
    made = Matrices(5, 19, 6, right="nk")
    given = made.integers()
    left, right = given["left"].reshape(5, 6), given["right"].reshape(19, 6)
    left[1, 2], left[3, 0], right[4, 5], right[18, 1] = np.inf, 1e-41, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        expected = left.astype("float64") @ right.astype("float64").T
    for target in targets():
        kernel = made.kernel()
        found = run_schedule(kernel, make_schedule(kernel, target), target, given)["out"]
        np.testing.assert_allclose(found.reshape(5, 19), expected.astype("float32"), rtol=1e-6)


# ---- sums that end at a row's number, and sums that nobody uses behind it ------------------------


@pytest.mark.parametrize("right", ["kn", "nk"])
@pytest.mark.parametrize(("rows", "columns", "steps"), [(13, 37, 13), (50, 20, 31), (9, 17, 600)])
def test_sums_that_end_at_the_rows_number(rows, columns, steps, right):
    made = Matrices(rows, columns, steps, right=right, triangular=True, epilogue="bias")
    assert kernel_product(made.kernel()).sums_to_row
    given = made.integers()
    place = -1 if right == "nk" else -columns
    given["right"][place:] = np.nan  # of the last step: rows before it do not look at it
    for target in targets():
        kernel = made.kernel()
        ours = make_schedule(kernel, target)
        check_schedule(kernel, ours, target, given)
        deep = replace(ours.register_tiles, depth=8, chunk=8, block=rows)
        check(made, target, replace(ours, register_tiles=deep))


@pytest.mark.parametrize("size", [(70, 131, 5), (20, 16, 9), (9, 100, 4)])
def test_sums_behind_the_rows_number_that_are_not_used(size):
    for more in ({}, {"batch": 2}, {"right": "nk"}):
        made = Matrices(*size, epilogue="causal", **more)
        assert kernel_product(made.kernel()).used_to_row
        for target in targets():
            check(made, target)


def test_sums_that_are_used_are_made():
    kernel = Matrices(9, 20, 4, epilogue="causal").kernel()
    *code, store = kernel.loops[1].body
    used = replace(store, value="doubled")
    for body in ((*code, used), (*code, store, used)):
        other = replace(kernel, loops=(kernel.loops[0], replace(kernel.loops[1], body=body)))
        assert not kernel_product(other).used_to_row
    turned = tuple(
        replace(i, args=i.args[::-1]) if i.name == "near_n" else i for i in kernel.loops[1].body
    )
    other = replace(kernel, loops=(kernel.loops[0], replace(kernel.loops[1], body=turned)))
    assert not kernel_product(other).used_to_row


# ---- other schedules ---------------------------------------------------------------------------


def alternatives(schedule):
    """Other tiles for a product; most do not fit."""
    heights = [(1,), (2, 1), (4, 3), (5,), (7, 6), (13,)]
    for tall, vectors, block in itertools.product(heights, (1, 2, 5), (1, 6, 13, 100)):
        for unroll, chunk, depth, packed, finish in (
            (1, 0, 0, True, False),
            (4, 8, 0, False, False),
            (2, 4, 16, True, False),
            (1, 7, 7, False, False),
            (8, 0, 32, True, False),
            (2, 0, 0, True, True),
            (4, 0, 0, False, True),
        ):
            tile = replace(
                schedule.register_tiles,
                heights=tall,
                vectors=vectors,
                block=block,
                unroll=unroll,
                chunk=chunk,
                depth=depth,
                packed=packed,
                from_registers=finish,
            )
            yield replace(schedule, register_tiles=tile, block=vectors * schedule.lanes)


@pytest.mark.parametrize("right", ["kn", "nk"])
def test_any_schedule_that_is_accepted_gives_the_same(right):
    made = Matrices(13, 37, 50, left="km", right=right, epilogue="bias")
    kernel = made.kernel()
    for target in targets():
        fitting = []
        for schedule in alternatives(make_schedule(kernel, target)):
            try:
                fitting.append(verify_schedule(kernel, schedule, target))
            except InvalidSchedule:
                continue
        assert len(fitting) > 50
        order = np.random.default_rng(len(right)).permutation(len(fitting))
        direct = [n for n in order if fitting[n].register_tiles.from_registers]
        assert len(direct) >= 4
        for schedule in (fitting[n] for n in (*order[:8], *direct[:4])):
            assert parse_schedule(print_schedule(schedule)) == schedule
            check(made, target, schedule)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"heights": (4,)}, "tiles of"),
        ({"heights": (4, 13)}, "heights"),
        ({"heights": ()}, "empty"),
        ({"rows": "n"}, "rows of n"),
        ({"unroll": 3}, "written out"),
        ({"unroll": 4, "chunk": 6}, "whole steps"),
        ({"packed": False}, "read packed"),
        ({"ahead": -1}, "steps ahead"),
        ({"heights": (13,), "block": 13, "vectors": 600}, "written out"),
    ],
)
def test_tiles_that_miss_something_are_refused(wrong, reason):
    kernel = Matrices(13, 37, 50, left="km", right="nk").kernel()
    ours = make_schedule(kernel, TARGETS["x86-64-v4"])
    schedule = replace(ours, register_tiles=replace(ours.register_tiles, **wrong))
    with pytest.raises(InvalidSchedule, match=reason):
        verify_schedule(kernel, schedule, TARGETS["x86-64-v4"])


def test_a_kernel_that_is_no_product_has_none():
    kernel = Matrices(13, 37, 50).kernel()
    assert kernel_product(kernel) is not None
    doubled = replace(kernel, loops=(kernel.loops[0], kernel.loops[0]))
    assert kernel_product(doubled) is None


# ---- programs ----------------------------------------------------------------------------------

PROGRAMS = {
    "linear": (F.linear, (data(2, 9, 40), data(50, 40), data(50))),
    "gelu": (
        lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r,
        (data(2, 9, 40), data(50, 40), data(50), data(2, 9, 50)),
    ),
    "batches": (torch.bmm, (data(3, 6, 20), data(3, 20, 33))),
    "heads": (
        lambda x, w: (x @ w).view(2, 5, 4, 12).transpose(1, 2).relu(),
        (data(2, 5, 24), data(24, 48)),
    ),
    "scaled": (
        lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2.0),
        (data(9), data(7, 33), data(33, 9)),
    ),
    "columns": (lambda x, y: (x.t() @ y).t().contiguous(), (data(20, 7), data(20, 9))),
    "before": (lambda x, w: x.relu() @ w, (data(7, 20), data(20, 17))),
    "twice": (lambda x, w: (x @ w) * (x @ w.flip(0)), (data(7, 20), data(20, 17))),
    "double": (torch.mm, (data(7, 20, dtype=torch.float64), data(20, 9, dtype=torch.float64))),
    "square": (lambda x: x @ x.t(), (data(7, 20),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    fn, args = PROGRAMS[name]
    assert_generated(fn, *args)
    kernels = [s.kernel for s in plan_of(fn, *args).steps if isinstance(s, Built)]
    assert any(kernel_product(kernel) is not None for kernel in kernels)


def test_what_follows_a_layer_is_part_of_its_kernel():
    fn, args = PROGRAMS["gelu"]
    (step,) = plan_of(fn, *args).steps
    assert isinstance(step, Built)


def test_training():
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 7))
    assert_same(model, data(9, 20), backend="cpu", grad=True)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads(threads):
    before = torch.get_num_threads()
    x, w, b = data(150, 300), data(200, 300), data(200)
    expected = F.linear(x.double(), w.double(), b.double())
    torch.set_num_threads(threads)
    try:
        found = torch.compile(F.linear, backend="cpu", dynamic=False)(x, w, b)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["random", "positive", "cancelling"])
def test_error_beside_eager(kind):
    """Long sums: at most twice eager's error, against float64."""
    x, w = data(12, 4000), data(60, 4000)
    if kind == "positive":
        x, w = x.abs(), w.abs()
    if kind == "cancelling":
        x = torch.cat((x[:, :2000], x[:, :2000]), 1)
        w = torch.cat((w[:, :2000], -w[:, :2000] * (1 + 1e-4)), 1)
    exact = F.linear(x.double(), w.double())
    ours = torch.compile(F.linear, backend="cpu", dynamic=False)(x, w)
    errors = [(y.double() - exact).square().mean().sqrt() for y in (F.linear(x, w), ours)]
    assert errors[1] <= 2 * errors[0]


@pytest.mark.parametrize("shape", [(0, 5, 6), (4, 0, 6), (4, 5, 0)])
def test_nothing_to_multiply(shape):
    m, k, n = shape
    assert_same(torch.mm, data(m, k), data(k, n), backend="cpu")


# ---- shapes of tiles ---------------------------------------------------------------------------


def test_tiles_hide_latency_and_share_cache_lines():
    """Twelve sums of one line of columns, not eight, though 256 rows are no multiple of six."""
    for columns in (32, 48, 64):
        kernel = Matrices(256, columns, 256).kernel()
        tile = make_schedule(kernel, TARGETS["x86-64-v3"]).register_tiles
        assert (tile.heights, tile.vectors) == ((6, 5), 2)


@pytest.mark.parametrize(("steps", "most"), [(1024, 8), (1000, 14)])
def test_rows_of_a_tile_stay_in_the_first_cache(steps, most):
    """Rows that lie a power of two apart fall into one set of it, which holds eight."""
    tile = make_schedule(Matrices(256, 32, steps).kernel(), TARGETS["x86-64-v4"]).register_tiles
    assert tile.heights[0] <= most
    assert (tile.heights[0] > 8) == (most > 8)


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4"])
def test_sums_are_functions_that_nothing_else_shares_registers_with(name):
    """One for each height of a tile; what they use of the rest they are told."""
    made, target = Matrices(13, 37, 50, left="km", right="nk", epilogue="gelu"), TARGETS[name]
    kernel = made.kernel()
    schedule = make_schedule(kernel, target)
    text = module_text({"k": (kernel, schedule)}, target)
    for height in schedule.register_tiles.heights:
        assert text.count(f"call void @k.body.sums{height}(") == 1
        assert text.count(f"define internal void @k.body.sums{height}(") == 1


# ---- sums used from registers ------------------------------------------------------------------


@pytest.mark.parametrize("columns", [5, 16, 24, 40, 64, 96, 100])
@pytest.mark.parametrize("steps", [1, 16, 27])
@pytest.mark.parametrize("epilogue", ["bias", "residual"])
def test_short_sums_are_used_from_registers(columns, steps, epilogue):
    made = Matrices(29, columns, steps, epilogue=epilogue)
    kernel = made.kernel()
    for target in targets():
        schedule = make_schedule(kernel, target)
        tile = schedule.register_tiles
        assert tile is None or tile.from_registers or columns % (tile.vectors * schedule.lanes)
        check(made, target, schedule)


def test_long_sums_and_small_elements_go_through_a_buffer():
    for made in (Matrices(29, 64, 200), Matrices(29, 64, 16, dtype="bfloat16")):
        for target in targets():
            tile = make_schedule(made.kernel(), target).register_tiles
            assert tile is None or not tile.from_registers


def test_sums_in_parts_are_not_in_registers_together():
    kernel = Matrices(29, 64, 16).kernel()
    (target, *_) = [t for t in targets() if make_schedule(kernel, t).register_tiles is not None]
    schedule = make_schedule(kernel, target)
    tile = replace(schedule.register_tiles, chunk=8, from_registers=True)
    with pytest.raises(InvalidSchedule, match="registers together"):
        verify_schedule(kernel, replace(schedule, register_tiles=tile), target)
