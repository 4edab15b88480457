"""The ways to compile a segment: in this process, by way of bytes, in worker processes."""

from dovetail.compilers.identical import first_of_its_kind
from dovetail.compilers.local import compile_segment, compile_serialized
from dovetail.compilers.remote import CompileLimits, Outcome, Subprocess

__all__ = [
    "CompileLimits",
    "Outcome",
    "Subprocess",
    "compile_segment",
    "compile_serialized",
    "first_of_its_kind",
]
