"""What torch.export's own steps warn of."""

import warnings

import torch

from dovetail.capture._torch.export import ignore_copied_leaves


def test_a_copied_tree_warns_of_itself():
    """Fails where PyTorch copies trees without a warning: then nothing needs to be hidden."""
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        program.run_decompositions({})
        heard = len(seen)
        ignore_copied_leaves()
        program.run_decompositions({})
    assert heard == len(seen) > 0
    assert {w.category for w in seen} == {FutureWarning}
