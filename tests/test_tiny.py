"""The whole pipeline in seconds: the first thing to run."""

import copy

import pytest
import torch
from torch import nn

import dovetail


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 7)

    def forward(self, tokens):
        return self.down(nn.functional.gelu(self.up(self.norm(self.embed(tokens))))).log_softmax(-1)


@pytest.mark.parametrize("backend", ["dovetail", "aten", "reference"])
def test_inference_training_and_export(backend):
    eager, tokens = Tiny(), torch.randint(0, 7, (2, 5))
    ours = copy.deepcopy(eager)
    compiled = torch.compile(ours, backend=backend)
    with torch.no_grad():
        torch.testing.assert_close(compiled(tokens), eager(tokens))
    eager(tokens).sum().backward()
    compiled(tokens).sum().backward()
    for expected, actual in zip(eager.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, expected.grad)
    artifact = dovetail.export(ours, (tokens,), backend=None if backend == "dovetail" else backend)
    torch.testing.assert_close(artifact(tokens), eager(tokens).detach())
