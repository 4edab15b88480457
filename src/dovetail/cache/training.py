"""A training graph of Dynamo's in the cache: how its forward and backward graph are run.

Those have entries of their own, which this one refers to by their keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.cache.key import Key
from dovetail.compiled import CompiledGraph
from dovetail.errors import InvalidCompiledGraph

MAGIC = b"dvttrain"
VERSION = 2


@dataclass(frozen=True)
class TrainingPair:
    """What AOTAutograd does around two compiled graphs, and under which keys those are."""

    plan: Mapping[str, Any]  # as ``capture._torch.training.training_plan`` has it
    forward: Key
    backward: Key


def encode_pair(pair: TrainingPair) -> bytes:
    """The pair as bytes: JSON after a magic."""
    head = {
        "version": VERSION,
        "plan": pair.plan,
        "forward": pair.forward.parts,
        "backward": pair.backward.parts,
    }
    return MAGIC + json.dumps(head, separators=(",", ":"), allow_nan=False).encode()


def decode_pair(data: bytes) -> TrainingPair:
    """The pair that ``encode_pair`` wrote; InvalidCompiledGraph for anything else."""
    if not data.startswith(MAGIC):
        raise InvalidCompiledGraph("these bytes hold no training graph")
    try:
        head = json.loads(data[len(MAGIC) :])
        if head["version"] != VERSION:
            raise ValueError("another version")
        return TrainingPair(dict(head["plan"]), _key(head["forward"]), _key(head["backward"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidCompiledGraph(f"these bytes hold no training graph: {error!r}") from None


def verify_pair(plan: Mapping[str, Any], forward: CompiledGraph, backward: CompiledGraph) -> None:
    """Raise InvalidCompiledGraph unless the graphs take and give as many values as the plan says.

    The forward graph returns its outputs, then what is saved for the backward graph: tensors, then
    sizes. That graph takes sizes, tensors and gradients of outputs; it returns gradients of all
    inputs.
    """
    given, returned = len(plan["inputs"]), len(plan["outputs"])
    saved = len(forward.every.outputs) - returned
    fits = (
        saved >= plan["sizes"] >= 0
        and len(forward.every.inputs) == given
        and len(backward.every.inputs) == saved + len(plan["tangents"])
        and len(backward.every.outputs) == given
        and all(0 <= n < given for n in plan["detached"])
    )
    whole = forward.once is None and backward.once is None
    if not (fits and whole):
        raise InvalidCompiledGraph("a forward and a backward graph that do not fit each other")


def _key(rows: list[list[str]]) -> Key:
    return Key(tuple((str(name), str(hashed), str(text)) for name, hashed, text in rows))
