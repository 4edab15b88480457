"""Recurrent layers, and the joining of many pieces: files of them need no PyTorch."""

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import dovetail
from dovetail.file.decode import decode_artifact
from tests.differential import assert_same, needs_code

pytestmark = [needs_code, pytest.mark.filterwarnings("ignore::UserWarning")]


def saved(model, path, *given):
    """A model's file, loaded, and the program in it."""
    dovetail.export(model, given, backend="cpu").save(path)
    return dovetail.load(path), decode_artifact(path.read_bytes(), "model").program


LAYERS = {
    "lstm": lambda: nn.LSTM(6, 16),
    "lstm_both_ways": lambda: nn.LSTM(6, 16, 2, bidirectional=True, batch_first=True),
    "lstm_projected": lambda: nn.LSTM(6, 16, proj_size=4),
    "gru": lambda: nn.GRU(6, 16),
    "rnn": lambda: nn.RNN(6, 16),
}


@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers(name, tmp_path):
    torch.manual_seed(0)
    model, x = LAYERS[name]().eval(), torch.randn(7, 6, 6)
    run, program = saved(model, tmp_path / "model.dvt", x)
    assert not program.host_ops()
    assert len(program.kernels()) < len(program.instructions) / 2  # steps share theirs
    result, eager = run(x), model(x)
    exact = model.double()(x.double())
    for found, other, right in zip(*map(tree_leaves, (result, eager, exact)), strict=True):
        assert (found - right).abs().max() <= 2 * (other - right).abs().max() + 1e-7


def pieces(count, *shape, dtype=torch.float32):
    return [torch.arange(n, n + 6).view(shape).to(dtype) for n in range(count)]


JOINS = {
    "rows": (0, pieces(9, 2, 3)),
    "columns": (1, [p.t() for p in pieces(20, 2, 3)]),
    "middle": (-2, pieces(6, 1, 2, 3, dtype=torch.int64)),
    "strided": (0, [p[:, ::2] for p in pieces(7, 2, 3, dtype=torch.bfloat16)]),
    "empty": (0, [*pieces(5, 2, 3), torch.empty(0, 3)]),
    "nothing": (0, [*pieces(5, 6), torch.empty(0)]),
    "types": (0, [*pieces(5, 2, 3), *pieces(1, 2, 3, dtype=torch.int64)]),
    "one": (0, [torch.ones(1)] * 7),
}


@pytest.mark.parametrize("name", JOINS)
def test_joins_of_many_pieces(name):
    dim, given = JOINS[name]
    assert_same(lambda *x: torch.cat([a.neg() for a in x], dim) + 1, *given, backend="cpu")
    assert_same(lambda *x: torch.cat(x, dim), *given, backend="cpu")
