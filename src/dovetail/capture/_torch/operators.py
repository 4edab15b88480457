"""Operators: their classes, schemas and names."""

from __future__ import annotations

from typing import Any


def operator_types() -> tuple[Any, Any, Any]:
    """The classes of operators: an overload, a packet of overloads, a higher-order operator."""
    from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

    return OpOverload, OpOverloadPacket, HigherOrderOperator


def call_mutable(op: Any, only_clone: Any = None, **kwargs: Any) -> Any:
    """Run a functionalised call of an operator that writes to its arguments.

    Only the bases at the positions in ``only_clone`` are copied first; all when it is None.
    """
    from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2_dense

    return auto_functionalized_v2_dense(op, only_clone, **kwargs)


def schema_of(op: Any) -> Any:
    """An operator's schema: its arguments and results, and which of them alias or are written."""
    return op._schema


def overload_name(op: Any) -> str:
    """The overload's own part of its name: Tensor for ``aten.add.Tensor``."""
    return str(op._overloadname)
