"""Vendor blobs of an artifact that a backend in Python loads and runs.

Those of a plug-in's device never come here: the C runtime runs them over the plug-in ABI.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from dovetail import registry
from dovetail.backend import Blob
from dovetail.errors import DovetailError, InvalidArtifact, UnsupportedArtifact

# As host operations are called: tensors and numbers in, results out.
Call = Callable[[Sequence[Any], Sequence[int]], Any]
# The owner of a blob that is a whole model, which ``artifact.graph_file`` reads.
COMPILED_GRAPH = "compiled graph"
Row = tuple[str, str, bool, bytes, int]  # as _native.Artifact.blobs() has them


def load_blobs(rows: Sequence[Row]) -> list[Call]:
    """A call for each blob, in order; those on a device are never called."""
    return [_on_device if _is_elsewhere(row) else _call(*row[:2], row[3]) for row in rows]


def compiled_graph(native: Any) -> bytes | None:
    """The bytes of the model that a verified file is, where PyTorch runs it; else None."""
    rows: list[Row] = native.blobs()
    return rows[0][3] if len(rows) == 1 and rows[0][0] == COMPILED_GRAPH else None


def _is_elsewhere(row: Row) -> bool:
    """Whether a blob is not called from here: a device's, or a model that PyTorch runs."""
    return row[2] or row[0] == COMPILED_GRAPH


def _on_device(_tensors: Sequence[Any], _sizes: Sequence[int]) -> Any:
    raise InvalidArtifact("a blob of a device, or of a model on one, was given to the host")


def _call(owner: str, arguments: str, data: bytes) -> Call:
    try:
        run = registry.get_backend(owner).load(Blob(data))
    except DovetailError as error:
        raise UnsupportedArtifact(
            f"the artifact holds code of the backend {owner!r}, which this process cannot run: "
            f"{error}; install the package that brings it, or export without it"
        ) from None
    places = _places(owner, arguments)

    def call(tensors: Sequence[Any], sizes: Sequence[int]) -> Any:
        given = {"tensor": tensors, "number": sizes}
        return run([given[kind][at] if kind in given else at for kind, at in places])

    return call


def _places(owner: str, arguments: str) -> list[tuple[str, Any]]:
    """Where each argument comes from: a tensor, a number, or the value itself."""
    try:
        places: list[tuple[str, Any]] = []
        for item in json.loads(arguments):
            if isinstance(item, dict):
                ((kind, at),) = item.items()
                if kind not in ("tensor", "number"):
                    raise ValueError(f"unknown argument {kind!r}")
                places.append((kind, int(at)))
            else:
                places.append(("value", item))
        return places
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidArtifact(
            f"the arguments of the blob of {owner!r} cannot be read: {error!r}"
        ) from None
