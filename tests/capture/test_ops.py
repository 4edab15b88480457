"""What is known of operators."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dovetail.capture.ops import draws, resolve_op
from dovetail.ir import OpCall

aten = torch.ops.aten
X = torch.linspace(-1, 1, 16).reshape(1, 2, 2, 4)
LSTM = nn.LSTM(4, 4)
STATE = [torch.zeros(1, 2, 4)] * 2


def lstm(dropout, train):
    weights = list(LSTM.parameters())
    return aten.lstm.input, X[0], STATE, weights, True, 1, dropout, train, False, False


CALLS = {
    "rand_like": (aten.rand_like.default, X),
    "sin": (aten.sin.default, X),
    "dropout": (aten.native_dropout.default, X, 0.5, True),
    "dropout that does not train": (aten.native_dropout.default, X, 0.5, False),
    "attention": (aten._scaled_dot_product_flash_attention_for_cpu.default, X, X, X),
    "attention, no dropout": (aten._scaled_dot_product_attention_math.default, X, X, X, None, 0.0),
    "attention, dropout": (aten._scaled_dot_product_attention_math.default, X, X, X, None, 0.5),
    "noisy": (aten.rrelu_with_noise.default, X, torch.zeros_like(X), 0.1, 0.3, True),
    "noisy, by default not": (aten.rrelu_with_noise.default, X, torch.zeros_like(X)),
    "lstm": lstm(0.0, False),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_draws_random_numbers(name):
    op, *args = CALLS[name]
    plain = tuple(a if isinstance(a, bool | float | None) else "a tensor" for a in args)
    before = torch.get_rng_state()
    resolve_op(str(op))(*args)
    assert draws(OpCall("a", str(op), plain)) == (not torch.equal(before, torch.get_rng_state()))


def test_a_call_draws_by_keyword():
    op = "aten._scaled_dot_product_attention_math.default"
    assert draws(OpCall("a", op, ("q", "k", "v"), {"dropout_p": 0.5}))
    assert not draws(OpCall("a", op, ("q", "k", "v"), {"dropout_p": 0.0}))
    assert not draws(OpCall("a", op, ("q", "k", "v")))


def test_a_compiled_segment_of_attention_draws_nothing():
    from torch.fx.experimental.proxy_tensor import make_fx

    from dovetail.capture.from_fx import segment_of

    def attend(x):
        return F.scaled_dot_product_attention(x, x, x)

    segment = segment_of(make_fx(attend)(X), "attend")
    assert any("attention" in call.op for call in segment.calls)
    assert not any(map(draws, segment.calls))
