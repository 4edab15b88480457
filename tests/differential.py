"""Compare a compiled function with eager in everything a caller can observe."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from dovetail.file.processors import no_code_here

# cpu generates code with llvmlite, which not every machine has, and not for every processor.
GENERATES = find_spec("llvmlite") is not None and not no_code_here()
needs_code = pytest.mark.skipif(not GENERATES, reason=no_code_here() or "it needs llvmlite")
BACKENDS = ("reference", "aten", *(("cpu",) if GENERATES else ()))
if os.environ.get("DOVETAIL_BACKENDS") == "all":  # make test-backends: those that run here
    from dovetail import registry

    OTHERS = ("portable", "onnxruntime", "opencl")
    BACKENDS += tuple(name for name in OTHERS if registry.get_backend(name).available())


@dataclass
class Outcome:
    """What a call gave: outputs, the inputs afterwards, gradients, or the exception."""

    outputs: Any
    inputs: Any
    grads: list[Any]
    error: Exception | None = None


def assert_same(fn, *args, backend, dynamic=None, grad=False, seed=None, calls=1, **options):
    """Run ``fn`` eagerly and compiled on copies of ``args`` and compare everything."""
    module = isinstance(fn, torch.nn.Module)
    eager_fn = copy.deepcopy(fn) if module else fn
    compiled_fn = copy.deepcopy(fn) if module else fn
    compiled = torch.compile(
        compiled_fn, backend=backend, dynamic=dynamic, options=options or None, fullgraph=True
    )
    for _ in range(calls):
        expected = run(eager_fn, args, grad, seed, eager_fn if module else None)
        actual = run(compiled, args, grad, seed, compiled_fn if module else None)
        compare(expected, actual)
        if module:
            compare_values(dict(eager_fn.named_buffers()), dict(compiled_fn.named_buffers()))
    return compiled


def run(fn, args, grad, seed, module) -> Outcome:
    inputs = clone(args)
    if seed is not None:
        torch.manual_seed(seed)
    if module is not None:
        module.zero_grad()
    try:
        with torch.set_grad_enabled(grad):
            outputs = fn(*inputs)
        grads = backward(outputs, inputs, module) if grad else []
    except Exception as error:
        return Outcome(None, inputs, [], error)
    return Outcome(outputs, inputs, grads)


def clone(args):
    """Copies with the same strides, requires_grad and sharing (duplicates stay duplicates)."""
    memo: dict[int, Any] = {}

    def one(x):
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in memo:
            size = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1
            with torch.no_grad():
                flat = torch.as_strided(x, (size if x.numel() else 0,), (1,)).clone()
                copied = flat.as_strided(x.shape, x.stride())
            memo[id(x)] = copied.requires_grad_(x.requires_grad)
        return memo[id(x)]

    return pytree.tree_map(one, args)


def backward(outputs, inputs, module):
    tensors = [t for t in pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor)]
    total = sum(
        (t.double().sin().sum() if not t.is_complex() else t.abs().double().sum())
        for t in tensors
        if t.requires_grad
    )
    if isinstance(total, torch.Tensor):
        total.backward()
    leaves = [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    grads = [t.grad for t in leaves if t.is_leaf]
    return grads + ([p.grad for p in module.parameters()] if module is not None else [])


def compare(expected: Outcome, actual: Outcome) -> None:
    if expected.error is not None or actual.error is not None:
        assert type(actual.error) is type(expected.error), (
            f"eager: {expected.error!r}, compiled: {actual.error!r}"
        )
        return
    compare_values(expected.outputs, actual.outputs)
    compare_values(expected.inputs, actual.inputs)
    compare_values(expected.grads, actual.grads)
    assert aliasing(expected) == aliasing(actual)


def compare_values(expected, actual):
    left, left_spec = pytree.tree_flatten_with_path(expected)
    right, right_spec = pytree.tree_flatten(actual)
    assert left_spec == right_spec
    for (path, a), b in zip(left, right, strict=True):
        where = pytree.keystr(path)
        assert type(a) is type(b), (where, a, b)
        if isinstance(a, torch.Tensor):
            compare_tensors(a, b, where)
        else:
            assert a == b or (a != a and b != b), (where, a, b)


def compare_tensors(a, b, where=""):
    assert a.dtype == b.dtype, where
    assert a.shape == b.shape, where
    assert a.device == b.device, where
    assert a.requires_grad == b.requires_grad, where
    if a.numel():
        sizes = [i for i, n in enumerate(a.shape) if n > 1]
        assert [a.stride(i) for i in sizes] == [b.stride(i) for i in sizes], f"strides {where}"
    torch.testing.assert_close(b, a, equal_nan=True, msg=lambda said: f"{where} {said}")


def aliasing(outcome: Outcome):
    """Which outputs are which inputs or share memory with them or with each other."""
    tensors = [
        t for t in pytree.tree_leaves((outcome.inputs, outcome.outputs)) if torch.is_tensor(t)
    ]
    storages = [t.untyped_storage().data_ptr() if t.numel() else None for t in tensors]
    same = [[a is b for b in tensors] for a in tensors]
    shared = [[a is not None and a == b for b in storages] for a in storages]
    offsets = [t.storage_offset() for t in tensors]
    return same, shared, offsets
