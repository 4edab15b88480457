"""Networks whose convolutions are generated: packed weights, one layout, nothing left to ATen."""

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
