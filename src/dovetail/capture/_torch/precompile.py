"""What PyTorch's precompile and ``aot_compile`` keep, to start without a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


def precompile_missing() -> str:
    """Why this PyTorch cannot restore a backend's code without a trace; empty: it can."""
    import torch

    try:
        from torch._dynamo.aot_compile_types import SerializableCallable  # noqa: F401
        from torch._dynamo.package import DiskDynamoCache  # noqa: F401
        from torch._dynamo.precompile_context import BackendCacheArtifact  # noqa: F401
    except ImportError:
        return f"PyTorch {torch.__version__} has no interface for it; 2.13 does"
    return ""


def is_precompiling() -> bool:
    """Whether ``TORCH_CACHING_PRECOMPILE`` is on: Dynamo keeps its code for the next process."""
    from torch._dynamo import config

    return bool(getattr(config, "caching_precompile", False))


def is_aot_compiling() -> bool:
    """Whether the graph being compiled is for ``torch.compile(…).aot_compile(…)``."""
    from torch._functorch import config

    return bool(getattr(config, "force_autograd_cache", False))


def precompile_id(gm: Any) -> str | None:
    """The name under which Dynamo's entry looks for the code of a Dynamo graph."""
    return getattr(gm, "_backend_id", None)


def keep_artifact(key: str, content: bytes, restore: Callable[..., Any]) -> None:
    """Keep code for Dynamo's entry; reading it back calls ``restore(key, content)``."""
    from torch._dynamo.precompile_context import PrecompileContext

    PrecompileContext.record_artifact(precompile_artifact(key, content, restore))


def is_kept(key: str) -> bool:
    """Whether there is code for Dynamo's entry under this name."""
    from torch._dynamo.precompile_context import PrecompileContext

    return PrecompileContext.serialize_artifact_by_key(key) is not None


def precompile_artifact(
    key: str, content: bytes, restore: Callable[..., Any], call: Callable[..., Any] | None = None
) -> Any:
    """Code as Dynamo's entry holds it: bytes, and once they were read the function to call.

    ``restore`` is named in Dynamo's entry, which PyTorch pickles.
    """
    from torch._dynamo.precompile_context import BackendCacheArtifact

    class PrecompiledArtifact(BackendCacheArtifact):  # type: ignore[misc]
        def after_deserialization(self) -> Any:
            return call

        def __reduce__(self) -> tuple[Any, ...]:
            return restore, (self.key, self.content)

        def __deepcopy__(self, memo: Any) -> Any:
            return self

    return PrecompiledArtifact(key, content)


@contextlib.contextmanager
def bundling() -> Iterator[None]:
    """Within the context, AOTAutograd's result holds its compiled graphs and can be kept.

    Its own cache is asked under a key that Inductor's entries do not have, and may fail.
    """
    from torch._functorch import config

    changed = {
        "bypass_autograd_cache_key": True,
        "force_non_lazy_backward_lowering": True,
        "strict_autograd_cache": False,
    }
    with config.patch(changed):
        yield


def output_code_compiler(compiler: Callable[..., Any]) -> Any:
    """A compiler of functional graphs whose results AOTAutograd can keep: ``output_code``."""
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
    from torch._inductor.output_code import OutputCode

    return SerializableAOTDispatchCompiler(OutputCode, compiler)


def output_code(run: Callable[[list[Any]], Any], reduced: Callable[[], tuple[Any, ...]]) -> Any:
    """A function of one list that AOTAutograd can keep: pickled, it is what ``reduced`` says."""
    from torch._inductor.output_code import OutputCode

    class RunnableCode(OutputCode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._boxed_call = True  # in its __dict__, which AOTAutograd's wrappers copy

        def __call__(self, inputs: Any) -> Any:
            return run(inputs)

        def prepare_for_serialization(self) -> None:
            """It is bytes already."""

        def post_compile(self, *_: Any) -> None:
            """It was linked when it was read."""

        def set_triton_bundle(self, triton_bundle: Any) -> None:
            """There is no Triton."""

        def __reduce__(self) -> tuple[Any, ...]:
            return reduced()

        def __copy__(self) -> Any:
            return self

        def __deepcopy__(self, memo: Any) -> Any:
            return self

    return RunnableCode()


def declare_serializable(cls: type) -> None:
    """Let ``aot_compile`` take results of this class."""
    from torch._dynamo.aot_compile_types import SerializableCallable

    SerializableCallable.register(cls)


def forget_entries(function: Callable[..., Any]) -> None:
    """Take out code that was restored for a function earlier in this process.

    It belongs to the code object, whatever ``torch.compile`` is asked for later; for modules of
    PyTorch's own, to that of the function that Dynamo wraps them in.
    """
    from torch._C._dynamo.eval_frame import _reset_precompile_entries
    from torch._dynamo.external_utils import wrap_inline

    inner = (each for each in wrap_inline.__code__.co_consts if hasattr(each, "co_code"))
    for code in (getattr(function, "__code__", None), *inner):
        if code is not None:
            _reset_precompile_entries(code)


def names_given() -> int:
    """How many names Dynamo has numbered so far, for variables that it adds to modules."""
    import copy

    from torch._dynamo import bytecode_transformation

    return int(next(copy.copy(bytecode_transformation._unique_id_counter)))


def skip_names(count: int) -> None:
    """Have Dynamo number its names from here on, at least.

    An entry adds variables to modules under the numbers of the process that made it. A trace that
    comes to the same number would fail.
    """
    import itertools

    from torch._dynamo import bytecode_transformation

    if count > names_given():
        bytecode_transformation._unique_id_counter = itertools.count(count)
