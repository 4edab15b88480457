"""Whether a graph fails: it does not compile, does not run, or computes something else than eager.

Results are judged against float64, as the tests do: eager is not always the one that is right.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dovetail import history
from dovetail.reproduce.graphs import leaves

# A result may be so many times as far from float64's as eager's is, and so many steps more.
_TIMES, _STEPS = 4.0, 16.0


@dataclass(frozen=True)
class Failure:
    """What went wrong, at which stage."""

    stage: str  # of the compiler; "run"; "results" where they differ
    what: str

    def is_alike(self, other: Failure | None) -> bool:
        """Whether another one has the same cause, as far as can be told: stage and kind."""
        return other is not None and (self.stage, self.kind) == (other.stage, other.kind)

    @property
    def kind(self) -> str:
        """The class of the error; of results, which kind of difference."""
        return self.what.partition(":")[0]


@dataclass(frozen=True)
class Trial:
    """How graphs are tried: by which backend, with which options, in inference or in training."""

    backend: str
    options: Mapping[str, Any]
    train: bool = False

    def check(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Failure | None:
        """Compile a graph and run it; None where all is well."""
        torch.compiler.reset()
        strict = {**self.options, "strict": True, "cache": False, "debug": True}
        compiled = torch.compile(gm, backend=self.backend, options=strict)
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = self._results(gm, inputs)
            try:
                found = self._results(compiled, inputs)
            except Exception as error:  # whatever a compiler or its code may raise
                return _failure(error)
            names = self._names(gm, len(expected))
            return _difference(found, expected, names, lambda: self._in_double(gm, inputs))

    def _results(self, run: Callable[..., Sequence[Any]], inputs: Sequence[Any]) -> list[Any]:
        """What it returns; in training followed by a gradient for each input that wants one."""
        given = leaves(inputs, train=self.train)
        torch.manual_seed(0)
        with torch.set_grad_enabled(self.train):
            results = list(run(*given))
        return [t.detach() for t in results] + gradients(results, given)

    def _in_double(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Sequence[Any] | None:
        """The results in float64; None where a call has none."""
        wide = [
            t.detach().double().requires_grad_(t.requires_grad)
            if isinstance(t, torch.Tensor) and t.dtype.is_floating_point
            else t
            for t in inputs
        ]
        with contextlib.suppress(Exception):
            return [t.double() for t in self._results(gm, wide)]
        return None

    def _names(self, gm: fx.GraphModule, count: int) -> list[str]:
        """What the results are called: outputs, then gradients of inputs."""
        outputs = next(len(n.args[0]) for n in gm.graph.nodes if n.op == "output")
        found = [f"output {n}" for n in range(min(outputs, count))]
        return found + [f"gradient {n}" for n in range(count - len(found))]


def gradients(results: Sequence[Any], given: Sequence[Any]) -> list[torch.Tensor]:
    """Gradients of inputs, towards random ones of the results; the script has the same lines."""
    reached = [t for t in results if t.requires_grad]
    wanted = [t for t in given if isinstance(t, torch.Tensor) and t.requires_grad]
    if not reached or not wanted:
        return []
    torch.manual_seed(0)
    towards = [torch.randn(t.shape).to(t.dtype) for t in reached]
    return list(torch.autograd.grad(reached, wanted, towards, materialize_grads=True))


def _failure(error: Exception) -> Failure:
    """The innermost cause, and the stage that it or what it caused has a note of."""
    stage = None
    while True:
        stage = history.failed_stage(error) or stage
        inner = getattr(error, "inner_exception", None) or error.__cause__
        if not isinstance(inner, Exception):
            break
        error = inner
    return Failure(stage or "run", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


def _difference(
    found: Sequence[Any], expected: Sequence[Any], names: Sequence[str], in_double: Any
) -> Failure | None:
    exact: Sequence[Any] | None = None
    if len(found) != len(expected):
        what = f"{len(found)} results and gradients instead of {len(expected)}"
        return Failure("results", f"description: {what}")
    for number, (got, want) in enumerate(zip(found, expected, strict=True)):
        if (got.dtype, got.shape) != (want.dtype, want.shape):
            what = f"{got.dtype} {list(got.shape)} instead of {want.dtype} {list(want.shape)}"
            return Failure("results", f"description: {names[number]} is {what}")
        if torch.equal(got, want):
            continue
        exact = exact if exact is not None else in_double()
        told = _worse(got, want, exact[number] if exact else None)
        if told:
            return Failure("results", f"values: {names[number]} {told}")
    return None


def _worse(got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor | None) -> str:
    """How much farther from the exact result ours is than eager's; empty where it is not."""
    if not want.dtype.is_floating_point or exact is None:
        return f"differs in {int((got != want).sum()):,} of {want.numel():,} elements"
    finite = torch.isfinite(exact)
    strange = (torch.isfinite(got) != torch.isfinite(want)) & finite
    if strange.any():
        return f"is not finite, or eager's is not, in {int(strange.sum()):,} elements"
    finite &= torch.isfinite(want)
    ours, theirs = ((t.double() - exact)[finite].abs() for t in (got, want))
    if not ours.numel():
        return ""
    scale = exact[finite].abs().max().clamp(min=torch.finfo(want.dtype).tiny)
    allowed = _TIMES * theirs.max() + _STEPS * torch.finfo(want.dtype).eps * scale
    if ours.max() <= allowed:
        return ""
    return f"is off by {ours.max():.3g} where eager is by {theirs.max():.3g}"
