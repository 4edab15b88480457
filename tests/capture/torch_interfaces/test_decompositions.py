"""PyTorch's tables of decompositions."""

import torch

from dovetail.capture._torch.decompositions import (
    composite_decomposition,
    composite_operators,
    core_aten_decompositions,
    export_composites,
    keep_composites,
    named_decompositions,
)

aten = torch.ops.aten


def test_decompositions():
    table = core_aten_decompositions()
    assert aten.silu.default in table
    assert aten.linear.default in composite_operators()
    rule = composite_decomposition(aten.linear.default)
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    torch.testing.assert_close(rule(x, w), x @ w.t())
    with keep_composites({aten.linear.default: lambda *a, **k: NotImplemented}):
        pass


def test_what_is_left_out_of_core_decompositions_is_taken_apart_by_autograd():
    table = core_aten_decompositions()
    whole = dict(torch._decomp.core_aten_decompositions().items())
    both = export_composites() | table
    assert [str(op) for op in whole if op not in both] == []
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    left_out = [op.name() for op in whole if op not in table]
    assert len(left_out) > 100
    assert not [name for name in left_out if has_kernel(name, "CPU") or has_kernel(name, "Meta")]


def test_decompositions_by_name():
    found = named_decompositions(["silu", "no_such_operator"])
    assert aten.silu.default in found
    assert all(op.overloadpacket is aten.silu for op in found)
