"""What lies between a model's caller and its compiled graph: whoever calls or saves it needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail.artifact.guards import InputGuards


@dataclass(frozen=True)
class Role:
    """Where an input of the graph comes from: the user, a constant, or state."""

    kind: str  # "user", "constant", "state"
    key: str = ""


@dataclass(frozen=True)
class ModelInterface:
    """What an exported model takes and gives, holds and writes to."""

    name: str
    roles: tuple[Role, ...]  # one for each input of the graph
    tensors: Mapping[str, Any]  # constants and state, by the roles' keys
    # What leads the graph's outputs: new values of a state ("state", its key) or of an argument
    # ("user", its position among the leaves of the arguments).
    writes: tuple[tuple[str, str], ...]
    guards: InputGuards
    in_spec: Any  # PyTorch's descriptions of how arguments and results are nested
    out_spec: Any
    returned: Mapping[int, int]  # output → the argument that was written to it
    # The stacks of the model's code that the calls of each operator come from; none once loaded.
    traces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
