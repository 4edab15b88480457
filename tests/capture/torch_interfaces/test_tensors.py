"""What is asked of tensors."""

import weakref

import torch
from torch._subclasses import FakeTensorMode

from dovetail.capture._torch.tensors import (
    is_fake,
    is_plain_tensor,
    is_view,
    own_tensors,
    pytree,
    storage_id,
    tensor_flags,
    tensor_version,
)


def test_a_storage_has_one_object_that_can_be_watched():
    """Device copies are dropped when the storage they were made from is gone."""
    x, gone = torch.ones(3), []
    watched = weakref.ref(x.untyped_storage(), gone.append)
    view = x.view(3, 1)
    assert watched() is view.detach().untyped_storage()
    del x
    assert not gone
    del view
    assert gone


def test_writes_are_counted():
    x = torch.ones(2)
    before = tensor_version(x)
    x.add_(1)
    assert tensor_version(x) == before + 1


def test_containers_are_flattened():
    assert pytree().tree_leaves({"a": [1, 2]}) == [1, 2]


def test_tensors_are_described_for_keys():
    x = torch.ones(4)
    assert storage_id(x) == storage_id(x[1:])
    assert storage_id(x) != storage_id(torch.ones(4))
    assert is_view(x[1:])
    assert not is_view(x)
    assert tensor_flags(x) == ""
    assert tensor_flags(torch.ones(2, requires_grad=True)[:1]) == "requires_grad view"
    fake = FakeTensorMode().from_tensor(x)
    assert is_plain_tensor(fake)
    assert is_fake(fake)
    assert not is_fake(x)
    assert not is_plain_tensor(x.as_subclass(type("Mine", (torch.Tensor,), {})))
    assert list(own_tensors(torch.nn.BatchNorm1d(2))) == [
        *("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    ]
