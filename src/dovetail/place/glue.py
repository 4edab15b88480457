"""Views go with the calls around them.

A backend may take every view, since a view moves nothing. Between two calls of another backend
that would cut in two what could stay whole, so such a view is given to its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.ir import OpCall
from dovetail.place.cost import is_free
from dovetail.place.uses import Uses
from dovetail.place.verdicts import Choice

REASON = "a view goes with the calls around it"


def settle_views(calls: Sequence[OpCall], uses: Sequence[Uses], choices: Sequence[Choice]) -> None:
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
