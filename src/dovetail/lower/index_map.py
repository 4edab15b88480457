"""Index maps: where an element of one value stands in another, as data.

An index map is a function of d0, d1, …, one variable a dimension of the value that reads. Rules
write one as a Python function of an index, which is called once, with these variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from dovetail.ir.affine import Affine
from dovetail.ir.size import Dim

Indices = tuple[Affine, ...]
_NUMBERS: dict[str, int] = {}  # of the variables, by name


@cache
def variables(rank: int) -> Indices:
    """The index d0, d1, … of a value of this rank."""
    names = [f"d{n}" for n in range(rank)]
    _NUMBERS.update(zip(names, range(rank), strict=True))
    return tuple(map(Affine.axis, names))


def numbered(place: Affine) -> list[tuple[int, Dim]]:
    """The variables of an expression by their numbers, with their factors."""
    return [(_NUMBERS[name], factor) for name, factor in place.axes]


def variables_of(places: Indices) -> set[int]:
    """The numbers of the variables in expressions."""
    return {n for place in places for n, _ in numbered(place)}


def in_scope(places: Indices, rank: int) -> bool:
    """Whether expressions are of no more variables than these."""
    return all(_NUMBERS.get(name, rank) < rank for place in places for name, _ in place.axes)


def substitute(place: Affine, index: Indices, names: Mapping[str, str] | None = None) -> Affine:
    """An expression of d0, d1, … at an index; ``names`` are those of the values it gathers by."""
    if not place.axes and not place.values:
        return place
    total: Affine | None = None
    for name, factor in place.axes:
        term = index[_NUMBERS[name]]
        term = term if factor == 1 else term.scale(factor)
        total = term if total is None else total + term
    for name, factor in place.values:
        term = Affine.value(name if names is None else names[name]).scale(factor)
        total = term if total is None else total + term
    assert total is not None
    return total if place.offset == 0 else total.shift(place.offset)


@dataclass(frozen=True, slots=True)
class IndexMap:
    """An affine expression for each dimension of the value that is read."""

    results: Indices
    _steps: tuple[int | Affine, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_steps", tuple([_step(r) for r in self.results]))

    @staticmethod
    def of(rank: int, index: Callable[[Indices], Indices]) -> IndexMap:
        """The map that a function of an index computes."""
        return IndexMap(index(variables(rank)))

    def at(
        self,
        index: Indices,
        extents: Mapping[str, Dim] | None = None,  # noqa: ARG002  # as a reshape needs them
        names: Mapping[str, str] | None = None,
    ) -> Indices:
        """Where the element at an index stands; an index of variables composes two maps."""
        return tuple(
            [index[s] if isinstance(s, int) else substitute(s, index, names) for s in self._steps]
        )

    @property
    def is_projection(self) -> bool:
        """Whether each result is a variable, or 0."""
        return all(isinstance(s, int) or s == Affine() for s in self._steps)

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.results))}]"


def _step(place: Affine) -> int | Affine:
    """The number of a variable that stands alone, else the expression."""
    if len(place.axes) == 1 and place.offset == 0 and not place.values:
        name, factor = place.axes[0]
        if factor == 1:
            return _NUMBERS[name]
    return place


@dataclass(frozen=True, slots=True)
class Run:
    """Dimensions of a value that reads, and those with as many elements of the value it reads."""

    dims: tuple[int, ...]
    steps: tuple[Dim, ...]  # of each in row-major order
    sizes: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class ReshapeMap:
    """Another shape for the same row-major order of elements, run by run of dimensions."""

    runs: tuple[Run, ...]

    def at(self, index: Indices, extents: Mapping[str, Dim]) -> Indices:
        """Where the element at an index stands; NotAffine where that is no affine expression.

        Which it is depends on the ``extents`` of the axes that the index is made of.
        """
        found: list[Affine] = []
        for run in self.runs:
            place = Affine()
            for d, step in zip(run.dims, run.steps, strict=True):
                place += index[d].scale(step)
            found += _unravel(place, run.sizes, extents)
        return tuple(found)

    def __str__(self) -> str:
        return f"[{', '.join(map(_run_text, self.runs))}]"


def _run_text(run: Run) -> str:
    place = Affine()
    for d, step in zip(run.dims, run.steps, strict=True):
        place += variables(d + 1)[d].scale(step)
    if len(run.sizes) == 1:
        return str(place)
    return f"unravel({place}, {list(run.sizes)})"


def _unravel(place: Affine, sizes: tuple[Dim, ...], extents: Mapping[str, Dim]) -> list[Affine]:
    found = []
    for size in reversed(sizes[1:]):
        place, rest = place.divmod(size, extents)
        found.append(rest)
    return [*([place] if sizes else []), *reversed(found)]
