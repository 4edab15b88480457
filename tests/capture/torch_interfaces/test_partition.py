"""AOTAutograd's partitioner with our own minimum cut: the same graphs as with networkx."""

import copy
import math

import pytest
import torch
from torch import nn
from torch._functorch import partitioners

from dovetail.capture._torch import partition
from dovetail.capture._torch.aot_autograd import aot_autograd, boxed


def parts(cut, fn, args, dynamic=False):
    """What a partitioner makes of the joint graph of a function's training step, as text."""
    found = []

    def noted(joint, inputs, **kwargs):
        made = cut(joint, inputs, **kwargs)
        found.extend(str(gm.graph) for gm in made)
        return made

    def compiler(gm, inputs):
        return boxed(lambda args: gm(*args))

    aot = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, partition_fn=noted)
    torch._dynamo.reset()
    torch.compile(fn, backend=aot, dynamic=dynamic)(*args).sum().backward()
    return found


def pytorch_partition(joint, inputs, **kwargs):
    """PyTorch's own, with our kinds of operators."""
    kinds = partition._op_types(partitioners.get_default_op_list())
    with torch._functorch.config.patch(cse=False), pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitioners, "get_default_op_list", lambda: kinds)
        return partitioners.min_cut_rematerialization_partition(joint, inputs, **kwargs)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)

    def forward(self, x):
        for _ in range(3):
            x = self.norm(x + self.down(torch.sigmoid(self.up(x)).sin() * 2).relu())
        return x.exp()


def gated(x, y):
    z = (x * y).tanh()
    return (z * z.sigmoid() + (z @ y.T).softmax(-1).sum(-1, keepdim=True)).cos()


CASES = {
    "residual": (Residual(), (torch.randn(4, 8),), False),
    "gated": (gated, (torch.randn(5, 5, requires_grad=True), torch.randn(5, 5)), False),
    "dynamic": (gated, (torch.randn(6, 6, requires_grad=True), torch.randn(6, 6)), True),
}


@pytest.mark.parametrize("name", CASES)
def test_graphs_are_cut_as_with_networkx(name, monkeypatch):
    import networkx

    fn, args, dynamic = CASES[name]
    expected = parts(pytorch_partition, fn, args, dynamic)

    def never(*_):
        raise AssertionError("networkx cuts")

    monkeypatch.setattr(networkx, "minimum_cut", never)
    forward, backward = parts(partition.min_cut_partition, fn, args, dynamic)
    assert [forward, backward] == expected
    assert "tanh" in forward or "sigmoid" in forward
    assert "tangents" in backward


def test_pytorch_is_asked_where_there_is_no_cut(monkeypatch):
    fn, args, _ = CASES["gated"]

    def no_cut(*_):
        raise partition._NoCut

    monkeypatch.setattr(partition._NETWORKX, "minimum_cut", no_cut)
    assert parts(partition.min_cut_partition, fn, args) == parts(pytorch_partition, fn, args)


@pytest.mark.parametrize("capacity", [math.inf, 0.5])
def test_what_has_no_cost_as_a_whole_number(capacity):
    graph = partition._Network()
    graph.add_edge("source", "a_in", capacity=math.inf)
    graph.add_edge("a_in", "sink", capacity=capacity)
    with pytest.raises(partition._NoCut):
        partition._minimum_cut(graph, "source", "sink")


def test_calls_of_the_forward_pass_come_when_they_are_needed():
    """As PyTorch orders them; what nobody needs is gone, what is written to stays first."""
    graph = torch.fx.Graph()
    x, tangent = graph.placeholder("x"), graph.placeholder("tangents_1")
    aten = torch.ops.aten
    early = graph.call_function(aten.sin.default, (x,))
    graph.call_function(aten.cos.default, (early,))  # for nobody
    late = graph.call_function(aten.exp.default, (x,))
    value = graph.call_function(aten.neg.default, (x,))
    graph.call_function(aten.copy_.default, (x, value))
    first = graph.call_function(aten.mul.Tensor, (tangent, tangent))
    second = graph.call_function(aten.mul.Tensor, (first, late))
    graph.output((graph.call_function(aten.mul.Tensor, (second, early)),))
    gm = torch.fx.GraphModule(nn.Module(), graph)
    expected = partitioners.reordering_to_mimic_autograd_engine(copy.deepcopy(gm))
    ordered = partition.ordered_as_needed(gm)
    ordered.graph.lint()
    assert str(ordered.graph) == str(expected.graph)
