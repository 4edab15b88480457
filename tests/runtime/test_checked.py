"""Writes that nothing shows: ``dovetail.refresh`` serves them, ``check_weights`` finds them."""

import pytest
import torch
from torch import nn

import dovetail
from dovetail import errors
from dovetail.runtime.checked import CheckedRunner
from tests.runtime.test_writes import (
    MOVED,
    SIZE,
    custom_operator,
    data_mul,
    is_fresh,
    kept,
    linear_of,
    made,
    numpy_view,
    one_element,
    part_of_it,
    with_gradient,
)


def checked():
    """The same in the mode ``check_weights``."""
    return CheckedRunner(kept(), {0: "weight"})


def data_element(weight):
    weight.data[1, 2] += 1


def numpy_element(weight):
    weight.detach().numpy()[1, 2] += 1


def storage_byte(weight):
    weight.untyped_storage()[4 * (SIZE[1] + 2)] ^= 1


HIDDEN = [data_element, numpy_element, storage_byte]


@pytest.mark.parametrize("write", HIDDEN)
def test_refresh_after_a_hidden_write_to_a_part(write):
    module, run = linear_of(made()), kept()
    run([module.weight])
    write(module.weight)
    assert not is_fresh(run, module.weight)  # what the documentation says of it
    dovetail.refresh(module)
    assert is_fresh(run, module.weight)


def test_refresh_without_a_model():
    weight, run = made(), kept()
    run([weight])
    data_element(weight)
    dovetail.refresh()
    assert is_fresh(run, weight)


@pytest.mark.parametrize("write", HIDDEN)
def test_the_check_of_contents_finds_a_hidden_write(write):
    weight, run = made(), checked()
    run([weight])
    write(weight)
    with pytest.warns(errors.StaleWeights, match=r"weight \(float32\[64, 96\]\).*refresh"):
        assert is_fresh(run, weight)
    assert is_fresh(run, weight)


@pytest.mark.parametrize(
    "write", [part_of_it, custom_operator, *MOVED, data_mul, numpy_view, dovetail.refresh]
)
def test_the_check_of_contents_says_nothing_of_what_is_noticed(write):
    weight, run = made(), checked()
    run([weight])
    write(weight)
    assert is_fresh(run, weight)  # a warning is an error in these tests


def test_the_check_of_contents_knows_of_optimisers():
    weight, run = made(), checked()
    run([weight])
    torch.optim.SGD([with_gradient(weight, one_element())], lr=0.1, fused=True).step()
    assert is_fresh(run, weight)


def test_the_check_of_contents_spans_graphs():
    """A device's copy may come from another graph than the one that is called now."""
    weight = made()
    checked()([weight])
    data_element(weight)
    with pytest.warns(errors.StaleWeights):
        checked()([weight])


def test_the_check_of_contents_is_not_confused_by_memory_used_again():
    addresses = set()
    for value in range(20):
        weight = nn.Parameter(torch.full(SIZE, 1.0))
        weight.data[1, 2] = value
        addresses.add(weight.data_ptr())
        run = checked()
        run([weight])
        del weight, run
    assert len(addresses) < 20
