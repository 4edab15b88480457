"""Control flow over nested segments, run as Python: branches, loops, shared regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dovetail.capture._torch.operators import call_mutable
from dovetail.passes.inplace import ONLY_CLONE

Body = Callable[..., Sequence[Any]]


def cond(
    pred: Any, true_branch: Body, false_branch: Body, operands: Sequence[Any] = ()
) -> Sequence[Any]:
    """``torch.cond``: one branch runs."""
    return (true_branch if bool(pred) else false_branch)(*operands)


def while_loop(
    condition: Body, body: Body, carried: Sequence[Any], extra: Sequence[Any] = ()
) -> Sequence[Any]:
    """``while_loop``: the body runs on its own results as long as the condition holds."""
    carried = tuple(carried)
    started = carried
    while _truth(condition(*carried, *extra)):
        carried = tuple(body(*carried, *extra))
    # Results never alias the inputs: a loop that ran zero times gives copies.
    return tuple(
        value.clone() if isinstance(value, torch.Tensor) and value is first else value
        for value, first in zip(carried, started, strict=True)
    )


def invoke_subgraph(region: Body, identifier: str, *operands: Any) -> Sequence[Any]:
    """A region marked with ``nested_compile_region``: compiled once, called wherever it stands."""
    del identifier
    return region(*operands)


def auto_functionalized(op: Any, **kwargs: Any) -> Any:
    """An operator that writes to its arguments, on copies of those it must not write to."""
    return call_mutable(op, kwargs.pop(ONLY_CLONE, None), **kwargs)


def _truth(result: Any) -> bool:
    return bool(result[0] if isinstance(result, tuple | list) else result)


CONTROL_FLOW: dict[str, Callable[..., Any]] = {
    "higher_order.cond": cond,
    "higher_order.while_loop": while_loop,
    "higher_order.invoke_subgraph": invoke_subgraph,
    "higher_order.auto_functionalized_v2": auto_functionalized,
}
