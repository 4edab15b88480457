"""What the report says of a placed segment: its operators, what crosses its border, its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dovetail.backend import Backend, Executable
from dovetail.history import CompiledGraph, Copies, SegmentRecord
from dovetail.ir import Desc, OpCall, TensorDesc
from dovetail.place.cost import Costs, total
from dovetail.place.cut import Key, PlacedSegment
from dovetail.place.placement import Placement
from dovetail.place.verdicts import Verdict

HOST = "host"
_COPIES = ("aten._to_copy.default", "aten.copy.default", "aten.copy_.default")


class Built(NamedTuple):
    """A compiled segment: who runs it, and who failed to compile it."""

    backend: Backend
    executable: Executable
    failures: tuple[tuple[str, str], ...] = ()  # backend, reason


def record_graph(
    kind: str, placement: Placement, built: Sequence[Built], keep_text: bool
) -> CompiledGraph:
    """What the report needs to know of a graph, once it is known what runs where."""
    costs = Costs(placement.hints)
    verdicts = {verdict.call: verdict for verdict in placement.verdicts}
    segments = []
    sent: set[tuple[str, Key]] = set()
    for placed, each in zip(placement.segments, built, strict=True):
        if each.failures:
            for call in placed.segment.calls:
                verdicts[call.name] = verdicts[call.name].after_failures(
                    each.backend.name, each.failures
                )
        text = str(placed.segment) if keep_text else ""
        segments.append(summarise(placed, each, costs, verdicts, text, sent))
    return CompiledGraph(kind, tuple(verdicts.values()), tuple(segments))


def summarise(
    placed: PlacedSegment,
    built: Built,
    costs: Costs,
    verdicts: Mapping[str, Verdict],
    text: str,
    sent: set[tuple[str, Key]],
) -> SegmentRecord:
    """The record of a segment, ``verdicts`` being those of its calls, by name.

    ``sent`` is what backends with memory of their own have been sent already; it grows.
    """
    backend = built.backend
    segment = placed.segment
    tensors = [i for i in segment.inputs if isinstance(i.desc, TensorDesc)]
    made = [desc for desc in segment.output_descs() if isinstance(desc, TensorDesc)]
    descs = [d for d in (*(i.desc for i in tensors), *made) if isinstance(d, TensorDesc)]
    given = [i.desc for i in tensors if i.kind != "constant"]
    kept = [i.desc for i in tensors if i.kind == "constant"]
    seconds = (
        costs.seconds(call, backend, verdicts[call.name].answer_of(backend.name))
        for call in segment.calls
    )
    return SegmentRecord(
        backend=backend.name,
        text=text,
        name=segment.name,
        calls=tuple(call.name for call in segment.calls),
        ops=dict(Counter(call.op for call in segment.calls)),
        inputs=len(given),
        outputs=len(made),
        bytes_in=costs.bytes_of(tuple(given)),
        bytes_out=costs.bytes_of(tuple(made)),
        kept=len(kept),
        bytes_kept=costs.bytes_of(tuple(kept)),
        symbolic=any(desc.symbols() for desc in descs),
        estimated_seconds=total(seconds),
        copies=tuple(_copies(placed, built, costs, sent)),
        measured=built.executable.measured,
    )


def _copies(
    placed: PlacedSegment, built: Built, costs: Costs, sent: set[tuple[str, Key]]
) -> Iterator[Copies]:
    """Each direction in which tensors are moved at every call."""
    name = built.backend.name
    if built.backend.transfer is not None:
        there, back = _transfers(placed, built.executable)
        there = [key for key in there if (name, key) not in sent]
        descs = {k: i.desc for k, i in zip(placed.sources, placed.segment.inputs, strict=True)}
        sent |= {(name, key) for key in there}
        if there:
            size = sum(costs.span(descs[key]) for key in there)
            yield Copies(HOST, name, len(there), size)
        if back:
            yield Copies(name, HOST, len(back), sum(map(costs.span, back)))
    for call in placed.segment.calls:
        yield from _moves(call, costs)


def _transfers(placed: PlacedSegment, executable: Executable) -> tuple[list[Key], list[Desc]]:
    """What is sent and fetched: what the executable says, else every tensor that is not kept."""
    inputs, outputs = placed.segment.inputs, placed.segment.output_descs()
    everything = range(len(inputs)), range(len(outputs))
    sent, fetched = executable.transfers() or everything
    tensors = [n for n in sent if isinstance(inputs[n].desc, TensorDesc)]
    return (
        [placed.sources[n] for n in tensors if inputs[n].kind != "constant"],
        [outputs[n] for n in fetched if isinstance(outputs[n], TensorDesc)],
    )


def _moves(call: OpCall, costs: Costs) -> Iterator[Copies]:
    """A call that the model itself makes to bring a tensor from one torch device to another."""
    if call.op in _COPIES and call.inputs and call.outputs:
        taken, made = call.inputs[-1], call.outputs[0]
        if taken.device != made.device:
            yield Copies(taken.device, made.device, 1, costs.bytes_of(taken))
