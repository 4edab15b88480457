"""Attention in generated kernels: as exact as eager's, for all masks, heads and lengths."""

import math
from functools import partial

import pytest
import torch
from torch.nn import functional as F

import dovetail
from dovetail.file.decode import decode_artifact
from dovetail.file.processors import target_here
from tests.codegen.kernels import assert_generated
from tests.differential import assert_same, needs_code

pytestmark = needs_code
BATCH, HEADS, WIDTH = 2, 4, 8


def data(*shape):
    g = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=g)


def heads(length, count=HEADS, width=WIDTH):
    """As projections give them: heads lie behind each other in a token."""
    return data(BATCH, length, count, width).transpose(1, 2)


def assert_attends(fn, *given):
    """As eager does; in kernels where they are faster for sizes as small as these."""
    wide = target_here().vector_bytes == 64
    (assert_generated if wide else partial(assert_same, backend="cpu"))(fn, *given)


def attend(**options):
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


LENGTHS = [(5, 5), (4, 33), (19, 7), (1, 40), (17, 1), (50, 50)]
MASKS = {
    "padding": torch.arange(19) < torch.tensor([19, 12]).view(2, 1, 1, 1),
    "scores": data(19, 19),
    "scores_of_heads": data(1, HEADS, 1, 19),
    "some_see_nothing": torch.ones(19, 19, dtype=torch.bool).tril(-3),
    "no_scores": torch.where(torch.eye(19) > 0, -math.inf, 0.0),
    "window": torch.ones(19, 19, dtype=torch.bool).tril(2).triu(-4),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_lengths(queries, keys, causal):
    assert_attends(attend(is_causal=causal), heads(queries), heads(keys), heads(keys))


@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask):
    assert_attends(attend(attn_mask=MASKS[mask]), heads(19), heads(19), heads(19))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"attn_mask": MASKS["padding"]},
        {"attn_mask": MASKS["scores"]},
        {"attn_mask": MASKS["scores_of_heads"]},
    ],
)
def test_heads_that_share_keys(groups, options):
    given = heads(19), heads(19, groups), heads(19, groups)
    assert_attends(attend(enable_gqa=True, **options), *given)


def test_one_query_of_heads_that_share_keys():
    assert_attends(attend(enable_gqa=True), heads(1, 8), heads(40, 2), heads(40, 2))


def test_training_hands_logarithms_to_pytorch():
    given = [heads(9).requires_grad_() for _ in range(3)]
    fn = attend(is_causal=True)
    expected = torch.autograd.grad(fn(*given).square().sum(), given)
    compiled = torch.compile(fn, backend="cpu")
    for a, b in zip(
        torch.autograd.grad(compiled(*given).square().sum(), given), expected, strict=True
    ):
        torch.testing.assert_close(a, b)


def test_large_scores_and_values_that_are_no_numbers():
    q, k, v = heads(9) * 1e3, heads(9) * 1e3, heads(9)
    compiled = torch.compile(attend(), backend="cpu", dynamic=False)
    exact = attend()(*(x.double() for x in (q, k, v)))
    torch.testing.assert_close(compiled(q, k, v).double(), exact, rtol=1e-3, atol=1e-4)
    for broken in (q, k, v):
        held = broken[0, 1, 2, 3].clone()
        for value in (math.nan, math.inf):
            broken[0, 1, 2, 3] = value
            exact = attend()(*(x.double() for x in (q, k, v)))
            assert torch.equal(compiled(q, k, v).isnan(), exact.isnan())
        broken[0, 1, 2, 3] = held


def test_a_file_with_attention_needs_no_torch(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return attend(is_causal=True)(q, k, v)

    given = heads(9), heads(9), heads(9)
    path = tmp_path / "model.dvt"
    dovetail.export(Model(), given, backend="cpu").save(path)
    run = dovetail.load(path)
    torch.testing.assert_close(run(*given), Model()(*given))
    assert not decode_artifact(path.read_bytes(), "model").program.host_ops()
