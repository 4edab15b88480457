"""Convolutions along one dimension become convolutions of images, and nobody notices."""

import pytest
import torch
from torch import nn

import dovetail
from dovetail.passes.conv1d import use_images
from tests.differential import needs_code

LAYERS = {
    "plain": nn.Conv1d(6, 8, 3, padding=1),
    "stepped": nn.Conv1d(6, 8, 5, 2, bias=False),
    "dilated": nn.Conv1d(6, 8, 3, dilation=3),
    "in_groups": nn.Conv1d(6, 12, 3, groups=3),
    "of_each_channel": nn.Conv1d(6, 6, 4, padding=3, groups=6),
    "of_one_element": nn.Conv1d(6, 8, 1),
    "transposed": nn.ConvTranspose1d(6, 8, 3, 2, 1, output_padding=1),
    "transposed_in_groups": nn.ConvTranspose1d(6, 12, 4, 2, groups=2),
}


def data():
    return torch.randn(2, 6, 17, generator=torch.Generator().manual_seed(1))


@needs_code
@pytest.mark.parametrize("name", LAYERS)
def test_frozen_the_same_as_eager(name):
    model = nn.Sequential(LAYERS[name], nn.GELU()).eval()
    compiled = torch.compile(model, backend="cpu", options={"freeze": True}, dynamic=False)
    for x in (data(), data().transpose(1, 2).contiguous().transpose(1, 2)):
        with torch.no_grad():
            found, expected = compiled(x), model(x)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@needs_code
def test_rows_are_computed_by_kernels():
    model = nn.Sequential(nn.Conv1d(32, 64, 3), nn.ReLU(), nn.Conv1d(64, 64, 3)).eval()
    with torch.no_grad():
        report = dovetail.explain(model, torch.randn(1, 32, 100), options={"freeze": True})
    counts = [g["counts"] for c in report.to_dict()["compilations"] for g in c["graphs"]]
    assert len(counts) == 2, "what runs once, what runs at each call"
    assert not any(each["library"] or each["host"] for each in counts)


def test_weights_that_may_change_are_left_alone():
    graph = torch.fx.Graph()
    image, weight = graph.placeholder("image"), graph.placeholder("weight")
    image.meta["val"], weight.meta["val"] = torch.empty(2, 6, 17), torch.empty(8, 6, 3)
    args = (image, weight, None, [1], [0], [1], False, [0], 1)
    made = graph.call_function(torch.ops.aten.convolution.default, args)
    made.meta["val"] = torch.empty(2, 8, 15)
    graph.output((made,))
    gm = torch.fx.GraphModule({}, graph)
    before = str(gm.graph)
    assert str(use_images(gm).graph) == before
