"""The values that pass between stages: sizes, descriptors, calls, segments. No torch in here."""

from dovetail.ir.call import Arg, Attr, OpCall, Ref, Table, resolve
from dovetail.ir.real import Real
from dovetail.ir.segment import Input, Segment
from dovetail.ir.size import Dim, Size, SizeProgram, parse_size
from dovetail.ir.tensor import Desc, ScalarDesc, TensorDesc

__all__ = [
    "Arg",
    "Attr",
    "Desc",
    "Dim",
    "Input",
    "OpCall",
    "Real",
    "Ref",
    "ScalarDesc",
    "Segment",
    "Size",
    "SizeProgram",
    "Table",
    "TensorDesc",
    "parse_size",
    "resolve",
]
