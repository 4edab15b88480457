"""op_db for the differential suite: what a backend gets wrong about each operator."""

from __future__ import annotations

from unittest import mock

import torch
from torch.utils import _pytree as pytree

from tests.backends.suite import REFUSED, Case, bundle, exported, unexported, verdict
from tests.codegen import sweep


def check_exported(op, backend: str, folder) -> list[str]:
    """Every case of one operator, exported and loaded: all in one program, alone if that is wrong.

    Cases that torch.export or a file refuses are not judged.
    """
    invocations = torch.testing._internal.common_methods_invocations
    with mock.patch.object(invocations, "wrapper_set_seed", _without_seed):
        cases = {
            name: as_case(op, sample)
            for name, (sample, _) in sweep.runnable(op, False, "cpu", sweep.CASES).items()
        }
        cases = {name: case for name, case in cases.items() if case is not None}
        if not cases or not _problems(bundle(list(cases.values())), backend, folder):
            return []
        found = []
        for name, case in cases.items():
            found += [f"{name} | {problem}" for problem in _problems(case, backend, folder)]
        return found


def _without_seed(op, *args, **kwargs):
    """A graph cannot hold the seed that op_db sets before random operators; ours is set outside."""
    return op(*args, **kwargs)


def _problems(case, backend, folder):
    expected = unexported(case)
    found = []
    for actual in exported(case, backend, folder):
        if not isinstance(actual, REFUSED):
            found += [wrong] if (wrong := verdict(case, expected, actual, False)) else []
    return found


def as_case(op, sample) -> Case | None:
    """A sample with its tensors as inputs; None where one is sparse or quantised."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [leaves[n].detach() for n in places]
    if any(x.layout != torch.strided or x.is_quantized for x in tensors):
        return None

    def run(*given):
        filled = list(leaves)
        for place, tensor in zip(places, given, strict=True):
            filled[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(filled, spec)
        return op.op(first, *args, **kwargs)

    return Case(run, tuple(tensors), grad=False)
