"""Compiling in this process, by itself or by way of bytes."""

from __future__ import annotations

from dovetail.backend import Backend, Blob
from dovetail.errors import BackendContract
from dovetail.ir.encode import segment_from_bytes, segment_to_bytes
from dovetail.ir.segment import Segment


def compile_segment(backend: Backend, segment: Segment) -> Blob:
    """A backend's code for a segment, made here and now."""
    blob = backend.compile(segment)
    if not isinstance(blob, Blob):
        raise BackendContract(backend.name, "compile()", f"returned {blob!r}")
    return blob


def compile_serialized(backend: Backend, segment: Segment) -> Blob:
    """The same by way of bytes: what is compiled was read back, and so is what runs.

    Code that lives in this process alone stays what it is.
    """
    blob = compile_segment(backend, segment_from_bytes(segment_to_bytes(segment)))
    return Blob(bytes(bytearray(blob.data))) if blob.is_portable else blob
