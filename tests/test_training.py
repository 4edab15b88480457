"""Real models train as in eager: the same losses, one compilation."""

import copy

import pytest
import torch
from torch import nn

from dovetail import history
from tests.models import GPT, ResNet

STEPS = 20


def train(model, forward, batches):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = forward(inputs, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def token_batches():
    g = torch.Generator().manual_seed(0)
    data = [torch.randint(0, 50, (4, 17), generator=g) for _ in range(STEPS)]
    return [(d[:, :-1], d[:, 1:]) for d in data]


def image_batches():
    g = torch.Generator().manual_seed(0)
    images = [torch.randn(8, 3, 16, 16, generator=g) for _ in range(STEPS)]
    return [(x, torch.randint(0, 10, (8,), generator=g)) for x in images]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = ResNet()

    def forward(self, x, labels):
        return nn.functional.cross_entropy(self.net(x), labels)


CASES = {"gpt": (lambda: GPT(layers=2), token_batches), "resnet": (Classifier, image_batches)}


@pytest.mark.e2e
@pytest.mark.parametrize("backend", ["reference", "aten"])
@pytest.mark.parametrize("name", CASES)
def test_twenty_steps_of_adam(name, backend):
    make, batches = CASES[name]
    torch.manual_seed(1)
    eager = make()
    ours = copy.deepcopy(eager)
    expected = train(eager, eager, batches())
    actual = train(ours, torch.compile(ours, backend=backend), batches())
    # float32 error, which 20 steps of Adam amplify: measured 2e-6 at most on either model.
    torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected), rtol=1e-5, atol=1e-6)
    assert actual[-1] < actual[0]
    (compilation,) = history.recent()
    assert {g.kind for g in compilation.graphs} == {"forward", "backward"}


@pytest.mark.e2e
def test_dropout_trains_on_eagers_numbers():
    torch.manual_seed(1)
    eager = GPT(layers=1, dropout=0.2)
    ours = copy.deepcopy(eager)
    torch.manual_seed(5)
    expected = train(eager, eager, token_batches()[:5])
    torch.manual_seed(5)
    actual = train(ours, torch.compile(ours, backend="aten"), token_batches()[:5])
    torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected), rtol=1e-5, atol=1e-6)
