"""From a cluster to kernel IR: values are emitted where they are asked for, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dovetail.ir.affine import Affine, NotAffine
from dovetail.ir.dtypes import COMPUTE
from dovetail.ir.kernel import (
    Apply,
    Axis,
    Const,
    Index,
    Instruction,
    Kernel,
    KernelBuffer,
    Load,
    Loop,
    Position,
    Reduce,
    Scan,
    Store,
)
from dovetail.lower.contraction import Contraction
from dovetail.lower.expression import inline
from dovetail.lower.index_map import Indices
from dovetail.lower.values import (
    Computed,
    Host,
    Pointwise,
    Reduction,
    Scanned,
    Source,
    Value,
    View,
    root_of,
)
from dovetail.schedule.cluster import Cluster, is_expensive, reads_of


class NeedsMemory(Exception):
    """A value of another cluster must lie in memory for this one to read it."""

    def __init__(self, value: Value) -> None:
        super().__init__(value.name)
        self.value = value


@dataclass
class Built:
    """A kernel and the value behind each of its buffers."""

    kernel: Kernel
    buffers: dict[str, Value] = field(default_factory=dict)


class KernelBuilder:
    """Emits the roots of one cluster."""

    def __init__(
        self, cluster: Cluster, roots: list[Value], in_memory: Callable[[Value], bool]
    ) -> None:
        self.cluster, self.roots, self._stored = cluster, roots, in_memory
        self.domain = cluster.domain
        self.extents = self.domain.extents()
        self.members = set(cluster.members)
        self.buffers: dict[Value, str] = {}
        self.written: set[Value] = set()
        self.rows: dict[Value, str] = {}  # reductions that are done
        self.body: list[Instruction] = []
        self.memo: dict[object, str] = {}
        self.mask: str | None = None
        self._count = 0
        self._stages: dict[Value, int] = {}
        self.now = 0  # the stage being emitted
        self.parked: dict[Value, Value] = {}  # value → the result whose memory holds it meanwhile

    def in_memory(self, value: Value) -> bool:
        """Whether a value of another cluster lies in memory when this kernel runs."""
        return self._stored(value) and value not in self.cluster.inlined

    # ---- the whole kernel ------------------------------------------------------------------

    def build(self, name: str) -> Built:
        """The kernel's IR."""
        axes = {n: Axis(n, e) for n, e in self.extents.items()}
        kept = tuple(axes[n] for n in self.domain.kept_names())
        reduced = tuple(a for n, a in axes.items() if a not in kept)
        needed = self._needed_reductions()
        if needed and not reduced:  # a reduction over dimensions of size 1
            reduced = (Axis("unit", 1),)
        last = max([self.stage(v) for v in (*self.roots, *needed)], default=0)
        self._park(needed)
        loops: list[Loop] = []
        for stage in range(last + 1):
            self.now = stage
            row = [r for r in self.roots if self._is_row(r) and self._row_stage(r) == stage]
            loops += self._loop((), row, [])
            full = [r for r in self.roots if not self._is_row(r) and self.stage(r) == stage]
            sums = [r for r in needed if self.stage(r) == stage]
            loops += self._loop(reduced, full, sums)
        row = [r for r in self.roots if self._is_row(r) and self._row_stage(r) == last + 1]
        loops += self._loop((), row, [])
        buffers = tuple(KernelBuffer(n, v.dtype, self._role(v)) for v, n in self.buffers.items())
        kernel = Kernel(name, buffers, kept, tuple(loops), tile=self._tile())
        return Built(kernel, {n: v for v, n in self.buffers.items()})

    def _tile(self) -> tuple[int, ...]:
        """What measuring chose for the product that the kernel sums up."""
        sums = (each for each in self.cluster.members if isinstance(each, Contraction))
        return next((each.tile for each in sums if each.tile), ())

    def _park(self, reductions: list[Reduction]) -> None:
        """Keep what is expensive and reduced in the memory of the result that needs it again."""
        reduced = {root_of(r) for reduction in reductions for r in reduction.reads}
        for root in self.roots if self.cluster.limits.parks else ():
            if self._is_row(root) or not isinstance(root, Pointwise):
                continue
            for value in root.reads:
                same = value.dtype == root.dtype and value.shape == root.shape
                worth = value in reduced and is_expensive(value, self.cluster.limits)
                if worth and same and self._parks(value, root):
                    self.parked[value] = root
                    break

    def _parks(self, value: Value, root: Value) -> bool:
        inside = value in self.members and value not in self.roots
        if not inside or self.cluster.index(value) != self.cluster.index(root):
            return False
        return value not in self.parked and self.stage(value) < self.stage(root)

    def _is_row(self, value: Value) -> bool:
        return isinstance(value, Reduction) or value in self.cluster.rows

    def _role(self, value: Value) -> str:
        if value not in self.written:
            return "in"
        return "inout" if value in self.parked.values() else "out"

    def _row_stage(self, value: Value) -> int:
        return self.stage(value) + (1 if isinstance(value, Reduction) else 0)

    def stage(self, value: Value) -> int:
        """How many reductions of this cluster, one after another, a value waits for."""
        if value not in self._stages:
            found = 0
            for r in map(root_of, reads_of(value)):
                if isinstance(r, Source | Host) or (r not in self.members and self.in_memory(r)):
                    continue
                after = 1 if isinstance(r, Reduction) and r in self.members else 0
                found = max(found, self.stage(r) + after)
            self._stages[value] = found
        return self._stages[value]

    def _needed_reductions(self) -> list[Reduction]:
        """The reductions of this cluster that its roots depend on, in order."""
        seen: set[Value] = set()
        stack = list(self.roots)
        while stack:
            value = root_of(stack.pop())
            if value in seen or isinstance(value, Source | Host):
                continue
            if value not in self.members and self.in_memory(value):
                continue
            seen.add(value)
            stack += reads_of(value)
        return [m for m in self.cluster.members if isinstance(m, Reduction) and m in seen]

    def _loop(
        self, axes: tuple[Axis, ...], stores: list[Value], sums: list[Reduction]
    ) -> list[Loop]:
        if not stores and not sums:
            return []
        self.body, self.memo = [], {}
        reductions = [self._reduce(r) for r in sums]
        for value, root in self.parked.items():
            if sums and self.stage(value) == self.now:
                self._keep(value, root)
        for value in stores:
            self._store(value)
        self.body += reductions
        for r, reduction in zip(sums, reductions, strict=True):
            self.rows[r] = reduction.name
        return [Loop(axes, tuple(self.body))]

    def _reduce(self, value: Reduction) -> Reduce:
        index = self.domain.index(value.source_shape, row=False)
        assert index is not None
        args = self._compute(value, index)
        name = self._name()
        return Reduce(name, value.accumulate, value.op, args)

    def _keep(self, value: Value, root: Value) -> None:
        index = self.cluster.index(value)
        assert index is not None
        place = flat(index, root.strides)
        self.written.add(root)
        self.body.append(Store(self._buffer(root), place, self._element(value, index)))

    def _parked(self, value: Value, index: Indices) -> str | None:
        """A value kept in memory by an earlier loop, unless that memory has been reused."""
        root = self.parked.get(value)
        if root is None or not self.stage(value) < self.now <= self.stage(root):
            return None
        if index != self.cluster.index(value):
            return None
        mask, self.mask = self.mask, None  # here for certain, and once, before its memory is reused
        loaded = self._load(root, flat(index, root.strides))
        self.mask = mask
        return loaded

    def _store(self, value: Value) -> None:
        index = self.cluster.index(value)
        assert index is not None
        is_reduction = isinstance(value, Reduction)
        result = self.rows[value] if is_reduction else self._element(value, index)
        buffer = self._buffer(value)
        self.written.add(value)
        self.body.append(Store(buffer, flat(index, value.strides), result))

    # ---- elements ---------------------------------------------------------------------------

    def read(self, value: Value, index: Indices) -> str:
        """An element: from memory, from a reduction that is done, or computed here."""
        root = root_of(value)
        if isinstance(root, Source | Host) or (root not in self.members and self.in_memory(root)):
            offset = value.offset if isinstance(value, View) else 0
            return self._load(root, flat(index, value.strides, offset))
        while isinstance(value, View):
            assert value.index is not None
            try:
                index = value.index.at(index, self.extents)
            except NotAffine:
                raise NeedsMemory(root) from None
            value = value.base
        if isinstance(value, Reduction):
            if value not in self.members:
                raise NeedsMemory(value)
            return self.rows[value]
        return self._element(value, index)

    def _element(self, value: Value, index: Indices) -> str:
        if isinstance(value, Scanned):
            return self._scanned(value, index)
        assert isinstance(value, Pointwise)
        key = (value, index, self.mask)
        if key not in self.memo:
            self.memo[key] = self._parked(value, index) or self._compute(value, index)[0]
        return self.memo[key]

    def _scanned(self, value: Scanned, index: Indices) -> str:
        """The step of a scan at its own point; at others it has to lie in memory."""
        if value not in self.members or index != self.cluster.index(value):
            raise NeedsMemory(value)
        if ("scanned", value) not in self.memo:
            mask, self.mask = self.mask, None  # a step needs all elements before it
            (self.memo["scanned", value],) = self._compute(value, index)
            self.mask = mask
        return self.memo["scanned", value]

    def _compute(self, value: Computed, index: Indices) -> tuple[str, ...]:
        """The results of a value's expression at an index."""
        return inline(self, value.expression, value.reads, index)

    def _load(self, root: Value, index: Index) -> str:
        key = ("load", root, index, self.mask)
        if key not in self.memo:
            name = self._name()
            dtype = COMPUTE[root.dtype]
            self.body.append(Load(name, dtype, self._buffer(root), index, self.mask))
            self.memo[key] = name
        return self.memo[key]

    def apply(self, op: str, dtype: str, *args: str) -> str:
        """An operation, unless the same was done before."""
        return self._once((op, dtype, args), lambda name: Apply(name, dtype, op, args))

    def scan(self, op: str, dtype: str, value: str) -> str:
        """The step of a scan of a value."""
        key = ("scan", op, dtype, value)
        return self._once(key, lambda name: Scan(name, dtype, op, (value,)))

    def const(self, value: float | int | bool, dtype: str) -> str:
        """A number."""
        key = ("const", repr(value), dtype)
        return self._once(key, lambda name: Const(name, dtype, value))

    def position(self, index: Affine) -> str:
        """An index expression as a value."""
        if not index.axes and not index.values and isinstance(index.offset, int):
            return self.const(index.offset, "int64")
        place = Index(index.offset, index.axes)
        base = self._once(("position", place), lambda name: Position(name, place))
        for name, step in index.values:
            factor = self.position(Affine(step))
            base = self.apply("add", "int64", base, self.apply("mul", "int64", name, factor))
        return base

    def within(self, mask: str) -> str:
        """A mask, and those that loads are under at present."""
        return mask if self.mask is None else self.apply("and", "bool", self.mask, mask)

    def mask_or_true(self) -> str:
        """The mask that loads are under at present."""
        return self.mask or self.const(True, "bool")

    def _once(self, key: object, make: Callable[[str], Instruction]) -> str:
        if key not in self.memo:
            name = self._name()
            self.body.append(make(name))
            self.memo[key] = name
        return self.memo[key]

    def _name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _buffer(self, value: Value) -> str:
        return self.buffers.setdefault(value, f"b{len(self.buffers)}")


def flat(index: Indices, strides: tuple[object, ...], offset: object = 0) -> Index:
    """The position in memory of an index."""
    total = Affine(offset)  # type: ignore[arg-type]
    for i, stride in zip(index, strides, strict=True):
        total += i.scale(stride)  # type: ignore[arg-type]
    return total
