"""Calls that count from where a tensor's memory begins, on inputs that do not begin there."""

import pytest
import torch

CALLS = {
    "whole": lambda x: x.as_strided((2, 2), (2, 1), 1) * 2,
    "of a view": lambda x: torch.as_strided(x.view(2, 3).t(), (2, 2), (2, 1), 1) * 2,
    "of a result": lambda x: (x + 1)[2:].as_strided((2, 2), (2, 1), 1) * 2,
    "from the tensor": lambda x: x.as_strided((2, 2), (2, 1)) * 2,
}


@pytest.mark.parametrize("backend", ["cpu", "portable", "reference", "aten"])
@pytest.mark.parametrize("name", CALLS)
def test_as_strided(backend, name):
    torch.compiler.reset()
    ours, eager = torch.arange(20.0), torch.arange(20.0)
    found = torch.compile(CALLS[name], backend=backend)(ours[5:11])
    assert torch.equal(found, CALLS[name](eager[5:11]))
    assert torch.equal(ours, eager)
