"""Dynamo's registry of backends: our names in it, before and after it is imported."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from dovetail.locks import ForkLock

# Names that Dynamo's own modules register. Announcing one of these first would make Dynamo's
# import fail, so they are never ours to take. A test compares this with the installed torch.
DYNAMO_BACKENDS = frozenset(
    [
        "aot_eager",
        "aot_eager_decomp_partition",
        "aot_eager_decomp_partition_crossref",
        "aot_eager_decomp_partition_with_mode",
        "aot_eager_default_partitioner",
        "aot_ts",
        "cudagraphs",
        "dynamo_accuracy_minifier_backend",
        "dynamo_minifier_backend",
        "eager",
        "eager_debug",
        "eager_noexcept",
        "inductor",
        "invoke_subgraph",
        "non_leaf_compile_error_TESTING_ONLY",
        "onnxrt",
        "openxla",
        "openxla_eval",
        "pre_dispatch_eager",
        "relu_accuracy_error_TESTING_ONLY",
        "relu_compile_error_TESTING_ONLY",
        "relu_runtime_error_TESTING_ONLY",
        "tensorrt",
        "ts",
        "tvm",
    ]
)
_DYNAMO_REGISTRY = "torch._dynamo.backends.registry"
_lock = ForkLock()
_waiting: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {}
_announced: dict[str, Any] = {}  # what we registered with Dynamo, so that nothing else is undone


def is_installed() -> bool:
    """Whether there is a torch to import; nothing is imported to find out."""
    return "torch" in sys.modules or importlib.util.find_spec("torch") is not None


def announce_backend(name: str, make: Callable[[], Any], tags: tuple[str, ...]) -> None:
    """Let ``torch.compile(backend=name)`` find a backend, now or as soon as Dynamo is imported."""
    if name in DYNAMO_BACKENDS:
        return
    if _DYNAMO_REGISTRY in sys.modules and not _hook.waits_for_import:
        importlib.import_module(_DYNAMO_REGISTRY)  # another thread may be half way through it
    with _lock:
        if _DYNAMO_REGISTRY in sys.modules and not _hook.waits_for_import:
            _register_with_dynamo(name, make, tags)
        else:
            _waiting[name] = (make, tags)
            _hook.install()


def withdraw_backend(name: str) -> None:
    """Undo ``announce_backend``; what others registered with Dynamo stays."""
    with _lock:
        _waiting.pop(name, None)
        ours, registry = _announced.pop(name, None), sys.modules.get(_DYNAMO_REGISTRY)
        if ours is None or registry is None or registry._COMPILER_FNS.get(name) is not ours:
            return
        del registry._COMPILER_FNS[name]
        if registry._BACKENDS.get(name) is None:  # else an entry point, which is not ours
            registry._BACKENDS.pop(name, None)


def lookup_dynamo_backend(name: str) -> Callable[..., Any] | None:
    """The compiler function Dynamo knows by this name, or None."""
    try:
        from torch._dynamo.backends.registry import lookup_backend
        from torch._dynamo.exc import InvalidBackend
    except ImportError:
        return None
    try:
        return lookup_backend(name)  # type: ignore[no-any-return]
    except InvalidBackend:
        return None


def loaded_dynamo_backend(name: str) -> Callable[..., Any] | None:
    """The compiler function Dynamo holds by this name already; nothing is imported to find out."""
    registry = sys.modules.get(_DYNAMO_REGISTRY)
    found: Callable[..., Any] | None = getattr(registry, "_COMPILER_FNS", {}).get(name)
    return found


def known_dynamo_backends() -> frozenset[str]:
    """The names Dynamo has, if it is imported; nothing is imported to find out."""
    names = getattr(sys.modules.get(_DYNAMO_REGISTRY), "_BACKENDS", ())
    return frozenset(name for name in names if not name.endswith("_TESTING_ONLY"))


def _register_with_dynamo(name: str, make: Callable[[], Any], tags: tuple[str, ...]) -> None:
    registry = sys.modules[_DYNAMO_REGISTRY]
    # An entry point Dynamo has found is about to be loaded by Dynamo, perhaps right now.
    if name not in registry._COMPILER_FNS and registry._BACKENDS.get(name) is None:
        _announced[name] = registry.register_backend(make(), name=name, tags=tags)


class _DynamoImportHook:
    """Registers what waits once Dynamo's registry has been imported, then steps aside.

    A finder of ``sys.meta_path``. Its base class is left out, as ``importlib.abc`` takes longer to
    import than loading a file does.
    """

    waits_for_import = False

    def install(self) -> None:
        if not self.waits_for_import:
            self.waits_for_import = True
            sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != _DYNAMO_REGISTRY:
            return None
        others = (finder for finder in list(sys.meta_path) if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((found for found in specs if found is not None), None)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_then_register(module: Any) -> None:
            execute(module)  # when this raises we stay, for the next attempt
            self.step_aside()

        spec.loader.exec_module = execute_then_register  # type: ignore[method-assign]
        return spec

    def step_aside(self) -> None:
        with _lock:
            self.waits_for_import = False
            with contextlib.suppress(ValueError):
                sys.meta_path.remove(self)
            while _waiting:
                name, (make, tags) = _waiting.popitem()
                _register_with_dynamo(name, make, tags)


_hook = _DynamoImportHook()
