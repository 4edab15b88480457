"""Scans against eager: dtypes, dimensions, layouts, special values, long rows, what is fused."""

import math

import pytest
import torch

from dovetail.ir.kernel import Scan
from dovetail.schedule.build import Built
from tests.codegen.kernels import kernels_of, plan_of
from tests.differential import assert_same

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
WHOLE = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
KINDS = ["cumsum", "cumprod", "cummax", "cummin"]


def data(*shape, dtype=torch.float32):
    g = torch.Generator().manual_seed(sum(shape) + len(shape))
    return (torch.randn(shape, generator=g) * 3).to(dtype)


def near_one(x):
    """Factors whose products neither vanish nor overflow."""
    return x.sign() * (1 + x.abs() / 64) if x.is_floating_point() else x


def scan(kind, dim, **options):
    def fn(x):
        return getattr(torch, kind)(near_one(x) if kind == "cumprod" else x, dim, **options)

    return fn


def scans(kind, dims):
    """One program of scans along several dimensions: a quicker test."""
    return lambda x: {f"dimension {dim}": scan(kind, dim)(x) for dim in dims}


def is_generated(fn, *args):
    return all(isinstance(step, Built) for step in plan_of(fn, *args).steps)


# ---- kinds, dtypes, dimensions -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_dtypes(kind, dtype):
    x = data(5, 67, dtype=dtype)
    if kind == "cumprod" and dtype in (torch.float16, torch.bfloat16):
        x = x.sign() + (x == 0)
    assert_same(scans(kind, (0, 1)), x, backend="cpu")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.int32])
@pytest.mark.parametrize("given", [torch.float32, torch.int8, torch.bool])
def test_another_dtype_for_the_result(given, dtype):
    x = data(6, 40, dtype=given)
    assert_same(lambda x: {dim: x.cumsum(dim, dtype=dtype) for dim in (0, -1)}, x, backend="cpu")


def test_integers_wrap_as_in_eager():
    x = torch.full((3, 50), 100, dtype=torch.int8)
    assert_same(lambda x: x.cumsum(1, dtype=torch.int8), x, backend="cpu")
    assert_same(lambda x: (x.long() << 50).cumprod(1), x, backend="cpu")


@pytest.mark.parametrize(
    "shape", [(1,), (7,), (16,), (17,), (3, 1, 5), (2, 3, 4, 33), (1, 1), (90, 3), (2, 40, 2)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_dimension(kind, shape):
    assert_same(scans(kind, range(-len(shape), len(shape))), data(*shape), backend="cpu")


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_next_to_nothing(kind, shape):
    assert_same(scan(kind, -1), data(*shape), backend="cpu")


def test_a_dimension_that_is_not_there_is_an_error():
    """Which one is Dynamo's to say, and differs between its versions."""
    with pytest.raises(Exception, match="Dimension out of range"):
        torch.compile(lambda x: x.cumsum(2), backend="cpu")(data(3, 4))


LAYOUTS = {
    "transposed": lambda x: x.t(),
    "slices": lambda x: x[1::2, ::3],
    "expanded": lambda x: x[:, :1].expand(-1, 20),
    "permuted": lambda x: x.reshape(4, 5, 33).permute(2, 0, 1),
    "offset": lambda x: x.flatten()[3:-1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_layouts(kind, layout):
    x = LAYOUTS[layout](data(20, 33))
    assert_same(scans(kind, range(x.dim())), x, backend="cpu")


@pytest.mark.parametrize("kind", ["cumsum", "cumprod"])
def test_in_place(kind):
    def fn(x):
        getattr(x, f"{kind}_")(1)
        return x * 2

    assert_same(fn, near_one(data(4, 30)), backend="cpu")


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_dynamic_shapes(kind, dim):
    torch._dynamo.reset()
    fn = scan(kind, dim)
    compiled = torch.compile(fn, backend="cpu", dynamic=True, fullgraph=True)
    for shape in ((3, 40), (5, 17), (2, 700), (600, 2)):
        x = data(*shape)
        torch.testing.assert_close(compiled(x), fn(x))


@pytest.mark.parametrize("dim", [0, 1])
def test_dynamic_shapes_backwards(dim):
    def fn(x):
        return (x * 2).cumsum(dim).sin()

    assert_same(fn, data(6, 40), backend="cpu", dynamic=True, grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="cpu", dynamic=True, fullgraph=True)
    for shape in ((3, 40), (5, 17), (2, 700)):
        ours, theirs = (data(*shape).requires_grad_() for _ in range(2))
        compiled(ours).sum().backward()
        fn(theirs).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)


# ---- numbers -----------------------------------------------------------------------------------

SPECIAL = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 1e-45, 3e38])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_special_values(kind, dtype):
    """Infinities and NaN from the point on at which eager has them."""

    def fn(x):
        return {f"dimension {dim}": getattr(x, kind)(dim) for dim in (0, 1)}

    for seed in range(4):
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(64, 40, generator=g)
        where = torch.rand(x.shape, generator=g) < 0.05
        odd = SPECIAL[torch.randint(0, len(SPECIAL), x.shape, generator=g)]
        assert_same(fn, torch.where(where, odd, x).to(dtype), backend="cpu")


@pytest.mark.parametrize("kind", ["cummax", "cummin"])
def test_the_last_of_equals_is_met(kind):
    x = torch.randint(0, 3, (50, 60), generator=torch.Generator().manual_seed(0)).float()
    x[3, 20] = x[3, 30] = math.nan
    assert_same(scans(kind, (0, 1)), x, backend="cpu")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_products_that_leave_the_range_do_so_as_in_eager(dtype):
    few = torch.tensor([1e30, 1e8, 1e-38, 1e-8, 1e20, 1e-20, 1e18, 1e-18], dtype=torch.float32)
    x = few[torch.randint(0, 8, (40, 90), generator=torch.Generator().manual_seed(5))]
    x = torch.cat([x, x.flip(1)], 1).to(dtype)
    assert_same(lambda x: x.cumprod(1) * 1, x, backend="cpu")


@pytest.mark.parametrize(
    "shape", [(1_000_000, 0), (2, 500_000, 1), (300_000, 3, 0), (999_999, 0)], ids=str
)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_long_rows(dtype, shape):
    """No further from float64 than eager is, point by point but for one rounding."""
    *sizes, dim = shape

    def fn(x):
        return x.cumsum(dim)

    compiled = torch.compile(fn, backend="cpu", dynamic=False)
    for shift in (0.0, 0.5):
        x = (data(*sizes) + shift).to(dtype)
        exact = x.double().cumsum(dim)
        mine, theirs = ((f(x).double() - exact).abs() for f in (compiled, fn))
        assert mine.max() <= 2 * theirs.max() + (1e-9 if dtype == torch.float64 else 0), shift
        if dtype == torch.float32:
            assert bool((mine <= theirs + 2.0**-24 * exact.abs() + 1e-6).all()), shift


def test_long_rows_are_shared():
    """In parts that do not depend on the threads; a NaN shows from where it stands on."""
    x = data(1 << 20)
    x[300_000] = math.nan
    x[900_000] = -0.0

    def fn(x):
        return (x * 2).cumsum(0) - 1

    kernels = kernels_of(fn, x)
    assert [len(kernel.axes) for kernel in kernels] == [1, 0, 1]
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(torch.compile(fn, backend="cpu", dynamic=False)(x))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)
    assert results[0].isnan().nonzero()[0].item() == 300_000
    assert results[0][300_000:].isnan().all()


def test_dear_work_is_not_done_by_the_one_thread_of_a_scan():
    x = data(300_001)
    assert len(kernels_of(lambda x: (x * 2).cumsum(0) - 1, x)) == 1
    for fn in (lambda x: x.tanh().cumsum(0), lambda x: x.cumsum(0).tanh()):
        assert len(kernels_of(fn, x)) == 2
        assert len(kernels_of(fn, x[:300])) == 1
        assert_same(fn, x, backend="cpu")


# ---- fusion ------------------------------------------------------------------------------------

FUSED = {
    "positions": lambda x: (x > 0).cumsum(-1) - 1,
    "producer_and_consumer": lambda x: (x * 2).exp().cumsum(-1).log(),
    "columns": lambda x: (x + 1).cumsum(0) * x,
    "of_a_norm": lambda x: (x - x.mean(-1, keepdim=True)).cumsum(-1),
    "into_softmax": lambda x: x.cumsum(-1).softmax(-1),
    "two_at_once": lambda x: (x.cumsum(-1), (x * x).cumsum(-1)),
    "one_of_the_other": lambda x: x.cumsum(-1).cumsum(-1),
    "mean_so_far": lambda x: x.cumsum(-1) / torch.arange(1, x.shape[-1] + 1),
    "extremes": lambda x: (x * 2).cummax(-1),
    "backwards": lambda x: x.flip(-1).cumsum(-1).flip(-1),
    "backwards_and_on": lambda x: (x * 2).flip(0).cumsum(0).flip(0).relu() + x,
}


@pytest.mark.parametrize("name", FUSED)
def test_one_kernel(name):
    x = data(12, 50)
    assert_same(FUSED[name], x, backend="cpu")
    assert len(plan_of(FUSED[name], x).steps) == 1


SEVERAL = {
    "both_dimensions": lambda x: x.cumsum(0).cumsum(1),
    "both_ways": lambda x: x.cumsum(-1) + 1 - x.cumsum(-1).flip(-1),
    "turned": lambda x: x.cumsum(-1).flip(-1) + x,
    "joined": lambda x: torch.cat([x.cumsum(-1), x, x.cumsum(0)], -1),
    "padded": lambda x: torch.nn.functional.pad(x.cumsum(-1), (1, 0)),
    "shifted": lambda x: torch.roll(x.cumsum(-1), 1, -1),
    "reshaped": lambda x: x.reshape(-1).cumsum(0).reshape(50, -1).sum(0),
    "transposed": lambda x: x.t().cumsum(0).t() + x,
    "last_of_each": lambda x: x.cumsum(1)[:, -1] + x.cumprod(0)[-1].sum(),
    "differences": lambda x: x.cumsum(-1)[:, 1:] - x.cumsum(-1)[:, :-1],
    "written_into": lambda x: x.clone().index_fill_(0, torch.tensor([2]), 1.0).cumsum(0),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_among_other_things(name):
    assert_same(SEVERAL[name], data(12, 50), backend="cpu")


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_backward(kind, dim):
    def fn(x):
        result = getattr(x, kind)(dim)
        return (result[0] if isinstance(result, tuple) else result) * 2

    assert_same(fn, near_one(data(6, 40)), backend="cpu", grad=True)


def test_what_is_generated():
    x = data(6, 40)
    for kind in KINDS:
        for dim in (0, 1):
            assert is_generated(scan(kind, dim), x)
    assert not is_generated(lambda x: x.logcumsumexp(1), x)
    (kernel,) = kernels_of(scan("cumsum", 1), x)
    assert [i.dtype for i in kernel.instructions() if isinstance(i, Scan)] == ["float64"]
