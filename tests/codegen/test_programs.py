"""Generated code against eager: types, layouts, shapes, fusion, errors."""

import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

from dovetail import history
from tests.codegen import kernels
from tests.codegen.kernels import plan_of
from tests.differential import assert_same

F = nn.functional
DTYPES = ["float32", "float64", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8"]


def data(*shape, dtype="float32"):
    g = torch.Generator().manual_seed(sum(shape) + len(shape))
    kind = getattr(torch, dtype)
    if kind.is_floating_point:
        return torch.randn(shape, generator=g).to(kind)
    return torch.randint(0, 50, shape, generator=g).to(kind)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(0,), (1,), (7,), (64, 33), (3, 1, 5)])
def test_types_and_sizes(dtype, size):
    x, y = data(*size, dtype=dtype), data(*size, dtype=dtype) + 1
    assert_same(lambda x, y: (x + y, x * y, x > y, -x, y.abs()), x, y, backend="cpu")
    assert_same(lambda x: (x / 3, x.float() * 2, x.amax() if x.numel() else x), x, backend="cpu")
    if "16" not in dtype:  # half precision is not rounded between fused operations
        assert_same(lambda x, y: (x * y - x, x.sum(), (x - y).sum(0)), x, y, backend="cpu")


PAIRS = [("float32", "int64"), ("bfloat16", "float32"), ("int32", "int64"), ("uint8", "int8")]
PAIRS += [("bool", "float32"), ("float16", "bfloat16"), ("bool", "int16"), ("float64", "float32")]


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_promotion(left, right):
    x, y = data(5, 4, dtype="int64").to(getattr(torch, left)), data(5, 4, dtype=right)
    number = data(3, dtype=right)[0]
    assert_same(lambda x, y, n: (x + y, x * n, y == x, n <= x, x * 2), x, y, number, backend="cpu")


LAYOUTS = {
    "transposed": lambda: data(6, 5).t(),
    "sliced": lambda: data(9, 12)[1::2, 2:9],
    "expanded": lambda: data(5, 1).expand(5, 7),
    "channels_last": lambda: data(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "offset": lambda: data(40)[7:].view(3, 11),
    "scalar": lambda: data(1)[0],
    "empty": lambda: data(0, 5),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    x = LAYOUTS[layout]()
    assert_same(lambda x: (x * 2 + 1, x.exp().sum(), x.sigmoid() - x), x, backend="cpu")
    if x.dim():
        assert_same(lambda x: (x.sum(-1), x.softmax(-1), x.mean(0)), x, backend="cpu")


FUSED = {
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x + 1, (64,)).relu(),
    "rms_norm": lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6),
    "group_norm": lambda x: F.silu(F.group_norm(x.view(4, 8, 64), 2)),
    "cross_entropy_rows": lambda x: x.log_softmax(-1)[:, 3],
    "several_outputs": lambda x: (x.sin(), x.cos(), x.sin() * x.cos()),
    "rotate": lambda x: torch.cat([-x[:, 32:], x[:, :32]], 1) * x + x,
    "var_mean": lambda x: torch.var_mean(x, 1),
    "rotary": lambda x: kernels.rotary(x, x, x + 1),
    "picked_from_rows": lambda x: x.log_softmax(-1).gather(1, (x[:, :1] > 0).long()) * 2,
}


@pytest.mark.parametrize("name", FUSED)
def test_fuses_into_one_kernel(name):
    x = data(32, 64)
    assert_same(FUSED[name], x, backend="cpu")
    assert len(plan_of(FUSED[name], x).steps) == 1


def test_one_segment_around_products():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    assert_same(model, data(5, 8), backend="cpu", calls=3)
    (compilation,) = history.recent()
    assert [record.backend for record in compilation.graphs[-1].segments] == ["cpu"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, i: x[i],
        lambda x, i: F.embedding(i, x),
        lambda x, i: x.index_select(0, i),
        lambda x, i: x.gather(0, i[:, None].expand(-1, 3)),
    ],
)
@pytest.mark.parametrize("bad", [9, -9])
def test_index_out_of_range_raises_as_eager(fn, bad):
    x, i = data(4, 3), torch.tensor([0, 2, bad])
    assert_same(fn, x, i, backend="cpu")
    assert_same(fn, x, torch.tensor([0, 2, 1]), backend="cpu")


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, i, y: x.index_add(0, i, y) + 1,
        lambda x, i, y: x.index_copy(0, i, y) + 1,
        lambda x, i, y: x.index_fill(0, i, 2.0) + 1,
        lambda x, i, y: x.index_fill(0, i, torch.tensor(2.0)) + 1,
        lambda x, i, y: torch.index_put(x, (i,), y, accumulate=True) + 1,
    ],
    ids=["add", "copy", "fill", "fill_tensor", "put"],
)
@pytest.mark.parametrize("last", [3, 9, -1, -9])
def test_index_to_write_to_raises_as_eager(fn, last):
    """Some count negative places from the end, others refuse them; each raises its own class."""
    assert_same(fn, data(4, 3), torch.tensor([0, 2, last]), data(3, 3), backend="cpu")


def test_many_sizes_with_one_compilation():
    compiled = torch.compile(
        lambda x, y: (x * 2 + y).softmax(-1).sum(0), backend="cpu", dynamic=True, fullgraph=True
    )
    for n, m in [(3, 4), (17, 33), (2, 100), (64, 5)]:
        x, y = data(n, m), data(m)
        torch.testing.assert_close(compiled(x, y), (x * 2 + y).softmax(-1).sum(0))


def test_threads_of_python():
    """Two runs of one executable at a time do not share memory."""
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.Softmax(-1)).eval()
    compiled = torch.compile(model, backend="cpu")
    inputs = [data(32, 64) + n for n in range(8)]
    wrong = []
    with torch.no_grad():
        expected = [model(x) for x in inputs]
        compiled(inputs[0])

    def work(x, right):
        with torch.no_grad():
            same = [torch.allclose(compiled(x), right, atol=1e-6) for _ in range(50)]
            wrong.extend(ok for ok in same if not ok)

    threads = [threading.Thread(target=work, args=p) for p in zip(inputs, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("threads", [1, 2])
def test_large_work_on_threads(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = data(517, 1031)
        assert_same(lambda x: (F.gelu(x), x.softmax(-1), x.sum(0)), x, backend="cpu")
    finally:
        torch.set_num_threads(before)


def test_outputs_never_share_the_arena():
    def fn(x, w):
        y = F.relu(x @ w)
        return (y @ w).sin(), y.t()

    compiled = torch.compile(fn, backend="cpu")
    first = compiled(data(6, 6), data(6, 6))
    kept = [t.clone() for t in first]
    compiled(data(6, 6) * 9, data(6, 6) * 9)
    assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))


NO_COMPILER = """
import os, torch, dovetail
os.environ["PATH"] = os.environ["CC"] = os.environ["CXX"] = ""
dovetail.list_backends()
fn = lambda x: torch.nn.functional.gelu(x).softmax(-1)
x = torch.randn(8, 50)
torch.testing.assert_close(torch.compile(fn, backend="cpu")(x), fn(x))
"""


@pytest.mark.e2e
def test_no_c_compiler_is_needed():
    subprocess.run([sys.executable, "-c", NO_COMPILER], check=True, timeout=120)


def test_numbers_may_be_negative():
    def fn(x, n):
        return x + n, x * 2 + x.shape[0] - n, n * 3

    compiled = torch.compile(fn, backend="cpu", dynamic=True, options={"strict": True})
    for size, n in [(3, 5), (4, -7), (9, 0), (2, -(2**40))]:
        x = data(size)
        for got, expected in zip(compiled(x, n), fn(x, n), strict=True):
            torch.testing.assert_close(got, expected)


def test_inputs_that_are_only_read_may_overlap():
    def fn(x, y, total):
        total.add_(x + y)
        return x * y

    base, total = data(10), data(6)
    expected = total.clone()
    compiled = torch.compile(fn, backend="cpu", options={"strict": True})
    result = compiled(base[:6], base[2:8], total)
    torch.testing.assert_close(result, fn(base[:6], base[2:8], expected))
    torch.testing.assert_close(total, expected)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("op", ["amax", "amin", "sum"])
def test_folds_of_a_size_that_varies(op, dim):
    """Long ones go in parts; a short one has none, only what is left over."""

    def fn(x):
        return getattr(x, op)(dim)

    compiled = torch.compile(fn, backend="cpu", dynamic=True)
    for n in (7, 2, 3, 300, 20000):
        x = torch.randint(-9, 9, (n, 5) if dim == 0 else (5, n)).float()
        torch.testing.assert_close(compiled(x), fn(x), rtol=0, atol=0)


def test_what_has_nothing_in_common_but_its_size_is_no_kernel():
    last = torch.channels_last
    x, w = data(4, 8, 8, 8).to(memory_format=last), data(32, 4, 4, 4)

    def fn(x, w):
        return x.relu(), w.clone(memory_format=last)

    assert len(kernels.kernels_of(fn, x, w)) == 2
    assert len(kernels.kernels_of(lambda x, y: (x.relu(), y.exp()), x, x + 1)) == 1
    assert len(kernels.kernels_of(lambda x: (x.relu(), x.view(32, 16) + 1), data(512))) == 1
    assert_same(fn, x, w, backend="cpu")


def test_sizes_that_share_a_symbol():
    """Axes of 12 * s0 and 32 together are 384 * s0, which no size of the kernel is."""

    def fn(rows, table):
        return F.embedding(rows, table) * 2

    compiled = torch.compile(fn, backend="cpu", options={"strict": True, "cache": False})
    table = torch.randn(10, 32)
    for count in (3, 5):
        rows = torch.arange(count * 12).reshape(count, 12) % 10
        torch._dynamo.mark_dynamic(rows, 0)
        torch.testing.assert_close(compiled(rows, table), fn(rows, table))
