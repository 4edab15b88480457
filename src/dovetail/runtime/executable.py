"""Calls a segment that is an artifact in memory.

Its manifest is that of a file (SPEC.md), its trees lists: which inputs of the segment the program
takes, and how each output of the segment comes from what the program hands out: a tensor as it is,
a window on one (or on an input, which is then not copied), or a number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from dovetail import _native
from dovetail.backend import Executable, Fallback
from dovetail.errors import (
    DividedByZero,
    GuardFailed,
    IndexOutOfBounds,
    IndexOutOfRange,
    InvalidArtifact,
    RunFailed,
)
from dovetail.file.container import MANIFEST
from dovetail.ir.size import VALUE, Dim, SizeProgram, parse_size

_INT = 0  # DLPack's code for signed integers
Failure = RunFailed | GuardFailed | InvalidArtifact
NOT_AS_PLANNED = (RunFailed, GuardFailed, InvalidArtifact)
# A leaf of the manifest's outputs: {"tensor": k}, {"input": position}, either with "shape",
# "strides" and "offset" for a window, and "input_strides" for one on an input: those that the input
# must have for the window to lie there; {"size": expression}; {"value": plain value}.
ManifestEntry = dict[str, Any]


class SegmentInterface(NamedTuple):
    """How a segment's inputs and outputs are those of its program."""

    given: list[int]  # for each input of the program, its position among the segment's
    results: list[ManifestEntry]  # one for each output of the segment
    symbols: list[tuple[str, int, int]]  # that results need: name, segment's input, axis or VALUE
    writes: str  # when it writes to its inputs: see when_it_writes

    @staticmethod
    def read(manifest: Mapping[str, Any]) -> SegmentInterface:
        """What a segment's manifest says."""
        leaves: list[ManifestEntry] = manifest["inputs"]["list"]
        taken = [n for n, leaf in enumerate(leaves) if "tensor" in leaf]
        given = sorted(taken, key=lambda n: leaves[n]["tensor"])
        symbols = [(name, given[n], axis) for name, n, axis in manifest["symbols"]]
        return SegmentInterface(given, manifest["outputs"]["list"], symbols, manifest["writes"])


def load(data: bytes) -> NativeExecutable:
    """The function that runs an artifact of ``artifact_bytes``: one of this user's own making."""
    from dovetail.capture._torch.profiler import name_kernels_in_profiles
    from dovetail.runtime.loaded import CODE_ONLY, MAY_OVERLAP, TRUST, open_native

    name_kernels_in_profiles()
    return NativeExecutable(open_native(data, flags=TRUST | MAY_OVERLAP | CODE_ONLY))


_AS_EAGER = (IndexOutOfRange, IndexOutOfBounds, DividedByZero)


def as_eager(error: Failure) -> Exception:
    """What eager raises for an index out of range or a divisor of zero; the rest is our own."""
    if isinstance(error, IndexOutOfRange):
        return IndexError(str(error))
    if isinstance(error, IndexOutOfBounds | DividedByZero):
        return RuntimeError(str(error))
    return error


class NativeExecutable(Executable):
    """Calls a native program with a segment's inputs, which it takes as one list."""

    def __init__(self, native: Any) -> None:
        self.native = native
        self.fallback: Fallback | None = None
        self.run = native.run
        interface = SegmentInterface.read(json.loads(native.section(MANIFEST)))
        self.given, entries, self.symbols, self.writes = interface
        self.sizes: dict[Dim, int] = {}
        plain = [{"tensor": k} for k in range(len(native.outputs()))]
        self.results = None if entries == plain else [self._result(e) for e in entries]
        # Without a tensor among the arguments the runtime hands out tensors of its own.
        self.from_nothing = all(not shape and code == _INT for _, code, _, shape in native.inputs())
        if self.from_nothing:
            import torch

            self.from_dlpack = torch.from_dlpack
        names = [name for name, _, _ in self.symbols]
        self.program = SizeProgram(names, self.sizes) if self.sizes else None

    def fall_back_on(self, fallback: Fallback) -> None:
        """Have this run the segment where a tensor is not what it was described as."""
        self.fallback, self.run = fallback, fallback.rewinding(self.run)

    def measure(self) -> Callable[[], list[tuple[str, float]]]:
        """Have the runtime read a clock around each instruction."""
        native, names = self.native, self.native.names()
        native.measure()
        return lambda: [
            (name, least * 1e-9) for name, least in zip(names, native.times(), strict=True)
        ]

    def picking(self, positions: Sequence[int]) -> Callable[[list[Any]], list[Any]] | None:
        """The same for inputs of which ``positions`` are the segment's; None: not worth it.

        Where the program's outputs are the segment's, this is the native call and little else.
        """
        if self.results is not None or self.from_nothing or len(self.given) < 2:
            return None
        native, pick = self.run, itemgetter(*(positions[n] for n in self.given))

        def run(inputs: list[Any]) -> list[Any]:
            try:
                made = native(*pick(inputs))
            except NOT_AS_PLANNED as error:
                own = [inputs[n] for n in positions]
                inputs.clear()
                return self._otherwise(error, own)
            inputs.clear()
            return made  # type: ignore[no-any-return]

        return run

    def binding(
        self, positions: Sequence[int], values: Mapping[int, Any]
    ) -> Callable[[list[Any]], list[Any]] | None:
        """``picking`` for inputs without those at the positions of ``values``, which are held.

        The runtime reads what it holds itself in a tenth of the time that a tensor takes it.
        """
        if self.results is not None or self.from_nothing:
            return None
        taken = [positions[n] for n in self.given]
        places = _places_without(values, positions)
        varying = [(n, places[at]) for n, at in enumerate(taken) if at not in values]
        inputs = self.native.inputs()
        if not any(inputs[n][3] or inputs[n][1] != _INT for n, _ in varying):
            return None  # no tensor tells the runtime what kind it should hand out
        native = self.run
        try:
            held = [_held(values[at]) if at in values else None for at in taken]
        except (TypeError, BufferError, RuntimeError):  # no strided memory
            return None

        def run(rest: list[Any]) -> list[Any]:
            given = held.copy()
            for n, place in varying:
                given[n] = rest[place]
            try:
                made = native(*given)
            except NOT_AS_PLANNED as error:
                own = [values[at] if at in values else rest[places[at]] for at in positions]
                rest.clear()
                return self._otherwise(error, own)
            rest.clear()
            return made  # type: ignore[no-any-return]

        return run

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run; the list is emptied."""
        try:
            made: list[Any] = self.run(*[inputs[n] for n in self.given])
        except NOT_AS_PLANNED as error:
            return self._otherwise(error, inputs)
        if self.from_nothing and made:
            made = [self.from_dlpack(tensor) for tensor in made]
        if self.results is not None:
            sizes = self._sizes(inputs) if self.program is not None else ()
            made = [get(made, inputs, sizes) for get in self.results]
        inputs.clear()
        return made

    def _otherwise(self, error: Failure, inputs: list[Any]) -> list[Any]:
        """The outputs by other means, if nothing can have been written to the inputs yet.

        Where eager fails too, that is how its own words are found.
        """
        untouched = self.writes == "never" or isinstance(error, GuardFailed)  # guards come first
        if self.writes == "last" and not isinstance(error, _AS_EAGER):
            untouched = True
        if self.fallback is None or not untouched:
            raise as_eager(error) from None
        return self.fallback(error, inputs)

    def _sizes(self, inputs: list[Any]) -> Sequence[int]:
        assert self.program is not None
        return self.program.evaluate(
            [
                inputs[position] if axis == VALUE else inputs[position].shape[axis]
                for _, position, axis in self.symbols
            ]
        )

    def _result(self, entry: ManifestEntry) -> Callable[[list[Any], list[Any], Sequence[int]], Any]:
        if "value" in entry:
            return lambda _made, _inputs, _sizes: entry["value"]
        if "size" in entry:
            size = self._size(entry["size"])
            return lambda _made, _inputs, sizes: size(sizes)
        place: int = entry["input"] if "input" in entry else entry["tensor"]
        from_input = "input" in entry
        if "shape" not in entry:
            return lambda made, inputs, _: (inputs if from_input else made)[place]
        return self._window(entry, place, from_input)

    def _window(
        self, entry: ManifestEntry, place: int, from_input: bool
    ) -> Callable[[list[Any], list[Any], Sequence[int]], Any]:
        shape = [self._size(d) for d in entry["shape"]]
        strides = [self._size(d) for d in entry["strides"]]
        offset = self._size(entry["offset"])
        own = [self._size(d) for d in entry.get("input_strides", ())]
        from dovetail.runtime.layouts import with_strides

        def make(made: list[Any], inputs: list[Any], sizes: Sequence[int]) -> Any:
            base = (inputs if from_input else made)[place]
            if own:  # a copy of one that was described wrongly
                base = with_strides(base, [n(sizes) for n in own])
            start = base.storage_offset() + offset(sizes)
            return base.as_strided([n(sizes) for n in shape], [n(sizes) for n in strides], start)

        return make

    def _size(self, dim: int | str) -> Callable[[Sequence[int]], int]:
        size = dim if isinstance(dim, int) else parse_size(dim)
        if isinstance(size, int):
            return lambda _, value=size: value  # type: ignore[misc]
        index = self.sizes.setdefault(size, len(self.sizes))
        return lambda sizes: sizes[index]


def _places_without(values: Mapping[int, Any], positions: Sequence[int]) -> dict[int, int]:
    """Where inputs that are not among the values lie in a list without those."""
    others = [at for at in range(max(positions, default=-1) + 1) if at not in values]
    return {at: place for place, at in enumerate(others)}


def _held(value: Any) -> Any:
    """A tensor as the runtime's own, of the same memory; a number as it is."""
    if isinstance(value, int):
        return value
    return _native.hold(value.detach().resolve_conj().resolve_neg())
