"""Attention exported for ``portable``, which writes it out as products and a softmax."""

import pytest
import torch
from torch.nn import functional as F

import dovetail


class Attention(torch.nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


class Heads(torch.nn.Module):
    """As nn.MultiheadAttention joins its heads: where eager's layout allows it, without a copy."""

    def forward(self, q, k, v):
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return y.contiguous().view(y.shape[0], y.shape[1], -1)


def inputs(dtype=torch.float32, batch=2):
    return tuple(torch.randn(batch, 3, 5, 4).to(dtype) for _ in range(3))


def test_other_types_stay_pytorchs():
    given = inputs(torch.bfloat16)
    artifact = dovetail.export(Attention(), given, backend="portable")
    torch.testing.assert_close(artifact(*given), Attention()(*given))


@pytest.mark.parametrize("model", [Attention, Heads])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)])
def test_the_layout_is_eagers(order, model):
    """Inputs whose dimensions lie in another order, as nn.MultiheadAttention makes them."""
    inverse = [order.index(d) for d in range(4)]
    given = tuple(x.permute(order).contiguous().permute(inverse) for x in inputs())
    actual = dovetail.export(model(), given, backend="portable")(*given)
    expected = model()(*given)
    torch.testing.assert_close(actual, expected)
    assert actual.stride() == expected.stride()


def test_nothing_is_computed_for_the_layout_alone():
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = ({0: batch},) * 3
    artifact = dovetail.export(Heads(), inputs(), backend="portable", dynamic_shapes=shapes)
    assert {s.backend for s in artifact.record.graphs[0].segments} == {"portable"}
    given = inputs(batch=3)
    torch.testing.assert_close(artifact(*given), Heads()(*given))
