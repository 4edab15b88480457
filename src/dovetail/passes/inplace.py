"""Re-inplacing: the last pass, for backends that may write in place.

Functional graphs copy where the program wrote in place. Where the copied value is not used again,
the in-place operator gives the same result and saves the copy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from dovetail.capture._torch.operators import overload_name, schema_of
from dovetail.capture.ops import OpOverload
from dovetail.passes.graphs import calls, is_view, occurrences, value_of

aten = torch.ops.aten
ONLY_CLONE = "_only_clone_these_bases"  # an argument we add to a functionalised custom operator

# Functional form → in-place form, for operators that copy a whole tensor to change a part of it.
_SCATTERS = {
    aten.index_put.default: aten.index_put_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_fill.int_Scalar: aten.index_fill_.int_Scalar,
    aten.masked_fill.Scalar: aten.masked_fill_.Scalar,
    aten.masked_scatter.default: aten.masked_scatter_.default,
    aten.copy.default: aten.copy_.default,
}
# Their results are memory of the graph's own, before and after they were made in-place.
_FRESH_RESULTS = {*_SCATTERS, *_SCATTERS.values()}
_FRESH = (
    aten.empty,
    aten.empty_strided,
    aten.full,
    aten.zeros,
    aten.ones,
    aten.clone,
    aten.new_zeros,
    aten.new_empty,
    aten.new_full,
    aten.zeros_like,
    aten.full_like,
    aten.empty_like,
)


def reinplace(gm: fx.GraphModule) -> fx.GraphModule:
    """Use the in-place form of an operator wherever nobody can tell the difference."""
    order = {node: position for position, node in enumerate(gm.graph.nodes)}
    for node in calls(gm, *_SCATTERS):
        source = node.args[0]
        if isinstance(source, fx.Node) and _is_only_use(source, node) and _is_fresh(source):
            if _same_layout(node, source):
                node.target = _SCATTERS[node.target]
    for node in calls(gm, torch.ops.higher_order.auto_functionalized_v2):
        _write_custom(node, order)
    for write in calls(gm, aten.copy_.default):
        _write_directly(write, order)
    return gm


def _write_custom(node: fx.Node, order: dict[fx.Node, int]) -> None:
    """Let a custom operator write to its arguments themselves where nobody needs the old value."""
    bases = list(node.kwargs.get("_all_bases", ()))
    first = len(value_of(node)) - len(bases)
    clone = []
    for position, base in enumerate(bases):
        results = [u for u in node.users if u.args[1] == first + position]
        if not isinstance(base, fx.Node) or not _may_be_written(base, node, results, order):
            clone.append(position)
    node.kwargs = {**node.kwargs, ONLY_CLONE: tuple(clone)}
    for position, base in enumerate(bases):
        if position not in clone:
            _drop_copies_back(base, [u for u in node.users if u.args[1] == first + position])


def _may_be_written(
    base: fx.Node, node: fx.Node, results: list[fx.Node], order: dict[fx.Node, int]
) -> bool:
    """Whether the old value of ``base`` is not needed once ``node`` has run."""
    if occurrences(node, base) != 1:
        return False  # it reads what it would write
    back = {u for r in results for u in r.users if _copies_back(u, base)}
    readers = [u for u in base.users if u is not node and u not in back]
    if any(is_view(u) or order[u] > order[node] for u in readers):
        return False
    if base.op == "placeholder":
        return bool(back)  # the program writes to this input anyway
    return isinstance(base.target, OpOverload) and not is_view(base)


def _copies_back(user: fx.Node, base: fx.Node) -> bool:
    return user.target is aten.copy_.default and user.args[0] is base


def _drop_copies_back(base: fx.Node, results: list[fx.Node]) -> None:
    for result in results:
        for user in list(result.users):
            if _copies_back(user, base):
                user.replace_all_uses_with(result)
                user.graph.erase_node(user)


def _write_directly(write: fx.Node, order: dict[fx.Node, int]) -> None:
    """``y = op(x, …); x.copy_(y)`` as ``op_(x, …)`` when x is not read after op."""
    target, value = write.args[:2]
    if not isinstance(value, fx.Node) or not isinstance(target, fx.Node):
        return
    inplace = _inplace_form(value)
    if inplace is None or value.args[0] is not target or target.op != "placeholder":
        return
    others = [a for a in value.all_input_nodes if a is not target]
    if not _same_layout(value, target) or any(_may_alias(a, target) for a in others):
        return
    if occurrences(value, target) != 1:
        return
    readers = [u for u in target.users if u is not write and u is not value]
    if any(is_view(u) or order[u] > order[value] for u in readers):
        return
    value.target = inplace
    write.replace_all_uses_with(value)
    write.graph.erase_node(write)


def _inplace_form(node: fx.Node) -> Any:
    """``aten.add_.Tensor`` for ``aten.add.Tensor``, if there is one with the same arguments."""
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return None
    if target in _SCATTERS:
        return _SCATTERS[target]
    packet = getattr(aten, f"{target.__name__.split('.')[0]}_", None)
    found = getattr(packet, overload_name(target), None)
    if found is None or not schema_of(found).is_mutable:
        return None
    mine, theirs = ([a.name for a in schema_of(op).arguments] for op in (target, found))
    return found if mine == theirs and len(schema_of(found).returns) == 1 else None


def _is_only_use(source: fx.Node, node: fx.Node) -> bool:
    """Whether nothing but ``node`` reads ``source``, and that once."""
    return len(source.users) == 1 and occurrences(node, source) == 1


def _is_fresh(node: fx.Node) -> bool:
    """Memory that this graph made and nothing else refers to."""
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    return target.overloadpacket in _FRESH or target in _FRESH_RESULTS


def _same_layout(node: fx.Node, source: fx.Node) -> bool:
    mine, theirs = value_of(node), value_of(source)
    return bool(
        mine.shape == theirs.shape
        and mine.stride() == theirs.stride()
        and mine.dtype == theirs.dtype
        and not any(s == 0 for s in theirs.stride())
    )


def _may_alias(node: fx.Node, target: fx.Node) -> bool:
    """Whether ``node`` is a view of ``target``; inputs that overlap reach us as one base."""
    while is_view(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node is target
