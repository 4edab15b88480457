"""Recurrent layers of models that nobody trains: kernels where weights are frozen."""

import pytest
import torch
from torch import nn

import dovetail
from tests.differential import needs_code

pytestmark = needs_code


class Layer(nn.Module):
    def __init__(self, **kwargs):
        super().__init__()
        self.layer = nn.LSTM(7, 12, **kwargs)

    def forward(self, x):
        out, (hidden, cell) = self.layer(x)
        return out, hidden, cell


def compiled(model, x, **options):
    """The results, and the operators that PyTorch runs."""
    torch.compiler.reset()
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        run = torch.compile(model, backend="dovetail", fullgraph=True, options=options)
        results = run(x)
    graphs = dovetail.Report(tuple(dovetail.history.recent()[-1:])).to_dict()["compilations"][0]
    return results, str(graphs)


def off(results, exact):
    """The root of the mean square of all errors: the largest of so few is chance."""
    errors = [(r.double() - e).flatten() for r, e in zip(results, exact, strict=True)]
    return torch.cat(errors).square().mean().sqrt().item()


@pytest.mark.parametrize(
    "kwargs",
    [{}, {"bias": False}, {"bidirectional": True, "num_layers": 2}, {"batch_first": True}],
    ids=["plain", "no_bias", "both_ways", "batch_first"],
)
@pytest.mark.parametrize(("batch", "frozen"), [(1, False), (1, True), (5, True)])
def test_frozen_layers_are_kernels(kwargs, batch, frozen):
    torch.manual_seed(0)
    model, x = Layer(**kwargs).eval(), torch.randn(6, batch, 7)
    if kwargs.get("batch_first"):
        x = x.transpose(0, 1).contiguous()
    results, report = compiled(model, x, freeze=frozen)
    with torch.no_grad():
        eager, exact = model(x), model.double()(x.double())
    assert off(results, exact) <= 2 * off(eager, exact)
    assert "mkldnn_rnn" not in report


def test_what_is_not_frozen_is_pytorchs():
    model, x = Layer().eval(), torch.randn(6, 5, 7)
    results, report = compiled(model, x)
    assert "mkldnn_rnn" in report
    with torch.no_grad():
        torch.testing.assert_close(results, model(x))
