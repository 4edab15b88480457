"""Every built-in kernel against torch in double precision: dtypes, strides, broadcasts, sizes."""

import itertools
import math

import pytest
import torch

from dovetail.ir.program import Buffer, KernelCall, Program
from dovetail.ir.tensor import TensorDesc
from dovetail.runtime.loaded import open_native
from dovetail.testing.program_reference import KERNELS
from tests.artifact.files import file_bytes

FLOATS = [torch.float32, torch.float64]
UNARY = """abs acos asin atan ceil cos cosh erf exp exp2 expm1 floor gelu gelu_tanh log log10 log1p
log2 neg reciprocal relu round rsqrt sigmoid sign silu sin sinh sqrt tan tanh trunc""".split()  # noqa: SIM905
BINARY = ["add", "sub", "mul", "div", "pow", "maximum", "minimum"]
COMPARE = ["eq", "ne", "lt", "le", "gt", "ge"]
SPECIAL = [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 0.5, 2.5, 1e-30, 80.0]


def desc(t):
    return TensorDesc(str(t.dtype).removeprefix("torch."), tuple(t.shape), tuple(t.stride()))


def call(kernel, inputs, outputs, numbers=()):
    """One kernel on tensors where they lie; outputs are given by example."""
    names = [f"i{n}" for n in range(len(inputs))]
    buffers = [Buffer(n, "input", desc(t)) for n, t in zip(names, inputs, strict=True)]
    results = [f"o{n}" for n in range(len(outputs))]
    buffers += [Buffer(n, "output", desc(t)) for n, t in zip(results, outputs, strict=True)]
    instruction = KernelCall(f"{kernel}@1", tuple(results), tuple(names), tuple(numbers))
    program = Program("p", tuple(buffers), (instruction,), tuple(results))
    got = open_native(file_bytes(str(program)))(*inputs)
    return [torch.from_dlpack(t) for t in got]


def expected(kernel, inputs, numbers=()):
    """The oracle in double precision."""
    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    made = KERNELS[kernel](wide, numbers)
    return made if isinstance(made, tuple) else (made,)


def close(got, want):
    rtol = 1e-12 if got.dtype == torch.float64 else 3e-6
    torch.testing.assert_close(got, want.to(got.dtype), rtol=rtol, atol=rtol, equal_nan=True)


def layouts(shape, dtype):
    """The same shape laid out in several ways."""
    base = torch.randn(shape, dtype=torch.float64)
    base = base.to(dtype) if dtype.is_floating_point else (base * 9).to(dtype)
    yield base
    yield base.transpose(0, -1).contiguous().transpose(0, -1)
    yield torch.stack([base, base], -1)[..., 1]
    yield base[:1].expand(shape)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kernel", UNARY)
def test_unary(kernel, dtype):
    special = torch.tensor(SPECIAL, dtype=dtype)
    if kernel in ("sin", "cos", "tan"):
        special = special[special.abs() < 1e6]
    for x in [special, torch.tensor(0.25, dtype=dtype), *layouts((3, 4, 5), dtype)]:
        (got,) = call(kernel, [x], [torch.empty(x.shape, dtype=dtype)])
        close(got, expected(kernel, [x])[0])


@pytest.mark.parametrize("kernel", ["abs", "neg", "relu", "sign"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_unary_int(kernel, dtype):
    x = torch.tensor([0, 1, -1, 7, torch.iinfo(dtype).max, torch.iinfo(dtype).min], dtype=dtype)
    (got,) = call(kernel, [x], [x])
    assert torch.equal(got, expected(kernel, [x])[0])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kernel", BINARY)
def test_binary(kernel, dtype):
    pairs = list(itertools.product(SPECIAL, SPECIAL))
    a, b = (torch.tensor(column, dtype=dtype) for column in zip(*pairs, strict=True))
    (got,) = call(kernel, [a, b], [a])
    close(got, expected(kernel, [a.double(), b.double()])[0].to(dtype))
    for x in layouts((3, 4, 5), dtype):
        for y in (torch.randn(3, 4, 5), torch.randn(5), torch.randn(4, 1), torch.randn(())):
            pair = [x.abs(), y.to(dtype)]
            (got,) = call(kernel, pair, [torch.empty(3, 4, 5, dtype=dtype)])
            close(got, expected(kernel, pair)[0])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("kernel", ["add", "sub", "mul", "maximum", "minimum"])
def test_binary_int(kernel, dtype):
    ends = torch.iinfo(dtype)
    values = [0, 1, -1, 3, ends.max, ends.min]
    a, b = torch.tensor(list(itertools.product(values, values)), dtype=dtype).t()
    (got,) = call(kernel, [a, b], [torch.empty(len(a), dtype=dtype)])
    assert torch.equal(got, expected(kernel, [a, b])[0])


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.bool])
@pytest.mark.parametrize("kernel", COMPARE)
def test_compare(kernel, dtype):
    a, b = torch.tensor(list(itertools.product(SPECIAL[:7], SPECIAL[:7]))).t()
    a, b = (x if dtype.is_floating_point else x.nan_to_num(3, 4, 5) for x in (a, b))
    a, b = a.to(dtype), b.to(dtype)
    (got,) = call(kernel, [a, b], [torch.empty(len(a), dtype=torch.bool)])
    assert torch.equal(got, expected(kernel, [a, b])[0])


def test_logical_and_where():
    a, b = torch.tensor([[True, True], [True, False], [False, True], [False, False]]).t()
    for kernel in ("logical_and", "logical_or"):
        assert torch.equal(call(kernel, [a, b], [a.contiguous()])[0], expected(kernel, [a, b])[0])
    assert torch.equal(call("logical_not", [a], [a.contiguous()])[0], ~a)
    for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.bool):
        x, y = (torch.arange(12).reshape(3, 4) % 3).to(dtype), torch.tensor(1).to(dtype)
        mask = torch.tensor([True, False, False, True])
        (got,) = call("where", [mask, x, y], [x])
        assert torch.equal(got, torch.where(mask, x, y))


@pytest.mark.parametrize("dtype", FLOATS)
def test_with_numbers(dtype):
    x = torch.tensor(SPECIAL, dtype=dtype)
    close(call("clamp", [x], [x], (-0.75, 1.5))[0], torch.clamp(x, -0.75, 1.5))
    close(call("leaky_relu", [x], [x], (0.125,))[0], torch.nn.functional.leaky_relu(x, 0.125))


SIZES = [(1, 1, 1), (3, 16, 5), (1, 300, 70), (9, 257, 31), (130, 40, 50), (4, 0, 3)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", SIZES)
def test_matmul(size, dtype):
    m, k, n = size
    for batch, bias, left_t, right_t in itertools.product([(), (3,)], range(3), [0, 1], [0, 1]):
        left = (
            torch.randn(*batch, k, m, dtype=dtype).mT
            if left_t
            else torch.randn(*batch, m, k, dtype=dtype)
        )
        right = (
            torch.randn(*batch, n, k, dtype=dtype).mT
            if right_t
            else torch.randn(*batch, k, n, dtype=dtype)
        )
        inputs = [left, right]
        if bias:
            inputs.append(torch.randn((n,) if bias == 1 else (m, 1), dtype=dtype))
        want = expected("matmul", inputs)[0]
        for out in (
            torch.empty(*batch, m, n, dtype=dtype),
            torch.empty(*batch, n, m, dtype=dtype).mT,
        ):
            (got,) = call("matmul", inputs, [out])
            scale = 1e-13 if dtype == torch.float64 else 2e-6
            torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=scale * (k + 8))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kernel", ["softmax", "log_softmax", "safe_softmax"])
def test_softmax(kernel, dtype):
    for x in layouts((3, 4, 5), dtype):
        for axis in range(3):
            (got,) = call(kernel, [x], [torch.empty(3, 4, 5, dtype=dtype)], (axis,))
            close(got, expected(kernel, [x], (axis,))[0])
    low, nan = float("-inf"), float("nan")
    odd = torch.tensor([[1e4, -1e4], [low, 0], [low, low], [nan, 1], [low, nan]], dtype=dtype)
    close(call(kernel, [odd], [odd], (1,))[0], expected(kernel, [odd], (1,))[0])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("inner", [1, 2])
def test_layer_norm(inner, dtype):
    for x in layouts((3, 4, 5), dtype):
        shape = x.shape[3 - inner :]
        weight, bias = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
        for given in ([], [weight], [bias], [weight, bias]):
            has = (int(any(g is weight for g in given)), int(any(g is bias for g in given)))
            numbers = (inner, 1e-5, *has)
            want = expected("layer_norm", [x, *given], numbers)
            like = [torch.empty(w.shape, dtype=dtype) for w in want]
            for got, right in zip(
                call("layer_norm", [x, *given], like, numbers), want, strict=True
            ):
                close(got, right)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32])
@pytest.mark.parametrize("kernel", ["sum", "mean", "amax", "amin", "var"])
def test_reductions(kernel, dtype):
    if kernel in ("mean", "var") and not dtype.is_floating_point:
        pytest.skip("floating point only")
    for x in layouts((3, 4, 5), dtype):
        for mask, keep in itertools.product(range(1, 8), (0, 1)):
            numbers = (mask, keep) + ((1.0,) if kernel == "var" else ())
            want = expected(kernel, [x], numbers)[0].to(dtype)
            (got,) = call(kernel, [x], [torch.empty(want.shape, dtype=dtype)], numbers)
            close(got, want)


TYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8"]


@pytest.mark.parametrize("source", [*TYPES, "bool"])
@pytest.mark.parametrize("target", [*TYPES, "bool"])
def test_conversions(source, target):
    numbers = [0, 1, 2, 3, 100, 0.5, 1.75, 65504, 1e-7, 3.14159, 126.5, 1e5, 2**24 + 1]
    if source not in ("uint8", "bool"):
        numbers += [-1, -2.5, -100, -1e-8]
    x = torch.tensor(numbers, dtype=torch.float64)
    if "int" in target or "int" in source:
        limit = 100 if "8" in (target + source).replace("float", "") else 30000
        x = x[x.abs() < limit]
        x = x[x >= 0] if "uint8" in (source, target) else x
    x = x.to(getattr(torch, source))
    (got,) = call("copy", [x], [torch.empty(x.shape, dtype=getattr(torch, target))])
    torch.testing.assert_close(got, x.to(getattr(torch, target)), rtol=0, atol=0, equal_nan=True)


def test_half_conversions_are_exact_for_every_value():
    for dtype in (torch.float16, torch.bfloat16):
        every = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)
        (wide,) = call("copy", [every], [torch.empty(65536)])
        assert torch.equal(wide.nan_to_num(7), every.float().nan_to_num(7))
        (back,) = call("copy", [wide], [every])
        real = ~every.isnan()
        assert torch.equal(back.view(torch.int16)[real], every.view(torch.int16)[real])
    middle = torch.randn(200_000) * torch.logspace(-9, 5, 200_000)
    for dtype in (torch.float16, torch.bfloat16):
        (got,) = call("copy", [middle], [torch.empty(200_000, dtype=dtype)])
        assert torch.equal(got, middle.to(dtype))


def test_take_and_cat():
    table = torch.randn(4, 5, 3)
    for axis in range(3):
        index = torch.tensor([[0, 2], [1, 1]])
        shape = (*table.shape[:axis], 2, 2, *table.shape[axis + 1 :])
        (got,) = call("take", [table, index], [torch.empty(shape)], (axis,))
        assert torch.equal(got, expected("take", [table, index], (axis,))[0].float())
        parts = [table, table.flip(0), table.narrow(axis, 0, 1), table.narrow(axis, 0, 0)]
        want = torch.cat(parts, axis)
        (got,) = call("cat", parts, [torch.empty(want.shape)], (axis,))
        assert torch.equal(got, want)


@pytest.mark.parametrize("mode", range(5))
@pytest.mark.parametrize(
    "dtype",
    [*FLOATS, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8],
)
def test_scatter(mode, dtype):
    def numbers(*shape):
        few = torch.randint(-3, 3, shape)  # whose sums and products half precision has exactly
        return (few if dtype.itemsize == 2 else torch.randn(shape) * 9).to(dtype)

    base = numbers(6, 5, 4)
    for axis, size in enumerate(base.shape):
        # Where elements are set, no two may have one place: eager leaves open which of them wins.
        index = torch.randperm(size)[:4] if mode == 0 else torch.randint(0, size, (9,))
        shape = (*base.shape[:axis], len(index), *base.shape[axis + 1 :])
        spread = index.reshape(*(1,) * axis, -1, *(1,) * (2 - axis)).expand(shape)
        for apart in (0, 1):
            for by_slices, places in ((1, index), (0, spread)):
                given = [base, places, numbers(*shape)]
                attributes = (axis, mode, by_slices, apart, 0)
                (got,) = call("scatter", given, [torch.empty_like(base)], attributes)
                torch.testing.assert_close(got, expected("scatter", given, attributes)[0].to(dtype))


def test_scatter_by_an_index_of_several_dimensions():
    base, index, source = torch.randn(5, 3), torch.tensor([[0, -2], [1, 0]]), torch.randn(2, 2, 3)
    for attributes in ((0, 1, 1, 0, 1), (0, 3, 1, 1, 1)):
        given = [base, index, source]
        (got,) = call("scatter", given, [torch.empty(5, 3)], attributes)
        assert torch.equal(got, expected("scatter", given, attributes)[0].float())


def test_scatter_keeps_nan_and_refuses_places_that_are_not_there():
    base, source = torch.tensor([1.0, math.nan, 3.0]), torch.tensor([math.nan, 1.0, 5.0])
    index = torch.tensor([0, 1, 2])
    (got,) = call("scatter", [base, index, source], [torch.empty(3)], (0, 3, 0, 0, 0))
    assert str(got.tolist()) == "[nan, nan, 5.0]"
    for wrong, from_end, error in (
        (3, 0, RuntimeError),
        (-1, 0, RuntimeError),
        (-4, 1, IndexError),
    ):
        given = [base, torch.tensor([0, wrong, 2]), source]
        with pytest.raises(error, match="out of bounds"):
            call("scatter", given, [torch.empty(3)], (0, 1, 1, 0, from_end))


def test_the_number_of_threads_changes_no_bit():
    from dovetail import _native

    x, w = torch.randn(300, 200), torch.randn(170, 200).t()
    results = []
    try:
        for count in (1, 2, 5):
            assert _native.set_threads(count) == count
            (product,) = call("matmul", [x, w], [torch.empty(300, 170)])
            (rows,) = call("softmax", [product], [product], (1,))
            (total,) = call("sum", [rows], [torch.empty(170)], (1, 0))
            results.append((product, rows, total, call("exp", [product], [product])[0]))
    finally:
        _native.set_threads(0)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
