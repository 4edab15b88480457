"""Vectors interleaved into one another, element by element, and taken apart again."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.codegen.llvm.emit import Code, Val


def interleave(c: Code, vectors: Sequence[Val]) -> list[Val]:
    """The first elements of all vectors, then the second ones, and so on; as many vectors."""
    count, lanes = len(vectors), vectors[0].lanes
    places = [divmod(n, count) for n in range(count * lanes)]
    return [
        _chosen(c, vectors, [(which, lane) for lane, which in places[n : n + lanes]])
        for n in range(0, count * lanes, lanes)
    ]


def deinterleave(c: Code, vectors: Sequence[Val]) -> list[Val]:
    """The vectors that ``interleave`` makes these of."""
    count, lanes = len(vectors), vectors[0].lanes
    places = [divmod(n, lanes) for n in range(count * lanes)]
    return [_chosen(c, vectors, places[n::count]) for n in range(count)]


def _chosen(c: Code, vectors: Sequence[Val], wanted: Sequence[tuple[int, int]]) -> Val:
    """Lane by lane a lane of one of the vectors, which are taken in one after the other."""
    lanes = vectors[0].lanes
    first, *others = sorted({which for which, _ in wanted})
    result = vectors[first]
    place = {n: lane for n, (which, lane) in enumerate(wanted) if which == first}
    for number in others or [first]:
        place |= {n: lanes + lane for n, (which, lane) in enumerate(wanted) if which == number}
        result = c.shuffle(result, vectors[number], [place.get(n) for n in range(lanes)])
        place = {n: n for n in place}
    return result
