"""Convolutions of images of one pixel become products, and nobody notices."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

import dovetail
from dovetail.passes.pixel import use_products
from tests.differential import needs_code

LAYERS = {
    "biased": nn.Conv2d(40, 24, 1),
    "plain": nn.Conv2d(40, 24, 1, bias=False),
    "stepped": nn.Conv2d(40, 24, 1, stride=2, dilation=3),
    "of_one_result": nn.Conv2d(40, 1, 1),
    "in_half_precision": nn.Conv2d(40, 24, 1, dtype=torch.bfloat16),
    "of_lines": nn.Conv1d(40, 24, 1),
    "of_volumes": nn.Conv3d(40, 24, 1),
}
LEFT = {
    "padded": nn.Conv2d(40, 24, 1, padding=1, stride=3),
    "in_groups": nn.Conv2d(40, 24, 1, groups=2),
    "transposed": nn.ConvTranspose2d(40, 24, 1),
    "of_more_taps": nn.Conv2d(40, 24, 3, padding=1),
}


def data(layer, batch):
    made = torch.randn(batch, 40, *[1] * (layer.weight.dim() - 2))
    return made.to(layer.weight.dtype)


def rewritten(layer, batch=2):
    """The graph of a layer, before and after."""
    state = dict(layer.named_parameters())

    def run(x, state):
        return functional_call(layer, state, (x,))

    gm = make_fx(run, tracing_mode="fake")(data(layer, batch), state)
    before = str(gm.graph)
    return before, str(use_products(gm).graph)


@needs_code
@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_the_same_as_eager(name, freeze):
    layer = LAYERS[name].eval()
    compiled = torch.compile(layer, backend="cpu", options={"freeze": freeze}, dynamic=False)
    for batch in (1, 2, 5):
        x = data(layer, batch)
        images = (x, x.to(memory_format=torch.channels_last)) if x.dim() == 4 else (x,)
        for image in images:
            with torch.no_grad():
                found, expected = compiled(image), layer(image)
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", LAYERS)
def test_products_take_their_place(name):
    _, after = rewritten(LAYERS[name])
    assert "aten.convolution" not in after
    assert "aten.addmm" in after or "aten.mm" in after


@pytest.mark.parametrize("name", LEFT)
def test_others_are_left_alone(name):
    before, after = rewritten(LEFT[name])
    assert before == after


@needs_code
def test_squeeze_and_excite_calls_no_library():
    class Excite(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = nn.Conv2d(48, 12, 1), nn.Conv2d(12, 48, 1)

        def forward(self, x):
            mean = x.mean((2, 3), keepdim=True)
            return x * torch.sigmoid(self.up(torch.relu(self.down(mean))))

    with torch.no_grad():
        report = dovetail.explain(Excite().eval(), torch.randn(1, 48, 14, 14))
    counts = [g["counts"] for c in report.to_dict()["compilations"] for g in c["graphs"]]
    assert not any(each["library"] or each["host"] for each in counts)
