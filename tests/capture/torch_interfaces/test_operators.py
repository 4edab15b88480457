"""Operators: classes, schemas, names, calls that write to their arguments."""

import torch

from dovetail.capture._torch.operators import call_mutable, operator_types, overload_name, schema_of

aten = torch.ops.aten


def test_functionalised_custom_operators_run():
    op = torch.ops.aten.add_.Tensor
    x = torch.zeros(2)
    arguments = {"other": torch.ones(2), "_self_base_index": 0, "_all_bases": [x]}
    _, copied = call_mutable(op, None, **arguments)
    assert (copied == 1).all()
    assert (x == 0).all()
    call_mutable(op, (), **arguments)
    assert (x == 1).all()


def test_operators():
    overload, packet, higher_order = operator_types()
    assert isinstance(aten.add.Tensor, overload)
    assert isinstance(aten.add, packet)
    assert isinstance(torch.ops.higher_order.cond, higher_order)
    assert schema_of(aten.add_.Tensor).is_mutable
    assert overload_name(aten.add.Tensor) == "Tensor"
