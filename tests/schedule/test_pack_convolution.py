"""Networks whose convolutions are generated: packed weights, one layout, nothing left to ATen."""

import copy

import pytest
import torch
from torch import nn

import dovetail
from dovetail.cli.inspect import describe
from dovetail.file.processors import target_here
from tests.differential import needs_code

pytestmark = [
    needs_code,
    pytest.mark.skipif("fma" not in target_here().features, reason="it needs multiply-adds"),
]


class Small(nn.Module):
    """A stem, a strided block with a residual, and a head, as networks for images have them."""

    def __init__(self):
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 32, 7, 2, 3), nn.Conv2d(32, 64, 1, 2, bias=False)
        self.first = nn.Sequential(nn.Conv2d(32, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64))
        self.second = nn.Sequential(nn.Conv2d(64, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64))
        self.pool, self.head = nn.MaxPool2d(3, 2, 1), nn.Linear(64, 10)

    def forward(self, x):
        x = self.pool(torch.relu(self.stem(x)))
        x = torch.relu(self.second(torch.relu(self.first(x))) + self.down(x))
        return self.head(x.mean((2, 3)))


def test_a_network_has_convolutions_of_its_own_and_no_changes_of_layout(tmp_path):
    torch.manual_seed(0)
    model, x = Small().eval(), torch.randn(2, 3, 64, 64)
    path = tmp_path / "small.dvt"
    with torch.no_grad():
        expected = model.double()(x.double())
        eager = model.float()(x)
        dovetail.export(model, (x,), backend="cpu").save(path)
        found = dovetail.load(path)(x)
    limit = 2 * (eager - expected).abs().max() + 1e-6
    assert (found - expected).abs().max() <= limit
    text = describe(str(path))["program"]
    # The first layer, of three channels, may be a library's: seconds decide, by the processor.
    calls = [line for line in text.splitlines() if "aten.convolution" in line]
    assert all("stem_weight" in line for line in calls)


@pytest.mark.parametrize("channels", [32, 48, 40])
def test_weights_that_change_are_laid_out_at_each_call(channels):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, channels, 3, padding=1), nn.Conv2d(channels, 64, 3, 2, 1))
    x = torch.randn(2, 16, 20, 20)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="dovetail", options={"strict": True})
    with torch.no_grad():
        for _ in range(2):
            exact = copy.deepcopy(model).double()(x.double())
            limit = 2 * (model(x) - exact).abs().max() + 1e-6
            assert (compiled(x) - exact).abs().max() <= limit
            model[0].weight.mul_(2).add_(0.01)
