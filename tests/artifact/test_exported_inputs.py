"""Mistakes in what ``dovetail.export`` and ``Artifact.save`` are given."""

import pytest
import torch

import dovetail
from dovetail.errors import CannotSave, InvalidExampleInputs


def test_inputs_must_be_a_tuple():
    x = torch.ones(2, 8)
    with pytest.raises(InvalidExampleInputs, match=r"a tuple, not Tensor: export\(model, \(x,\)\)"):
        dovetail.export(torch.nn.Linear(8, 4), x)
    with pytest.raises(InvalidExampleInputs, match="kwargs must be a dict, not Tensor"):
        dovetail.export(torch.nn.Linear(8, 4), (x,), x)


def test_one_target_may_be_given_by_name(tmp_path):
    artifact = dovetail.export(torch.nn.Linear(8, 4), (torch.ones(2, 8),), backend="aten")
    artifact.save(tmp_path / "one.dvt", targets="x86-64-v3")
    with pytest.raises(CannotSave, match="no code can be made for 'mips'"):
        artifact.save(tmp_path / "none.dvt", targets="mips")
    assert not (tmp_path / "none.dvt").exists()
