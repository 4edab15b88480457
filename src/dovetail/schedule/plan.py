"""From a segment to a plan: kernels and library calls in order, and what lies in memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dovetail import history
from dovetail.errors import DovetailError
from dovetail.ir.affine import product
from dovetail.ir.call import OpCall, Ref, leaves
from dovetail.ir.dtypes import item_bytes
from dovetail.ir.kernel import Const, Kernel
from dovetail.ir.kernel_verify import verify_kernel
from dovetail.ir.segment import Segment, is_write
from dovetail.ir.target import Target
from dovetail.ir.verify import verify_stage
from dovetail.lower.calls import lower_segment, lowered_alone
from dovetail.lower.expression import Compute, Read
from dovetail.lower.index_map import IndexMap
from dovetail.lower.rules import Lower
from dovetail.lower.values import (
    Computed,
    Host,
    LibraryCall,
    Pointwise,
    Reduction,
    Scanned,
    Source,
    Value,
    root_of,
)
from dovetail.schedule.adapt import adapter, library_reason
from dovetail.schedule.build import Built, KernelBuilder, NeedsMemory
from dovetail.schedule.cluster import Cluster, Clusterer, Work, is_expensive, is_serial, reads_of
from dovetail.schedule.gpu.join import join
from dovetail.schedule.limits import limits_of
from dovetail.schedule.simplify import simplify
from dovetail.schedule.tiled import is_tiled
from dovetail.schedule.verify import verify_plan
from dovetail.schedule.winograd import winograd


class Unschedulable(DovetailError):
    """A segment that no plan can be made for."""


@dataclass
class Plan:
    """What to run, in order, and the values that need memory."""

    segment: Segment
    values: dict[tuple[str, tuple[int, ...]], Value]
    steps: list[Built | LibraryCall] = field(default_factory=list)


def make_plan(segment: Segment, target: Target, *, libraries: bool = True) -> Plan:
    """Lower, fuse, decide what is stored, and build the kernels, for a target.

    Without ``libraries``, kernels compute what only a library that may not be there does faster.
    """
    with history.step("lower"):
        lower, order = lower_segment(segment, adapter(target, libraries=libraries))
    with history.step("schedule"):
        clusterer = Clusterer(limits_of(target))
        for item in order:
            if isinstance(item, LibraryCall):
                clusterer.add_library(item, writes=is_write(item.call))
            else:
                clusterer.require(item)
        plan = Plan(segment, lower.values)
        wanted = _wanted(segment, lower)
        plan.steps = _Storage(clusterer, wanted).steps()
        if target.warp:
            plan.steps = join(plan.steps, wanted, target)
    return verify_stage("schedule", plan, verify_plan)


def _wanted(segment: Segment, lower: Lower) -> list[Value]:
    refs = [out for out in leaves(segment.outputs) if isinstance(out, Ref)]
    keys = [(ref.name, ref.path) for ref in refs]
    return [lower.values[key] for key in keys if key in lower.values]


class _Storage:
    """Decides, from the last cluster to the first, which values are stored."""

    def __init__(self, clusterer: Clusterer, outputs: list[Value]) -> None:
        self.clusterer, self.limits = clusterer, clusterer.limits
        self.stored: set[Value] = set()
        self.readers: dict[Value, set[int]] = {}
        self.simplified: dict[tuple[Kernel, tuple[str, ...]], Kernel] = {}
        for value in outputs:
            self._store(value)
        for cluster in clusterer.clusters:
            for value in cluster.library.reads if cluster.library is not None else ():
                self._store(value)
            for member in cluster.members:
                for read in map(root_of, reads_of(member)):
                    self.readers.setdefault(read, set()).add(cluster.number)

    def _store(self, value: Value) -> None:
        root = root_of(value)
        if not isinstance(root, Source | Host):
            self.stored.add(root)

    def steps(self) -> list[Built | LibraryCall]:
        """The program, in order."""
        found: list[Built | LibraryCall] = []
        for cluster in reversed(self.clusterer.clusters):
            if cluster.library is not None:
                found.append(cluster.library)
            else:
                built = self._kernel(cluster)
                if built is not None:
                    found += reversed(winograd(built, cluster.members))
        return found[::-1]

    def _kernel(self, cluster: Cluster) -> Built | None:
        roots = [m for m in cluster.members if m in self.stored]
        if not roots:
            return None
        members = set(cluster.members)
        while True:
            self._decide(cluster, roots, members)
            try:
                built = KernelBuilder(cluster, roots, self.stored.__contains__).build(
                    f"kernel_{cluster.number}"
                )
            except NeedsMemory as missing:
                self.stored.add(missing.value)
                if missing.value in members or missing.value in cluster.inlined:
                    raise Unschedulable(f"{missing.value} is read out of order") from None
                continue
            verify_stage("schedule", built.kernel, verify_kernel)
            return Built(self._simplified(built.kernel), built.buffers)

    def _simplified(self, kernel: Kernel) -> Kernel:
        """The kernel made simpler; worked out once for kernels alike but for their names."""
        plain = replace(kernel, name="")
        signed = tuple([repr(i.value) for i in kernel.instructions() if isinstance(i, Const)])
        key = plain, signed  # 0.0 equals -0.0
        found = self.simplified.get(key)
        if found is None:
            found = self.simplified[key] = simplify(plain, self.limits)
        return replace(found, name=kernel.name)

    def _decide(self, cluster: Cluster, roots: list[Value], members: set[Value]) -> None:
        """Store or recompute what this cluster reads of others."""
        seen: set[Value] = set()
        work = Work(self.limits, cluster.work.costs)
        stack: list[Value] = list(roots)
        places = dict.fromkeys(roots, 1)  # at which a point of the kernel needs a value
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            work.add(value)
            for read in map(root_of, reads_of(value)):
                if isinstance(read, Source | Host):
                    continue
                if read in self.stored and read not in members and read not in cluster.inlined:
                    continue
                room = len(seen) < self.limits.values and work.takes(read)
                often = places[value] * places_of(value, read)
                again = not is_tiled(value) and self._recompute(read, cluster, often, room=room)
                if read in members or read in cluster.inlined or again:
                    places[read] = max(often, places.get(read, 0))
                    stack.append(read)
                else:
                    self.stored.add(read)

    def _recompute(self, value: Value, cluster: Cluster, places: int, *, room: bool) -> bool:
        if isinstance(value, Reduction | Scanned) or self._written_between(value, cluster):
            return False
        home = self.clusterer.home[value]
        if home is not cluster and is_tiled(home.members[0]):
            return False  # what is done with a product's sums is done where they are
        if is_wider(value):
            return True  # what is stored, if anything is, is what it is wider than
        if self._costs_windows(value, cluster, places):
            return False
        if self._cost(value, self.limits.inline) <= self.limits.inline:
            return not self._is_read_often(value, cluster)
        if is_expensive(value, self.limits) and is_serial(
            cluster.domain, cluster.members, self.limits
        ):
            return False
        alone = room and self.readers.get(value, set()) <= {cluster.number}
        return alone and value.numel == product(cluster.domain.sizes)

    def _costs_windows(self, value: Value, cluster: Cluster, places: int) -> bool:
        """Whether windows overlap so far that work at each place is worse than storing."""
        if places < self.limits.places:
            return False
        points, size, often = product(cluster.domain.sizes), value.numel, float(places)
        if isinstance(points, int) and isinstance(size, int):
            often *= min(points / max(size, 1), 1.0)  # for each element: windows move by steps
        limit = self.limits.window / max(often, 1.0)
        return self._cost(value, limit, self.limits.rounded) > limit

    def _is_read_often(self, value: Value, cluster: Cluster) -> bool:
        """Whether the end of a reduction, in a kernel that runs anyway, is read many times over."""
        points, size = product(cluster.domain.sizes), value.numel
        many = (
            isinstance(points, int) and isinstance(size, int) and points >= self.limits.often * size
        )
        return many and self.clusterer.home[value].domain.reduced is not None

    def _written_between(self, value: Value, cluster: Cluster) -> bool:
        """Whether an input is written between a value's place and a later cluster."""
        first = self.clusterer.home[value].number
        return any(c.barrier for c in self.clusterer.clusters[first : cluster.number])

    def _cost(self, value: Value, left: float, rounded: int = 0) -> float:
        """What computing one element again would take, counted until it is more than ``left``.

        Divisions and square roots count as ``rounded`` instructions at least.
        """
        if isinstance(value, Source | Host | Reduction | Scanned) or value in self.stored:
            return 1.0
        assert isinstance(value, Pointwise)
        total = value.cost if not rounded else max(value.cost, rounded * roundings(value))
        for read in map(root_of, value.reads):
            if total > left:
                break
            total += self._cost(read, left - total, rounded)
        return total


def places_of(reader: Value, read: Value) -> int:
    """The most places of one operand, a view of ``read``, that a point of a value needs."""
    if not isinstance(reader, Computed):
        return 1
    found: dict[int, set[IndexMap]] = {}
    for each in reader.expression.reads:
        if root_of(reader.reads[each.operand]) is read:
            found.setdefault(each.operand, set()).add(each.index)
    return max(map(len, found.values()), default=1)


def is_wider(value: Value) -> bool:
    """Whether a value is another of fewer bytes, element by element, as a wider type."""
    if not isinstance(value, Pointwise) or len(value.expression.reads) != 1:
        return False
    (read,) = value.expression.reads
    kinds = [
        node.op if isinstance(node, Compute) else type(node) for node in value.expression.nodes
    ]
    return (
        kinds in ([Read], [Read, "cast"])
        and read.mask is None
        and read.index.is_projection
        and item_bytes(value.dtype) > item_bytes(value.reads[read.operand].dtype)
    )


def roundings(value: Pointwise) -> int:
    """How many divisions and square roots an element takes."""
    nodes = value.expression.nodes
    return sum(isinstance(node, Compute) and node.op in ("div", "sqrt") for node in nodes)


def verdict(call: OpCall, target: Target, device: str = "cpu") -> str:
    """Why a call has no generated code for a target; empty when it has.

    ``device`` is the type of device whose memory the target's code works on.
    """
    for desc in (*call.inputs, *call.outputs):
        if desc.device.partition(":")[0] != device:
            return f"a tensor on {desc.device}"
    found = lowered_alone(call)
    return found.refusal or library_reason(found, target)
