"""dovetail: the open compiler stack behind torch.compile.

Importing this imports neither torch nor the rest of the package; each name is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail import cache as cache
    from dovetail import errors as errors
    from dovetail import history as history
    from dovetail import passes as passes
    from dovetail import testing as testing
    from dovetail.artifact import Artifact, export
    from dovetail.artifact.load import load
    from dovetail.backend import (
        Availability,
        Backend,
        Blob,
        Executable,
        Speed,
        Support,
        Transfer,
    )
    from dovetail.backends.kernels import KernelBackend, kernel
    from dovetail.backends.plugin.backend import PluginBackend, load_plugin
    from dovetail.backends.rendered import RendererBackend
    from dovetail.entries import BackendInfo
    from dovetail.errors import DovetailError
    from dovetail.ir import OpCall, Segment, TensorDesc
    from dovetail.names import BackendName
    from dovetail.passes import Pass, Passes, PassManager
    from dovetail.registry import (
        backend_info,
        backend_table,
        get_backend,
        list_backends,
        lookup_backend,
        register_backend,
        register_debug_backend,
        register_experimental_backend,
        registered_backend,
        reserved_names,
        set_default_backend,
    )
    from dovetail.report import Report, explain
    from dovetail.runtime.loaded import Loaded
    from dovetail.runtime.writes import refresh

__version__ = "0.1.0"

_HOME = {
    "Availability": "backend",
    "Backend": "backend",
    "Blob": "backend",
    "Executable": "backend",
    "Speed": "backend",
    "Support": "backend",
    "Transfer": "backend",
    "PluginBackend": "backends.plugin.backend",
    "load_plugin": "backends.plugin.backend",
    "BackendInfo": "entries",
    "DovetailError": "errors",
    "explain": "report",
    "Report": "report",
    "Artifact": "artifact",
    "export": "artifact",
    "OpCall": "ir",
    "Segment": "ir",
    "TensorDesc": "ir",
    "BackendName": "names",
    "Pass": "passes",
    "PassManager": "passes",
    "Passes": "passes",
    "refresh": "runtime.writes",
    "RendererBackend": "backends.rendered",
    "KernelBackend": "backends.kernels",
    "kernel": "backends.kernels",
    "Loaded": "runtime.loaded",
    "load": "artifact.load",
} | dict.fromkeys(
    (
        "backend_info",
        "backend_table",
        "get_backend",
        "list_backends",
        "lookup_backend",
        "register_backend",
        "register_debug_backend",
        "register_experimental_backend",
        "registered_backend",
        "reserved_names",
        "set_default_backend",
    ),
    "registry",
)

__all__ = [
    "Artifact",
    "Availability",
    "Backend",
    "BackendInfo",
    "BackendName",
    "Blob",
    "DovetailError",
    "Executable",
    "KernelBackend",
    "Loaded",
    "OpCall",
    "Pass",
    "PassManager",
    "Passes",
    "PluginBackend",
    "RendererBackend",
    "Report",
    "Segment",
    "Speed",
    "Support",
    "TensorDesc",
    "Transfer",
    "backend_info",
    "backend_table",
    "cache",
    "explain",
    "export",
    "get_backend",
    "kernel",
    "list_backends",
    "load",
    "load_plugin",
    "lookup_backend",
    "passes",
    "refresh",
    "register_backend",
    "register_debug_backend",
    "register_experimental_backend",
    "registered_backend",
    "reserved_names",
    "set_default_backend",
    "testing",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in ("cache", "errors", "history", "passes", "testing"):
        return import_module(f"dovetail.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'dovetail' has no attribute {name!r}")
    try:
        value = getattr(import_module(f"dovetail.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("dovetail."):
            raise
        raise AttributeError(
            f"dovetail.{name} is not part of dovetail-runtime, which loads and runs files: "
            "install dovetail"
        ) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _announce() -> None:
    """Make ``torch.compile(backend="dovetail")`` work from a source tree too.

    An installed dovetail is found by its metadata; a source tree has none. Nothing is imported
    for this until Dynamo is.
    """
    from functools import partial
    from importlib import import_module

    try:
        from dovetail.capture._torch.dynamo_registry import announce_backend
    except ModuleNotFoundError as error:
        if error.name != "dovetail.capture":
            raise
        return  # dovetail-runtime, which compiles nothing

    for name in (
        "aten",
        "cpu",
        "cuda",
        "dovetail",
        "onnxruntime",
        "opencl",
        "portable",
        "reference",
    ):
        make = partial(lambda name: import_module("dovetail.registry").announced(name), name)
        announce_backend(name, make, ())


_announce()
