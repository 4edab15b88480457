"""Whether a graph fails: it does not compile, does not run, or computes something else than eager.

Results are judged against float64, as the tests do: eager is not always the one that is right.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dovetail import history
from dovetail.capture._torch.tensors import pytree

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


def check(
    gm: fx.GraphModule, inputs: Sequence[Any], backend: str, options: Mapping[str, Any]
) -> Failure | None:
    """Compile a graph and run it; None where all is well."""
    torch.compiler.reset()
    strict = {**options, "strict": True, "cache": False, "debug": True}
    compiled = torch.compile(gm, backend=backend, options=strict)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = gm(*_copies(inputs))
        try:
            found = compiled(*_copies(inputs))
        except Exception as error:  # whatever a compiler or its code may raise
            return _failure(error)
        return _difference(found, expected, lambda: _in_double(gm, inputs))


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


def _difference(found: Any, expected: Any, in_double: Any) -> Failure | None:
    exact: Sequence[Any] | None = None
    for number, (got, want) in enumerate(zip(found, expected, strict=True)):
        if (got.dtype, got.shape) != (want.dtype, want.shape):
            what = f"{got.dtype} {list(got.shape)} instead of {want.dtype} {list(want.shape)}"
            return Failure("results", f"description: output {number} is {what}")
        if torch.equal(got, want):
            continue
        exact = exact if exact is not None else in_double()
        told = _worse(got, want, exact[number] if exact else None)
        if told:
            return Failure("results", f"values: output {number} {told}")
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


def _in_double(gm: fx.GraphModule, inputs: Sequence[Any]) -> Sequence[Any] | None:
    """The results in float64; None where a call has none."""
    wide = [
        t.double() if isinstance(t, torch.Tensor) and t.dtype.is_floating_point else t
        for t in inputs
    ]
    with contextlib.suppress(Exception):
        return [
            t.double() if isinstance(t, torch.Tensor) else t
            for t in pytree().tree_leaves(gm(*wide))
        ]
    return None


def _copies(inputs: Sequence[Any]) -> list[Any]:
    return [t.detach().clone() if isinstance(t, torch.Tensor) else t for t in inputs]
