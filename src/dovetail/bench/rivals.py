"""Who is measured: eager, any backend of torch.compile, and other engines where installed."""

from __future__ import annotations

import importlib
import importlib.util
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.bench.contest import HELD, NOT_HELD

# Engine → the packages that it needs.
ENGINES = {
    "onnxruntime": ("onnx", "onnxruntime"),
    "openvino": ("openvino",),
}


def missing(rival: str) -> str:
    """The first package that a rival needs and this environment lacks; empty when none."""
    for package in ENGINES.get(rival, ()):
        if importlib.util.find_spec(package) is None:
            return package
    return ""


def is_held(rival: str, processor: str) -> bool:
    """Whether a rival keeps to a smaller processor when it is told to, or is a copy that must."""
    if rival not in NOT_HELD:
        return True
    spec = importlib.util.find_spec(rival)
    if spec is None or spec.origin is None:
        return False
    told = Path(spec.origin).parent / HELD
    return told.is_file() and told.read_text().strip() == processor


def known() -> set[str]:
    """Every name that ``prepare`` takes."""
    import torch

    from dovetail import registry

    compiled = {*registry.list_backends(exclude_tags=())}
    return {"eager", *ENGINES, *compiled, *torch.compiler.list_backends(exclude_tags=())}


def versions() -> dict[str, str]:
    """Of everything whose speed the figures depend on."""
    packages = ("dovetail", "torch", "llvmlite", "onnxruntime", "openvino")
    present = [name for name in packages if importlib.util.find_spec(name) is not None]
    return {name: _version(name) for name in present}


def _version(package: str) -> str:
    """As installed, or as the package says: a source tree and a variant have no metadata by it."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return str(getattr(importlib.import_module(package), "__version__", "unknown"))


def prepare(
    rival: str,
    fn: Callable[..., Any],
    inputs: tuple[Any, ...],
    threads: int,
    *,
    frozen: bool = False,
) -> Callable[..., Any]:
    """What to call with the inputs; engines that compile ahead of time do so here.

    With ``frozen``, compilers treat weights as constants, as engines always do.
    """
    import torch

    from dovetail import registry
    from dovetail.capture._torch.dynamo import trace_recurrent_layers

    if rival == "eager":
        return fn
    if rival == "onnxruntime":
        return _onnxruntime(_module(fn), inputs, threads)
    if rival == "openvino":
        return _openvino(_module(fn), inputs, threads)
    trace_recurrent_layers()
    options: dict[str, Any] = {}
    if frozen and rival == "inductor":
        options = {"freezing": True}
    elif frozen and rival in registry.list_backends(exclude_tags=()):
        options = {"freeze": True}
    return torch.compile(fn, backend=rival, options=options)  # type: ignore[no-any-return]


def _module(fn: Callable[..., Any]) -> Any:
    import torch

    if isinstance(fn, torch.nn.Module):
        return fn

    class Function(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *args: Any) -> Any:
            return fn(*args)

    return Function().eval()


def _onnxruntime(module: Any, inputs: tuple[Any, ...], threads: int) -> Callable[..., Any]:
    """Exported by PyTorch's own exporter, run with no copy of inputs or outputs."""
    import onnxruntime
    import torch

    held = io.BytesIO()
    if importlib.util.find_spec("onnxscript") is not None:
        torch.onnx.export(module, inputs, dynamo=True, verbose=False).save(held)
    else:  # the exporter of old, which needs no package beside onnx
        torch.onnx.export(module, inputs, held, dynamo=False, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        held.getvalue(), options, providers=["CPUExecutionProvider"]
    )
    names = [given.name for given in session.get_inputs()]

    def run(*args: Any) -> list[Any]:
        feeds = {name: arg.numpy() for name, arg in zip(names, args, strict=True)}
        return [torch.from_numpy(result) for result in session.run(None, feeds)]

    return run


def _openvino(module: Any, inputs: tuple[Any, ...], threads: int) -> Callable[..., Any]:
    """Converted by OpenVINO, in float32, tuned for latency."""
    import openvino
    import torch

    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    converted = openvino.convert_model(module, example_input=inputs)
    request = openvino.Core().compile_model(converted, "CPU", settings).create_infer_request()

    def run(*args: Any) -> list[Any]:
        request.infer([arg.numpy() for arg in args], share_inputs=True)
        return [torch.from_numpy(out.data.copy()) for out in request.output_tensors]

    return run
