"""One differential suite for every backend that ships.

A case is a module or a function with its inputs. It runs compiled (``torch.compile``, with
gradients) and exported (as an artifact, and saved, loaded and run), and is held against eager.
Where the two differ, both are held against eager in float64: a backend may be off by twice as much
as eager is. What a backend cannot do it leaves to ATen, so every backend runs every case.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import dovetail
from dovetail import registry
from dovetail.errors import CannotSave, DovetailError, ExportFailed
from tests.codegen.sweep import _is_near, difference

SHIPPED = ("cpu", "aten", "portable", "onnxruntime", "opencl", "reference")


@dataclass(frozen=True)
class Case:
    """A function or module, its inputs, and the ways in which it can be run."""

    run: Callable[..., Any]
    inputs: tuple[Any, ...]
    grad: bool = True
    raises: bool = False  # eager does, and so must every backend
    dynamic_shapes: Any = None

    def module(self) -> nn.Module:
        """The function as a module, or a copy of the module."""
        return copy.deepcopy(self.run) if isinstance(self.run, nn.Module) else Function(self.run)

    def cast(self, dtype: torch.dtype) -> Case:
        """The same in another floating-point type."""
        run = self.module().to(dtype) if isinstance(self.run, nn.Module) else self.run
        return replace(self, run=run, inputs=pytree.tree_map(_caster(dtype), self.inputs))


def _caster(dtype):
    def cast(x):
        real = isinstance(x, torch.Tensor) and x.is_floating_point()
        return _laid_out_as(x.to(dtype), x) if real else x

    return cast


def _laid_out_as(made, x):
    from dovetail.runtime.layouts import with_strides

    return with_strides(made, x.stride())


@dataclass(frozen=True)
class Seen:
    """What a caller can see after a call: tensors, of which the first are the results."""

    tensors: list[Any]
    results: int


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, run):
        super().__init__()
        self.run = run

    def forward(self, *inputs):
        return self.run(*inputs)


class Bundle(nn.Module):
    """Several modules as one, which is captured and compiled in one go."""

    def __init__(self, modules):
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(self, *inputs):
        return [part(*given) for part, given in zip(self.parts, inputs, strict=True)]


def bundle(cases: Sequence[Case]) -> Case:
    """Cases without dynamic shapes as one."""
    return Case(Bundle(c.module() for c in cases), tuple(c.inputs for c in cases))


def available(backend: str) -> str:
    """Why a backend does not run here; empty where it does."""
    answer = registry.get_backend(backend).available()
    return "" if answer else answer.reason


# ---- running -----------------------------------------------------------------------------------


def copied(x, grad):
    """A tensor with the same strides that requires a gradient if it can."""
    if not isinstance(x, torch.Tensor):
        return x
    size = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1
    flat = torch.as_strided(x, (size if x.numel() else 0,), (1,), x.storage_offset()).clone()
    made = flat.as_strided(x.shape, x.stride())
    return made.requires_grad_(grad and x.is_floating_point())


def outcome(run, module, inputs, grad):
    """All that a caller can see: results, inputs afterwards, buffers, gradients, or the error."""
    given = pytree.tree_map(lambda x: copied(x, grad), inputs)
    torch.manual_seed(7)
    try:
        with torch.set_grad_enabled(grad):
            results = _tensors(run(*given))
        seen = [*results, *_tensors(given)]
        if module is not None:
            seen += [buffer for _, buffer in module.named_buffers()]
        seen += _gradients(results, given, module) if grad else []
        return Seen(seen, len(results))
    except Exception as error:
        return error


def _tensors(tree):
    leaves = pytree.tree_leaves(tree)
    return [
        x if isinstance(x, torch.Tensor) else torch.as_tensor(x) for x in leaves if x is not None
    ]


def _gradients(results, given, module):
    wanted = [x for x in results if x.requires_grad and x.is_floating_point()]
    leaves = [x for x in _tensors(given) if x.requires_grad and x.is_leaf]
    if module is not None:
        leaves += [p for p in module.parameters() if p.requires_grad]
    if not wanted or not leaves:
        return []
    total = sum((x * torch.linspace(1, 2, x.numel(), dtype=x.dtype).view(x.shape)).sum()
                for x in wanted)  # fmt: skip
    return list(torch.autograd.grad(total, leaves, allow_unused=True))


def eagerly(case: Case, grad: bool):
    """Eager's outcome."""
    module = case.module()
    return outcome(module, module, case.inputs, grad)


@contextlib.contextmanager
def without_fast_path():
    """Transformer layers call by call in eager: torch.export sees no fast path."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def compiled(case: Case, backend: str, grad: bool, dynamic=None):
    """The outcome under ``torch.compile``."""
    torch.compiler.reset()
    module = case.module()
    with torch._dynamo.config.patch(allow_rnn=True):
        run = torch.compile(module, backend=backend, fullgraph=True, dynamic=dynamic)
        return outcome(run, module, case.inputs, grad)


def exported(case: Case, backend: str, folder):
    """The outcomes of an artifact and of the file it is saved to."""
    with torch.no_grad():
        given = pytree.tree_map(lambda x: copied(x, False), case.inputs)
        try:
            shapes = case.dynamic_shapes
            artifact = dovetail.export(case.module(), given, backend=backend, dynamic_shapes=shapes)
            path = folder / "case.dvt"
            artifact.save(path)
            loaded = dovetail.load(path, trust=True)
        except Exception as error:
            return error, error
    return [outcome(run, None, case.inputs, False) for run in (artifact, loaded)]


# ---- judging -----------------------------------------------------------------------------------


def verdict(case: Case, expected, actual, grad: bool, strides: bool = False) -> str:
    """What is wrong with an outcome; empty where nothing is."""
    if isinstance(expected, Exception) or isinstance(actual, Exception):
        return unlike_errors(expected, actual)
    if len(expected.tensors) != len(actual.tensors):
        return f"{len(actual.tensors)} tensors for {len(expected.tensors)}"
    pairs = list(zip(expected.tensors, actual.tensors, strict=True))
    unlike = next((pair for pair in pairs[: expected.results] if not same_strides(*pair)), None)
    if strides and unlike:
        return f"strides {unlike[1].stride()} for {unlike[0].stride()}"
    problems = [difference([a], [b]) for a, b in pairs]
    if not any(problems):
        return ""
    exact = eagerly(case.cast(torch.float64), grad)
    if isinstance(exact, Exception):
        return f"no result in float64; {next(filter(None, problems))}"
    for problem, wide, pair in zip(problems, exact.tensors, pairs, strict=False):
        if problem and not _is_near(wide, *pair):
            return problem
    return ""


def unlike_errors(expected, actual) -> str:
    """What is wrong where one fails: both must, and ours as eager or with an error of our own."""
    if isinstance(expected, Exception) and isinstance(actual, (type(expected), DovetailError)):
        return ""
    both = (repr(s) if isinstance(s, Exception) else "a result" for s in (expected, actual))
    return "eager: {:.300}, ours: {:.600}".format(*both)


def same_strides(a, b) -> bool:
    """Whether two tensors are laid out alike, as far as anybody can tell."""
    if not a.numel() or a.shape != b.shape:
        return True
    return all(n == 1 or s == t for n, s, t in zip(a.shape, a.stride(), b.stride(), strict=True))


MODES = ("inference", "training", "exported")


def problems_of(case: Case, backend: str, folder, modes=MODES, dynamic=None) -> list[str]:
    """What a backend gets wrong about a case, in each of the ways to run it."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for mode in modes:
            if mode == "exported":
                with without_fast_path():
                    found += exported_problems(case, backend, folder)
            elif mode == "inference" or case.grad:
                found += compiled_problems(case, backend, mode == "training", dynamic)
    return found


def compiled_problems(case: Case, backend: str, grad: bool, dynamic) -> list[str]:
    """What a backend gets wrong about a case under ``torch.compile``."""
    actual = compiled(case, backend, grad, dynamic)
    wrong = verdict(case, eagerly(case, grad), actual, grad, strides=True)
    return [f"{'training' if grad else 'inference'}: {wrong}"] if wrong else []


# What cannot be written to a file is refused when it is exported, with a reason.
REFUSED = (CannotSave, ExportFailed)


def exported_problems(case: Case, backend: str, folder) -> list[str]:
    """What a backend's artifact and its file get wrong about a case."""
    expected, found = unexported(case), []
    for kind, actual in zip(("exported", "loaded"), exported(case, backend, folder), strict=True):
        wrong = verdict(case, expected, actual, False)
        found += [f"{kind}: {wrong}"] if wrong else []
    return found


def unexported(case: Case):
    """What eager gives for an artifact to be compared with: its state is its own."""
    expected = eagerly(case, False)
    if isinstance(expected, Exception):
        return expected
    count = len(expected.tensors) - len(list(case.module().buffers()))
    return replace(expected, tensors=expected.tensors[:count])
