"""Views go with the calls around them.

A backend may take every view, since a view moves nothing. Between two calls of another backend
that would cut in two what could stay whole, so such a view is given to its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.backend import Backend
from dovetail.ir import Arg, OpCall, Ref, Size
from dovetail.ir.call import leaves
from dovetail.place.cost import Costs, is_free
from dovetail.place.uses import Uses
from dovetail.place.verdicts import Choice

REASON = "a view goes with the calls around it"
RETURNED = "PyTorch takes the address of a view that is returned"


def settle_views(
    calls: Sequence[OpCall],
    uses: Sequence[Uses],
    choices: Sequence[Choice],
    backends: Sequence[Backend],
    costs: Costs,
) -> None:
    """Move each view that neither its source nor all its users share a backend with."""
    views = {call.name: n for n, call in enumerate(calls) if is_free(call.op)}
    if not views:
        return
    sources = _sources(calls, uses, choices, views)
    users = _users(calls, uses, choices, views)
    for position in views.values():
        choice = choices[position]
        target = _better(choice.chosen, sources[position], users[position])
        if target != choice.chosen and choice.takes(target):
            choice.move(target, REASON)
    if any(backend.transfer is not None for backend in backends):
        _fetch_whole(calls, uses, choices, backends, costs, users)


def leave_returned_views(
    calls: Sequence[OpCall],
    uses: Sequence[Uses],
    choices: Sequence[Choice],
    backends: Sequence[Backend],
    outputs: Sequence[Arg],
) -> None:
    """Give returned views whose place varies to PyTorch where their backend would copy them.

    PyTorch views what it gave the graph, or what the graph returns, at the offset of the result.
    It does not ask for that where it knows the view's arguments beforehand.
    """
    views = {call.name: n for n, call in enumerate(calls) if is_free(call.op)}
    returned = {leaf.name for leaf in leaves(outputs) if isinstance(leaf, Ref)}
    made = {call.name for call in calls}
    for name in returned & views.keys():
        chain, root = [], name
        while root in views and uses[views[root]].refs:
            chain.append(views[root])
            root = uses[views[root]].refs[0].name
        varies = any(isinstance(leaf, Size) for n in chain for leaf in calls[n].leaves())
        if not varies or (root in made and root not in returned):
            continue
        for position in chain:
            if not backends[choices[position].chosen].keeps_views:
                choices[position].move(len(backends) - 1, RETURNED)


def _fetch_whole(
    calls: Sequence[OpCall],
    uses: Sequence[Uses],
    choices: Sequence[Choice],
    backends: Sequence[Backend],
    costs: Costs,
    users: Mapping[int, set[int]],
) -> None:
    """Have views made where they are used, where that takes fewer bytes from a device.

    The queries, keys and values of one product overlap: it is fetched once rather than each.
    """
    made = {call.name: n for n, call in enumerate(calls)}
    read = {made.get(r.name) for n, use in enumerate(uses) if n not in users for r in use.refs}
    roots: dict[int, int] = {}  # a view that only others use → the call on a device it looks at
    for position, wanted in users.items():
        base = made.get(uses[position].refs[0].name) if uses[position].refs else None
        root = base if base is None or base not in users else roots.get(base)
        here = choices[position].chosen
        if root is None or choices[root].chosen != here or backends[here].transfer is None:
            continue
        if wanted and here not in wanted:
            roots[position] = root
    apart: dict[int, int] = {}  # bytes of a call's views, as each is fetched
    for position, root in roots.items():
        if position in read:
            apart[root] = apart.get(root, 0) + costs.span(calls[position].output)
    for position, root in roots.items():
        target = min(users[position])
        if costs.span(calls[root].output) < apart.get(root, 0) and choices[position].takes(target):
            choices[position].move(target, REASON)


def _better(chosen: int, source: int | None, users: set[int]) -> int:
    """Where a view belongs, given who makes what it looks at and who uses it."""
    if source == chosen or users == {chosen}:
        return chosen
    if source is not None:
        return source
    return min(users) if users and chosen not in users else chosen


def _sources(
    calls: Sequence[OpCall],
    uses: Sequence[Uses],
    choices: Sequence[Choice],
    views: dict[str, int],
) -> dict[int, int | None]:
    """For each view, the backend of the call whose result it looks at; None for an input's."""
    made = {call.name: n for n, call in enumerate(calls)}
    found: dict[int, int | None] = {}
    for position in views.values():
        base = made.get(uses[position].refs[0].name) if uses[position].refs else None
        if base is None:
            found[position] = None
        else:
            found[position] = found[base] if base in found else choices[base].chosen
    return found


def _users(
    calls: Sequence[OpCall],
    uses: Sequence[Uses],
    choices: Sequence[Choice],
    views: dict[str, int],
) -> dict[int, set[int]]:
    """For each view, the backends of the calls that use it, through other views too."""
    found: dict[int, set[int]] = {position: set() for position in views.values()}
    for position in range(len(calls) - 1, -1, -1):
        here = found[position] if position in found else {choices[position].chosen}
        for ref in uses[position].refs:
            view = views.get(ref.name)
            if view is not None:
                found[view] |= here
    return found
