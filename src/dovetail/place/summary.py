"""What the report says of a placed segment: its operators, what crosses its border, its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dovetail.backend import Backend
from dovetail.history import Copies, Details, GraphRecord, Measured, SegmentRecord
from dovetail.ir import Desc, OpCall, Ref, Segment, TensorDesc
from dovetail.ir.segment import ValueKey
from dovetail.place.cost import Costs, total
from dovetail.place.verdicts import Verdict

HOST = "host"
_COPIES = ("aten._to_copy.default", "aten.copy.default", "aten.copy_.default")


class Ran(NamedTuple):
    """A segment as it runs: what of it the report needs, and nothing that holds its code."""

    segment: Callable[[], Segment]
    sources: tuple[ValueKey, ...]
    backend: Backend
    failures: tuple[tuple[str, str], ...]  # backend, reason: who failed to compile it
    transfers: tuple[Sequence[int], Sequence[int]] | None  # inputs sent, outputs fetched; all
    kept: frozenset[int]  # outputs that stay where they are for the segments that read them there
    measured: Measured | None


def record_graph(
    kind: str,
    verdicts: Callable[[], Sequence[Verdict]],
    hints: Mapping[str, int],
    ran: Sequence[Ran],
) -> GraphRecord:
    """What the report says of a graph, worked out when somebody asks."""
    return GraphRecord(kind, lambda: _details(verdicts(), hints, ran))


def _details(given: Sequence[Verdict], hints: Mapping[str, int], ran: Sequence[Ran]) -> Details:
    costs = Costs(hints)
    verdicts = {verdict.call: verdict for verdict in given}
    segments = []
    sent: set[tuple[str, ValueKey]] = set()
    for each in ran:
        segment = each.segment()
        if each.failures:
            for call in segment.calls:
                verdicts[call.name] = verdicts[call.name].after_failures(
                    each.backend.name, each.failures
                )
        segments.append(_summarise(each, segment, costs, verdicts, sent))
    return tuple(verdicts.values()), tuple(segments)


def _summarise(
    ran: Ran,
    segment: Segment,
    costs: Costs,
    verdicts: Mapping[str, Verdict],
    sent: set[tuple[str, ValueKey]],
) -> SegmentRecord:
    """The record of a segment, ``verdicts`` being those of its calls, by name.

    ``sent`` is what backends with memory of their own have been sent already; it grows.
    """
    backend = ran.backend
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
        text=str(segment),
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
        copies=tuple(_copies(ran, segment, costs, sent)),
        measured=ran.measured,
        reformats=sum(map(is_reformat, segment.calls)),
    )


def is_reformat(call: OpCall) -> bool:
    """Whether a call does nothing but change a layout."""
    if call.op != "aten.clone.default" or not call.inputs or not call.outputs:
        return False
    return call.inputs[0].strides != call.outputs[0].strides


def _copies(
    ran: Ran, segment: Segment, costs: Costs, sent: set[tuple[str, ValueKey]]
) -> Iterator[Copies]:
    """Each direction in which tensors are moved at every call."""
    name = ran.backend.name
    if ran.backend.transfer is not None:
        there, back = _transfers(ran, segment)
        there = [key for key in there if (name, key) not in sent]
        descs = {k: i.desc for k, i in zip(ran.sources, segment.inputs, strict=True)}
        sent |= {(name, key) for key in there}
        outputs = [segment.outputs[n] for n in ran.kept]
        sent |= {(name, (out.name, out.path)) for out in outputs if isinstance(out, Ref)}
        if there:
            size = sum(costs.span(descs[key]) for key in there)
            yield Copies(HOST, name, len(there), size)
        if back:
            yield Copies(name, HOST, len(back), sum(map(costs.span, back)))
    for call in segment.calls:
        yield from _moves(call, costs)


def _transfers(ran: Ran, segment: Segment) -> tuple[list[ValueKey], list[Desc]]:
    """What is sent and fetched: what the executable says, else every tensor that is not kept."""
    inputs, outputs = segment.inputs, segment.output_descs()
    everything = range(len(inputs)), range(len(outputs))
    sent, fetched = ran.transfers or everything
    tensors = [n for n in sent if isinstance(inputs[n].desc, TensorDesc)]
    return (
        [ran.sources[n] for n in tensors if inputs[n].kind != "constant"],
        [outputs[n] for n in fetched if isinstance(outputs[n], TensorDesc)],
    )


def _moves(call: OpCall, costs: Costs) -> Iterator[Copies]:
    """A call that the model itself makes to bring a tensor from one torch device to another."""
    if call.op in _COPIES and call.inputs and call.outputs:
        taken, made = call.inputs[-1], call.outputs[0]
        if taken.device != made.device:
            yield Copies(taken.device, made.device, 1, costs.bytes_of(taken))
