"""Code that is an object of this process: precompile keeps nothing of it, and says so."""

import warnings

import pytest
import torch

from dovetail import history, registry
from dovetail.errors import NotKept, PrecompileWarning
from tests.held_here import REASON, HeldHere
from tests.marks import needs_precompile

pytestmark = needs_precompile


def inferred(x):
    return x.sin() + 1


def trained(x):
    return (x.sin() * x).sum()


@pytest.fixture(autouse=True)
def _from_nothing():
    torch.compiler.reset()
    history.clear()


@pytest.mark.parametrize(("fn", "grad"), [(inferred, False), (trained, True)])
def test_an_entry_is_not_kept_and_one_line_says_why(fn, grad):
    x = torch.linspace(0, 1, 5).requires_grad_(grad)
    options = {"backends": [HeldHere(), "cpu"]}
    with (
        torch._dynamo.config.patch(caching_precompile=True),
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        result = torch.compile(fn, backend="dovetail", options=options)(x)
    torch.testing.assert_close(result, fn(x))
    ours = [str(each.message) for each in told if each.category is PrecompileWarning]
    assert len(ours) == 1
    assert ours[0].endswith(REASON)


def test_aot_compile_refuses():
    with registry.registered_backend(HeldHere):
        options = {"backends": ["held_here", "cpu"]}
        compiled = torch.compile(inferred, backend="dovetail", fullgraph=True, options=options)
        with pytest.raises(NotKept, match=REASON):
            compiled.aot_compile(((torch.ones(5),), {}))
