"""Training graphs from the cache, run by AOTAutograd's own code."""

import torch

from dovetail.capture._torch.aot_autograd import aot_autograd, boxed
from dovetail.capture._torch.partition import min_cut_partition
from dovetail.capture._torch.training import can_restore_training, restored_training, training_plan


def training_plans(fn, *args):
    """What ``training_plan`` says while a function is compiled, and its two graphs."""
    plans, graphs, returned = [], [], []

    def forward(gm, inputs):
        assert can_restore_training()
        plans.append(training_plan(returned))
        graphs.append(gm)
        return boxed(lambda args: gm(*args))

    def backward(gm, inputs):
        graphs.append(gm)
        return boxed(lambda args: gm(*args))

    def partition(joint, inputs, **kwargs):
        parts = min_cut_partition(joint, inputs, **kwargs)
        returned[:] = parts[1].graph.output_node().args[0]
        return parts

    aot = aot_autograd(fw_compiler=forward, bw_compiler=backward, partition_fn=partition)
    results = torch.compile(fn, backend=aot, dynamic=False)(*args)
    sum(r.sum() for r in results).backward()
    return plans, graphs


def test_training_is_restored_from_its_plan():
    x, y = torch.ones(3, requires_grad=True), torch.arange(3.0)
    (plan,), (forward, backward) = training_plans(lambda x, y: [x.sin() * y], x, y)
    assert plan["outputs"] == [["non_alias", True, []]]
    assert plan["tangents"] == [[[3], [1]]]
    run = restored_training(plan, lambda a: forward(*a), lambda a: backward(*a))
    x.grad = None
    (result,) = run(x, y)
    result.sum().backward()
    torch.testing.assert_close(x.grad, y * torch.ones(3).cos())


def test_what_autograd_does_beyond_a_plan():
    x = torch.ones(2, 3, requires_grad=True)
    fns = [
        lambda x: [x.view(-1), x * 2],
        lambda x: [(y := x * 2), y.view(-1)],
    ]
    for fn in fns:
        plans, _ = training_plans(fn, x * 1)
        assert None in plans, fn
