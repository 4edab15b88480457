"""Operators: their classes, schemas and names."""

from __future__ import annotations

from typing import Any

import torch


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


def known_operators(namespace: str) -> list[str]:
    """Every overload of a library of operators, as ``aten.mm.default``; none: it is not loaded."""
    prefix = f"{namespace}::"
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith(prefix)]
    dotted = (name.replace("::", ".") for name in names)
    return sorted(n if n.count(".") > 1 else f"{n}.default" for n in dotted)


def plain_arguments(op: str) -> list[str]:
    """The names of an operator's arguments that are no tensors."""
    namespace, name, overload = op.split(".")
    schema = torch._C._get_schema(f"{namespace}::{name}", "" if overload == "default" else overload)
    return [a.name for a in schema.arguments if "Tensor" not in str(a.type)]
