"""Greedy fusion: each value joins the last cluster it depends on, where their domains agree.

Clusters run in order, and a value only ever joins a cluster at or behind those it reads from, so
there are no cycles. Two values share a cluster when their shapes are refinements of one domain
and every reduction that one reads of the other is read at its own point. Those that have nothing
to do with each other must have the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from dovetail.ir.affine import NotAffine, product
from dovetail.ir.size import Dim
from dovetail.lower.index_map import Indices
from dovetail.lower.values import (
    Computed,
    Host,
    LibraryCall,
    Pointwise,
    Reduction,
    Scanned,
    Source,
    Value,
    View,
    root_of,
)
from dovetail.schedule.domain import Domain, reduce_flags, refine, refine_kept, scan_flags
from dovetail.schedule.limits import Limits
from dovetail.schedule.tiled import is_tiled

WIDE = 2.0  # what a function of float64 is beside one of float32


class Work:
    """The different functions that a kernel has code for.

    A function that is there already adds little. Where there are many, a store and a load are
    nothing beside them, so that a kernel need not have them all.
    """

    def __init__(self, limits: Limits, costs: Mapping[str, float] = MappingProxyType({})) -> None:
        self.limits, self.costs = limits, dict(costs)

    def takes(self, value: Value) -> bool:
        """Whether there is room for a value."""
        name, cost = self._function(value)
        if not cost or not self.costs or name in self.costs:
            return True
        return sum(self.costs.values()) + cost <= self.limits.functions

    def add(self, value: Value) -> None:
        """Count a value."""
        name, cost = self._function(value)
        if cost:
            self.costs[name] = cost

    def _function(self, value: Value) -> tuple[str, float]:
        """An expensive function by its name, and what it costs; nothing for other values."""
        if not isinstance(value, Pointwise) or not value.function:
            return "", 0.0
        if not is_expensive(value, self.limits):
            return "", 0.0
        return value.function, value.cost * (WIDE if value.function.endswith("float64") else 1.0)


@dataclass
class Cluster:
    """Values computed by one kernel, or one library call."""

    number: int
    domain: Domain
    limits: Limits
    members: list[Value] = field(default_factory=list)
    rows: set[Value] = field(default_factory=set)  # members without the reduced axes
    backwards: set[Value] = field(default_factory=set)  # members from the reduced axis's end
    inlined: set[Value] = field(default_factory=set)  # of later clusters, computed here as well
    library: LibraryCall | None = None
    barrier: bool = False

    def __post_init__(self) -> None:
        self.work = Work(self.limits)

    def index(self, value: Value, domain: Domain | None = None) -> Indices | None:
        """Where a member stands at a point of the domain."""
        domain = domain or self.domain
        if isinstance(value, Reduction):
            return domain.index(value.shape, row=True)
        if isinstance(value, Scanned) and scan_flags(domain, value.shape, value.dim) is None:
            return None
        return place(domain, value.shape, row=value in self.rows, backwards=value in self.backwards)


def place(
    domain: Domain, shape: Sequence[Dim], *, row: bool = False, backwards: bool = False
) -> Indices | None:
    """The index of a value of this shape at a point; ``backwards``: the reduced axis backwards."""
    index = domain.index(shape, row=row)
    if index is None or not backwards:
        return index
    axis = domain.reduced_name()
    return None if axis is None else tuple(i.reverse(axis, domain.extents()[axis]) for i in index)


def is_serial(domain: Domain, members: Iterable[Value], limits: Limits) -> bool:
    """Whether a long scan leaves threads little to share: what is expensive is done elsewhere."""
    if not any(isinstance(m, Scanned) for m in members):
        return False
    rows, total = product(domain.kept), product(domain.sizes)
    few = isinstance(rows, int) and rows < limits.few_scans
    return few and isinstance(total, int) and total >= limits.long_scan


def is_expensive(value: Value, limits: Limits) -> bool:
    """Whether an element is better stored and loaded than computed once more."""
    return isinstance(value, Pointwise) and value.cost >= limits.expensive


class Conflict(Exception):
    """A value cannot be computed in the cluster at hand."""


class Clusterer:
    """Assigns values to clusters, in graph order."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.clusters: list[Cluster] = []
        self.barrier = -1  # the last cluster that writes an input
        self.home: dict[Value | LibraryCall, Cluster] = {}
        self.cheap: dict[Value, tuple[float, int]] = {}  # cost inlined, first cluster it can be in

    def add_library(self, call: LibraryCall, *, writes: bool) -> None:
        """A library call stands alone."""
        for value in call.reads:
            self.require(value)
        cluster = self._cluster(Domain(()), library=call, barrier=writes)
        self.home[call] = cluster
        if writes:
            self.barrier = cluster.number

    def _cluster(
        self, domain: Domain, library: LibraryCall | None = None, *, barrier: bool = False
    ) -> Cluster:
        """A new cluster behind all others."""
        number = len(self.clusters)
        cluster = Cluster(number, domain, self.limits, library=library, barrier=barrier)
        self.clusters.append(cluster)
        return cluster

    def require(self, value: Value) -> None:
        """Give a value, and all it reads, a cluster."""
        stack = [root_of(value)]
        while stack:
            top = stack[-1]
            if top in self.home or isinstance(top, Source | Host):
                stack.pop()
                continue
            waiting = [r for r in map(root_of, reads_of(top)) if not self._placed(r)]
            if waiting:
                stack += waiting
                continue
            stack.pop()
            self._place(top)

    def _placed(self, value: Value) -> bool:
        return value in self.home or isinstance(value, Source | Host)

    def _home_number(self, value: Value) -> int:
        if isinstance(value, Source):
            return self.barrier
        found = self.home.get(value.call if isinstance(value, Host) else value)
        return -1 if found is None else found.number

    def _earliest(self, value: Value) -> int:
        """The first cluster whose kernel can have a value: inlined, if that is cheap."""
        return self.cheap[value][1] if value in self.cheap else self._home_number(value)

    def _place(self, value: Value) -> None:
        reads = [root_of(r) for r in reads_of(value)]
        first = max([self.barrier, *map(self._earliest, reads)])
        self._find(value, max(first, 0))
        if isinstance(value, Pointwise):
            cost = value.cost + sum(self.cheap[r][0] for r in reads if r in self.cheap)
            if cost <= self.limits.inline and self._home_number(value) > first:
                self.cheap[value] = cost, first

    def _find(self, value: Value, first: int) -> None:
        window = self.limits.near
        latest = max(first + window, len(self.clusters) - window)
        near = (*self.clusters[first : first + window], *self.clusters[latest:])
        for cluster in () if is_tiled(value) else near:
            room = len(cluster.members) < self.limits.members and cluster.work.takes(value)
            if cluster.library is None and room and self._join(cluster, value):
                return
        shape = value.source_shape if isinstance(value, Reduction) else value.shape
        cluster = self._cluster(Domain(tuple(s for s in shape if s != 1)))
        if not self._join(cluster, value, alone=True):
            raise AssertionError(f"{value} fits no cluster of its own")

    def _join(self, cluster: Cluster, value: Value, *, alone: bool = False) -> bool:
        product = bool(cluster.members) and is_tiled(cluster.members[0])
        fits = _beside_product(cluster, value) if product else self._fits(cluster, value)
        for domain, kind in fits:
            reach = Reach(cluster, domain, self._home_number)
            if alone or self._compatible(cluster, value, domain, kind, reach):
                cluster.domain = domain
                cluster.inlined |= reach.inlined
                cluster.members.append(value)
                cluster.work.add(value)
                self.home[value] = cluster
                if kind == "row":
                    cluster.rows.add(value)
                if kind == "backwards":
                    cluster.backwards.add(value)
                return True
        return False

    def _fits(self, cluster: Cluster, value: Value) -> Iterable[tuple[Domain, str]]:
        """Domains in which the cluster could take the value, and as what."""
        if isinstance(value, Reduction):
            refined = refine(cluster.domain, value.source_shape)
            if refined is not None:
                flagged = reduce_flags(refined, value.source_shape, value.dims)
                if flagged is not None:
                    yield flagged, "full"
            return
        refined = refine(cluster.domain, value.shape)
        if isinstance(value, Scanned):
            flagged = refined and scan_flags(refined, value.shape, value.dim)
            if flagged is not None:
                yield flagged, "full"
            return
        if refined is not None:
            yield refined, "full"
        if cluster.domain.reduced is not None:
            if cluster.domain.index(value.shape, row=True) is not None:
                yield cluster.domain, "row"
        if refined is not None and any(isinstance(m, Scanned) for m in cluster.members):
            yield refined, "backwards"

    def _compatible(
        self, cluster: Cluster, value: Value, domain: Domain, kind: str, reach: Reach
    ) -> bool:
        together = (*cluster.members, value)
        limits = self.limits
        if is_serial(domain, together, limits) and any(is_expensive(v, limits) for v in together):
            return False
        if domain is not cluster.domain:
            if any(cluster.index(m, domain) is None for m in cluster.members):
                return False
            if domain.sizes != cluster.domain.sizes and not _share(cluster.members, value):
                return False
        try:
            reach.check(value, kind)
        except (Conflict, NotAffine):
            return False
        return True


def _beside_product(cluster: Cluster, value: Value) -> Iterable[tuple[Domain, str]]:
    """A product of matrices is joined by what is done with each of its sums."""
    if isinstance(value, Pointwise):
        refined = refine_kept(cluster.domain, value.shape)
        if refined is not None and refined.index(value.shape, row=True) is not None:
            yield refined, "row"


def _share(members: Sequence[Value], value: Value) -> bool:
    """Whether a value reads a member, or what a member reads.

    Without that, shapes whose sizes happen to agree make a kernel that goes through one of them,
    or both, in an order that its memory does not have.
    """
    reads = set(map(root_of, reads_of(value)))
    return any(m in reads or not reads.isdisjoint(map(root_of, reads_of(m))) for m in members)


class Reach:
    """Follows the reads of a value through the cluster that it would join."""

    def __init__(self, cluster: Cluster, domain: Domain, home: Callable[[Value], int]) -> None:
        self.cluster, self.domain, self.home = cluster, domain, home
        self.extents = domain.extents()
        self.members = set(cluster.members)
        self.inlined: set[Value] = set()
        self.left, self.work = cluster.limits.looks, cluster.limits.again

    def check(self, value: Value, kind: str) -> None:
        """Raise Conflict unless the cluster can compute ``value`` at each of its points."""
        if isinstance(value, Reduction):
            index = self.domain.index(value.source_shape, row=False)
        else:
            row, backwards = kind == "row", kind == "backwards"
            index = place(self.domain, value.shape, row=row, backwards=backwards)
        if index is None:
            raise Conflict
        if kind == "row":
            self.work = float("inf")  # once a row is nothing beside the row
        assert isinstance(value, Computed)
        self._follow(value, index)

    def _follow(self, value: Computed, index: Indices) -> None:
        for read in value.expression.reads:
            operand = value.reads[read.operand]
            root = root_of(operand)
            member = root in self.members
            if member or not (isinstance(root, Source | Host) or self._comes_before(root)):
                self._read(operand, read.index.at(index), member=member)

    def _read(self, value: Value, index: Indices, *, member: bool) -> None:
        """Follow a read into the cluster, and into what it has to compute as well."""
        while isinstance(value, View):
            assert value.index is not None
            index = value.index.at(index, self.extents)
            value = value.base
        if member and index == self.cluster.index(value, self.domain):
            return
        if isinstance(value, Reduction | Scanned):
            raise Conflict
        assert isinstance(value, Pointwise)
        if not member:
            self.inlined.add(value)
        self.left -= 1
        self.work -= value.cost
        if self.left < 0 or self.work < 0:
            raise Conflict
        self._follow(value, index)

    def _comes_before(self, value: Value) -> bool:
        return self.home(value) < self.cluster.number


def reads_of(value: Value) -> Sequence[Value]:
    """The values an expression reads."""
    return value.reads if isinstance(value, Computed) else ()
