"""Iteration domains: shapes refined until several of them fit, and which parts are reduced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

from dovetail.ir.affine import Affine, divide, product
from dovetail.ir.size import Dim
from dovetail.ir.strides import contiguous_strides
from dovetail.lower.index_map import Indices


@dataclass(frozen=True)
class Domain:
    """Sizes in row-major order; ``reduced`` marks those that are reduced (None: not decided)."""

    sizes: tuple[Dim, ...]
    reduced: tuple[bool, ...] | None = None

    @property
    def kept(self) -> tuple[Dim, ...]:
        """The sizes that are not reduced."""
        if self.reduced is None:
            return self.sizes
        return tuple(s for s, r in zip(self.sizes, self.reduced, strict=True) if not r)

    def names(self) -> tuple[str, ...]:
        """An axis name for each size."""
        return _names(len(self.sizes))

    def kept_names(self) -> tuple[str, ...]:
        """The names of the axes that are not reduced."""
        reduced = self.reduced or (False,) * len(self.sizes)
        return tuple(n for n, r in zip(self.names(), reduced, strict=True) if not r)

    def reduced_name(self) -> str | None:
        """The name of the axis that is reduced, if it is one."""
        reduced = set(self.names()) - set(self.kept_names())
        return reduced.pop() if len(reduced) == 1 else None

    def extents(self) -> dict[str, Dim]:
        """Sizes by axis name."""
        return dict(zip(self.names(), self.sizes, strict=True))

    def index(self, shape: Sequence[Dim], *, row: bool) -> Indices | None:
        """Where a value of this shape stands at a point: of the kept axes only when ``row``."""
        if row:
            return _index(self.kept, self.kept_names(), tuple(shape))
        return _index(self.sizes, self.names(), tuple(shape))


@cache
def _names(count: int) -> tuple[str, ...]:
    return tuple(f"i{n}" for n in range(count))


@lru_cache(maxsize=1 << 12)  # clusters are tried with the same few shapes over and over
def _index(
    sizes: tuple[Dim, ...], names: tuple[str, ...], shape: tuple[Dim, ...]
) -> Indices | None:
    runs = split_runs(sizes, shape)
    if runs is None:
        return None
    found = []
    for run in runs:
        place = Affine()
        for n, step in zip(run, contiguous_strides([sizes[n] for n in run]), strict=True):
            place += Affine.axis(names[n]).scale(step)
        found.append(place)
    return tuple(found)


@dataclass
class _Refined:
    sizes: list[Dim] = field(default_factory=list)
    origin: list[int] = field(default_factory=list)


def refine(domain: Domain, shape: Sequence[Dim]) -> Domain | None:
    """The coarsest domain that both the domain's sizes and ``shape`` are made of."""
    target = tuple(s for s in shape if s != 1)
    if tuple(s for s in domain.sizes if s != 1) == target:
        return domain
    left = list(enumerate(domain.sizes))
    return None if 0 in domain.sizes else _merge(domain, left[::-1], [*target[::-1]], _Refined())


def refine_kept(domain: Domain, shape: Sequence[Dim]) -> Domain | None:
    """The domain with the sizes that are not reduced refined for ``shape``."""
    reduced = domain.reduced or (False,) * len(domain.sizes)
    last = len(domain.kept)
    if any(reduced[:last]):  # those that are kept come first, as in a product
        return None
    kept = refine(Domain(domain.sizes[:last]), shape)
    if kept is None:
        return None
    sizes = (*kept.sizes, *domain.sizes[last:])
    return Domain(sizes, (*[False] * len(kept.sizes), *reduced[last:]))


def _merge(
    domain: Domain, left: list[tuple[int, Dim]], right: list[Dim], result: _Refined
) -> Domain | None:
    """Cut both lists from the front until they agree; the lists are reversed."""
    while left:
        n, size = left.pop()
        if size == 1:
            result.sizes.append(1)
            result.origin.append(n)
            continue
        while size != 1:
            if not right:
                return None
            piece = right.pop()
            rest = divide(size, piece)
            if rest is None:
                more = divide(piece, size)
                if more is None:
                    return None
                right.append(more)
                piece, rest = size, 1
            size = rest
            result.sizes.append(piece)
            result.origin.append(n)
    if right:
        return None
    flags = None
    if domain.reduced is not None:
        flags = tuple(domain.reduced[n] for n in result.origin)
    return Domain(tuple(result.sizes), flags)


def split_runs(sizes: Sequence[Dim], shape: Sequence[Dim]) -> list[list[int]] | None:
    """For each dimension of ``shape`` the run of ``sizes`` it is made of, if it is made so."""
    runs: list[list[int]] = []
    position = 0
    for size in shape:
        run: list[int] = []
        total: Dim = 1
        while total != size:
            if position == len(sizes):
                return None
            if sizes[position] != 1:
                run.append(position)
                total = product(sizes[n] for n in run)
                if isinstance(total, int) and isinstance(size, int) and total > size:
                    return None
            position += 1
        runs.append(run)
    return runs if all(s == 1 for s in sizes[position:]) else None


def scan_flags(domain: Domain, shape: Sequence[Dim], dim: int) -> Domain | None:
    """The domain with one dimension marked as reduced, where that is one axis of it."""
    runs = split_runs(domain.sizes, shape)
    if runs is None or len(runs[dim]) != 1:
        return None
    return reduce_flags(domain, shape, (dim,))


def reduce_flags(domain: Domain, shape: Sequence[Dim], dims: Sequence[int]) -> Domain | None:
    """The domain with the axes of ``dims`` of ``shape`` marked as reduced."""
    runs = split_runs(domain.sizes, shape)
    if runs is None:
        return None
    reduced = {n for d in dims for n in runs[d]}
    kept = {n for d, run in enumerate(runs) if d not in dims for n in run}
    flags = tuple(n in reduced for n in range(len(domain.sizes)))
    if domain.reduced is None:
        return Domain(domain.sizes, flags)
    same = all(domain.reduced[n] == (n in reduced) for n in reduced | kept)
    return domain if same else None
