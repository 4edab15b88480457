"""Contractions: what products, convolutions and attention are made of, and who computes them."""

import pytest
import torch
from torch import nn

from dovetail.ir.call import OpCall, Ref
from dovetail.ir.strides import contiguous_strides
from dovetail.ir.target import TARGETS
from dovetail.ir.tensor import TensorDesc
from dovetail.lower import calls
from dovetail.lower.calls import lowered
from dovetail.lower.contraction import Contraction
from dovetail.lower.expression import InvalidExpression
from dovetail.lower.values import Source
from dovetail.schedule import adapt, plan
from dovetail.schedule.cpu.library import fills, library_reason
from tests.codegen.kernels import assert_generated
from tests.differential import needs_code

F = nn.functional
AVX512 = TARGETS["x86-64-v4"]


def desc(*shape, dtype="float32"):
    return TensorDesc(dtype, shape, contiguous_strides(shape))


def contractions(op, *args, output, **kwargs):
    """Those of a call whose tuples of sizes are tensors called a, b, …."""
    names = iter("abcdefg")
    given = [Ref(next(names), a) if isinstance(a, TensorDesc) else a for a in args]
    call = OpCall("out", f"aten.{op}", tuple(given), kwargs, output)
    held = {
        (r.name, ()): Source(r.name, r.desc.dtype, r.desc.shape, r.desc.strides)
        for r in given
        if isinstance(r, Ref)
    }
    found = lowered(call, held)
    assert not found.refusal
    return found.contractions


def convolution(x, w, out, stride=1, padding=0, dilation=1, transposed=False, groups=1, rank=2):
    steps = [(n,) * rank for n in (stride, padding, dilation)]
    args = (*steps, transposed, (0,) * rank, groups)
    (found,) = contractions("convolution.default", x, w, None, *args, output=out)
    return found


def test_a_matrix_product():
    (found,) = contractions("mm.default", desc(4, 8), desc(8, 5), output=desc(4, 5))
    assert found.roles == ("rows", "columns", "sum")
    assert [found.extent(role) for role in ("rows", "columns", "sum", "batch")] == [4, 5, 8, 1]
    assert found.accumulate == "float32"
    assert library_reason((found,), AVX512) == ""
    assert library_reason((found,), TARGETS["opencl"]) == "a product that a library is better at"


def test_a_batch_of_them():
    (found,) = contractions("bmm.default", desc(3, 4, 8), desc(3, 8, 5), output=desc(3, 4, 5))
    assert found.roles == ("batch", "rows", "columns", "sum")


@pytest.mark.parametrize(
    ("op", "args", "output", "reason"),
    [
        ("mm.default", (desc(1, 8), desc(8, 5)), desc(1, 5), ""),
        ("mm.default", (desc(4, 8), desc(8, 1)), desc(4, 1), ""),
        ("mm.default", (desc(1, 0), desc(0, 5)), desc(1, 5), "a product of nothing"),
        ("mv.default", (desc(4, 8), desc(8)), desc(4), ""),
        ("bmm.default", (desc(3, 1, 8), desc(3, 8, 5)), desc(3, 1, 5), ""),
        (
            "dot.default",
            (desc(8), desc(8)),
            desc(),
            "a product of vectors, which a library is better at",
        ),
        (
            "mm.default",
            (desc(1, 8, dtype="int64"), desc(8, 5, dtype="int64")),
            desc(1, 5, dtype="int64"),
            "a product that is not of floating-point numbers",
        ),
    ],
)
def test_kernels_compute_products_of_one_row(op, args, output, reason):
    assert library_reason(contractions(op, *args, output=output), AVX512) == reason


def test_a_convolution():
    found = convolution(desc(2, 6, 10, 10), desc(8, 6, 3, 3), desc(2, 8, 10, 10), padding=1)
    assert found.roles == ("rows", "columns", "rows", "rows", "sum", "sum", "sum")
    reason = "a convolution whose channels do not lie together"
    assert library_reason((found,), AVX512) == reason


def test_groups_are_a_batch():
    found = convolution(desc(2, 6, 10), desc(4, 3, 3), desc(2, 4, 8), groups=2, rank=1)
    assert found.roles == ("rows", "batch", "columns", "rows", "sum", "sum")
    assert found.extent("batch") == 2


def test_a_transposed_convolution_depends_on_its_place_through_its_mask():
    found = convolution(
        desc(2, 3, 5), desc(3, 4, 3), desc(2, 4, 11), stride=2, transposed=True, rank=1
    )
    left, _ = found.factors
    assert not left.is_plain
    assert left.dims == {0, 2, 3, 4}


APART = "a transposed convolution whose channels do not lie together"


@pytest.mark.parametrize(
    ("x", "weight", "reason"),
    [
        ((200, 25, 5, 1), (16, 4, 2, 1), APART),
        ((200, 1, 40, 8), (16, 4, 2, 1), APART),
        ((200, 25, 5, 1), (16, 1, 8, 4), APART),
        ((200, 1, 40, 8), (16, 1, 8, 4), ""),
    ],
)
def test_taps_that_never_meet_are_columns_between_rows(x, weight, reason):
    image = TensorDesc("float32", (2, 8, 5, 5), x)
    weights = TensorDesc("float32", (8, 4, 2, 2), weight)
    found = convolution(image, weights, desc(2, 4, 10, 10), stride=2, transposed=True)
    assert found.roles == ("rows", "columns", "rows", "columns", "rows", "columns", "sum")
    assert library_reason((found,), AVX512) == reason


def test_attention_has_two():
    q = desc(1, 2, 6, 4)
    output = (desc(1, 2, 6, 4), desc(1, 2, 6))
    op = "_scaled_dot_product_flash_attention_for_cpu.default"
    found = contractions(op, q, q, q, 0.0, True, output=output)
    assert [c.roles for c in found] == [("batch", "batch", "rows", "columns", "sum")] * 2
    assert library_reason(found, AVX512) == ""
    assert library_reason((*found, found[0]), AVX512) == "several products, which a library fuses"
    assert [c.leaves_out for c in found] == [False, True]
    for queries, reason in ((1, ""), (9, "attention of few queries")):
        few, many = desc(1, 2, queries, 4), desc(1, 2, 40, 4)
        found = contractions(op, few, many, many, 0.0, False, output=(few, desc(1, 2, queries)))
        assert library_reason(found, AVX512) == ""
        assert (
            library_reason(found, TARGETS["x86-64-v3"])[: len("attention of few queries")] == reason
        )
    q = desc(1, 2, 2048, 64)
    output = (q, desc(1, 2, 2048))
    found = contractions(op, q, q, q, 0.0, True, output=output)
    assert library_reason(found, AVX512).startswith("attention with more scores")


def test_text():
    (found,) = contractions("mm.default", desc(4, 8), desc(8, 5), output=desc(4, 5))
    found.reads[0].name, found.reads[1].name = "x", "w"
    text = "product.1: float32[4, 5] = sum over d2 < 8 of x[d0, d2] * w[d2, d1]"
    assert str(found) == text


def test_what_is_no_sum_of_products_has_no_factors():
    x = Source("x", "float32", (3, 4))
    found = Contraction("c", (3, 4), (1,), lambda b, i: (b.read(x, i),), (x, x), "float32")
    with pytest.raises(InvalidExpression, match="no sum of products"):
        _ = found.factors


def test_large_products_leave_room_for_a_library_with_memory_of_its_own():
    x = Ref("x", desc(512, 512))
    large = OpCall("y", "aten.mm.default", (x, x), {}, desc(512, 512))
    assert fills(large, TARGETS["x86-64-v3"])
    assert not fills(large, TARGETS["x86-64-v4"])


# ---- as kernels --------------------------------------------------------------------------------


@pytest.fixture
def in_kernels(monkeypatch):
    """Have kernels compute every contraction."""
    for module in (adapt, plan):
        monkeypatch.setattr(module, "library_reason", lambda *_: "")
    monkeypatch.setattr(calls, "_KEPT", {})  # what was decided before


def data(*shape):
    g = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(shape, generator=g)


CONVOLUTIONS = {
    "plain": lambda x, w: F.conv2d(x, w),
    "bias": lambda x, w: F.conv2d(x, w, torch.arange(4.0)),
    "padded": lambda x, w: F.conv2d(x, w, padding=1),
    "strided": lambda x, w: F.conv2d(x, w, stride=(2, 1), padding=(0, 2)),
    "dilated": lambda x, w: F.conv2d(x, w, dilation=2, padding=1),
    "groups": lambda x, w: F.conv2d(x, w[:, :2], padding=1, groups=2),
    "depthwise": lambda x, w: F.conv2d(x, w[:, :1], padding=1, groups=4),
    "line": lambda x, w: F.conv1d(x[:, :, 0], w[:, :, 0], padding=2, stride=3),
    "volume": lambda x, w: F.conv3d(x[:, :, None], w[:, :, None], padding=1),
    "transposed": lambda x, w: F.conv_transpose2d(x, w),
    "transposed_strided": lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1),
    "transposed_extra": lambda x, w: F.conv_transpose2d(x, w, stride=3, output_padding=1),
    "transposed_groups": lambda x, w: F.conv_transpose2d(x, w, dilation=2, groups=2),
}


@needs_code
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_any_convolution_can_be_a_kernel(in_kernels, name):
    assert_generated(CONVOLUTIONS[name], data(2, 4, 7, 6), data(4, 4, 3, 3), cache=False)


def gradients(x, w, transposed=False, groups=1, wanted=(True, True, True), **geometry):
    """All gradients of a convolution, by PyTorch's operator for them."""
    rank = x.dim() - 2
    steps, pads, holes, extra = (
        [geometry.get(name, default)] * rank
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1), ("extra", 0))
    )
    rest = (steps, pads, holes, transposed, extra, groups)
    made = torch.ops.aten.convolution(x, w, None, *rest)
    back = torch.ops.aten.convolution_backward.default(
        made.cos(), x, w, [made.shape[1]], *rest, wanted
    )
    return [g for g in back if g is not None]


GRADIENTS = {
    "plain": {},
    "padded": {"padding": 1, "stride": 2},
    "dilated": {"dilation": 2, "padding": 2, "wanted": (False, True, True)},
    "groups": {"groups": 2, "padding": 1, "wanted": (True, True, False)},
    "transposed": {"transposed": True, "stride": 3, "padding": 1, "extra": 1},
    "transposed_groups": {"transposed": True, "groups": 2, "dilation": 2},
}


@needs_code
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_convolutions_can_be_kernels(in_kernels, name):
    given = GRADIENTS[name]
    w = data(4, 4 // given.get("groups", 1), 3, 3)
    assert_generated(lambda x, w: gradients(x, w, **given), data(2, 4, 7, 6), w, cache=False)


def test_gradients_of_a_convolution_are_two_contractions():
    x, w, made = desc(2, 6, 10, 10), desc(8, 6, 3, 3), desc(2, 8, 10, 10)
    rest = ((8,), (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    op, both = "convolution_backward.default", (True, True, True)
    of_input, of_weight = contractions(op, made, x, w, *rest, both, output=(x, w, desc(8)))
    assert of_input.roles == ("rows", "columns", "rows", "rows", "sum", "sum", "sum")
    assert of_weight.roles == ("rows", "columns", "columns", "columns", "sum", "sum", "sum")
    assert of_weight.shape == (8, 6, 3, 3)
    first = (False, True, True)  # the first layer of a model
    (alone,) = contractions(op, made, x, w, *rest, first, output=(None, w, desc(8)))
    reason = "a convolution whose channels do not lie together"
    assert library_reason((alone,), AVX512) == reason


PRODUCTS = {
    "mm": (torch.mm, (data(3, 8), data(8, 5))),
    "addmm": (torch.addmm, (data(5), data(3, 8), data(8, 5))),
    "bmm": (torch.bmm, (data(2, 3, 8), data(2, 8, 5))),
    "baddbmm": (
        lambda b, x, y: torch.baddbmm(b, x, y, beta=2, alpha=0.5),
        (data(2, 1, 5), data(2, 3, 8), data(2, 8, 5)),
    ),
    "dot": (torch.dot, (data(9), data(9))),
    "linear": (F.linear, (data(2, 3, 8), data(5, 8), data(5))),
    "einsum": (lambda x, y: torch.einsum("bik,bjk->bij", x, y), (data(2, 3, 8), data(2, 5, 8))),
    "halves": (torch.mm, (data(3, 8).bfloat16(), data(8, 5).bfloat16())),
    "integers": (torch.mm, (torch.arange(12).view(3, 4), torch.arange(8).view(4, 2))),
}


@needs_code
@pytest.mark.parametrize("name", PRODUCTS)
def test_any_product_can_be_a_kernel(in_kernels, name):
    fn, args = PRODUCTS[name]
    assert_generated(fn, *args, cache=False)


ATTENTION = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "mask": {"attn_mask": torch.linspace(-2, 2, 36).view(6, 6)},
    "bool": {"attn_mask": torch.ones(6, 6, dtype=torch.bool).tril(1)},
    "rows_that_see_nothing": {"attn_mask": torch.ones(6, 6, dtype=torch.bool).tril(-2)},
}


@needs_code
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_can_be_kernels(in_kernels, name):
    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **ATTENTION[name])

    assert_generated(fn, *(data(2, 3, 6, n) for n in (8, 8, 8)), cache=False)
