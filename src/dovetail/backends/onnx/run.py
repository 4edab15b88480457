"""Runs a segment in ONNX Runtime, on PyTorch's own memory: nothing is copied to get in or out."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import onnxruntime
import torch

from dovetail.backend import Executable
from dovetail.backends.onnx.writer import METADATA
from dovetail.errors import DovetailError, UnsupportedGraph
from dovetail.ir import Ref, Segment, Size
from dovetail.ir.encode import segment_from_bytes
from dovetail.ir.size import Dim
from dovetail.ir.tensor import TensorDesc
from dovetail.runtime.layouts import with_strides
from dovetail.runtime.sized import bind_sizes

log = logging.getLogger(__name__)
_ONLY_FATAL = 4  # what else goes wrong is raised


class EngineFailed(DovetailError, RuntimeError):
    """ONNX Runtime raised while it ran a segment."""


class OnnxExecutable(Executable):
    """A loaded model; call it with the segment's inputs as one list."""

    def __init__(self, data: bytes) -> None:
        self.session = _session(data)
        properties = self.session.get_modelmeta().custom_metadata_map
        if METADATA not in properties:
            raise UnsupportedGraph("this ONNX model was not made from a segment")
        self.segment: Segment = segment_from_bytes(properties[METADATA].encode())
        self.inputs = [_bind_for(given.name, given) for given in self.segment.inputs]
        self.position = {given.name: n for n, given in enumerate(self.segment.inputs)}
        self.results = [o.name for o in self.session.get_outputs()]
        self._nothing = ctypes.create_string_buffer(64)  # where tensors without elements lie
        self._check_names()

    def _check_names(self) -> None:
        """Damage shows here rather than at a call."""
        ours = {name for name, _ in self.inputs}
        theirs = {i.name for i in self.session.get_inputs()}
        made = sum(isinstance(out, Ref) for out in self.segment.outputs)
        if ours != theirs or made != len(self.results):
            raise UnsupportedGraph("this ONNX model does not fit the segment it carries")

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run; the list is emptied."""
        values = list(inputs)
        inputs.clear()
        number = bind_sizes(self.segment, values)
        binding = self.session.io_binding()
        held = []  # what must live until the run is over
        for (name, dtype), value in zip(self.inputs, values, strict=True):
            tensor = value.detach().contiguous() if dtype else torch.tensor([value])
            held.append(tensor)
            self._bind(binding.bind_input, name, tensor)
        names = iter(self.results)
        made = [self._output(binding, names, out, number) for out in self.segment.outputs]
        try:
            self.session.run_with_iobinding(binding)
        except Exception as error:  # an engine may raise anything
            raise _translated(error) from error
        return [
            _with_strides(result, out.desc, number) if isinstance(out, Ref) else result
            for result, out in zip(made, self.segment.outputs, strict=True)
        ]

    def _output(
        self, binding: Any, names: Iterator[str], out: Any, number: Callable[[Dim], int]
    ) -> Any:
        if isinstance(out, Size):
            return number(out)
        if not isinstance(out, Ref):
            return out
        desc = out.desc
        assert isinstance(desc, TensorDesc)
        shape = [number(d) for d in desc.shape]
        tensor = torch.empty(shape, dtype=getattr(torch, desc.dtype))
        self._bind(binding.bind_output, next(names), tensor)
        return tensor

    def _bind(self, bind: Callable[..., None], name: str, tensor: Any) -> None:
        address = tensor.data_ptr() or ctypes.addressof(self._nothing)
        bind(name, "cpu", 0, _numpy_type(tensor.dtype), list(tensor.shape), address)


def _session(data: bytes) -> Any:
    """A session, if need be without the engine's own rewrites, some of which break models."""
    try:
        return _open(data, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)
    except Exception as first:  # an engine may raise anything
        try:
            session = _open(data, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
        except Exception:
            raise UnsupportedGraph(f"ONNX Runtime cannot load this model: {first}") from first
        log.info("a model is run as it was written: %s", first)
        return session


def _open(data: bytes, level: Any) -> Any:
    """As many threads as PyTorch has, which do not spin between calls."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ONLY_FATAL
    options.graph_optimization_level = level
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def _bind_for(name: str, given: Any) -> tuple[str, bool]:
    return f"in.{name}", given.kind != "size"


def _numpy_type(dtype: torch.dtype) -> Any:
    return numpy.bool_ if dtype == torch.bool else numpy.dtype(str(dtype).removeprefix("torch."))


def _with_strides(result: Any, desc: Any, number: Callable[[Dim], int]) -> Any:
    """A result in the layout that was promised for it."""
    return with_strides(result, [number(s) for s in desc.strides])


def _translated(error: Exception) -> Exception:
    """What eager raises for an index out of range; anything else is the engine's failure."""
    text = str(error)
    if "out of data bounds" in text or "idx=" in text or "out of bounds" in text:
        return IndexError("index out of range in self")
    return EngineFailed(f"ONNX Runtime failed: {text}")
