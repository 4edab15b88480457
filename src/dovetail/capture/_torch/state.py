"""The state of process and thread that tracing and kernels depend on."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any


def autocast_is_on() -> bool:
    """Whether autocast is on for any device."""
    import torch

    return bool(torch._C._is_any_autocast_enabled())


_PRECISIONS = (
    *(("generic", "all"), ("mkldnn", "all"), ("mkldnn", "matmul"), ("mkldnn", "conv")),
    *(("mkldnn", "rnn"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn")),
)
_SWITCHES = {
    "attention": [
        *("flash_sdp_enabled", "mem_efficient_sdp_enabled", "math_sdp_enabled"),
        *("cudnn_sdp_enabled", "overrideable_sdp_enabled", "sdp_priority_order"),
        "math_sdp_allow_fp16_bf16_reduction",
    ],
    "libraries": [
        *("mkldnn_enabled", "mkldnn_deterministic", "nnpack_enabled", "cudnn_enabled"),
        *("cudnn_benchmark", "cudnn_deterministic", "linalg_preferred_backend"),
        "blas_preferred_backend",
    ],
    "reduced precision": [
        "cublas_allow_fp16_reduced_precision_reduction",
        "cublas_allow_bf16_reduced_precision_reduction",
        "cublas_allow_fp16_accumulation",
        "cpu_allow_fp16_reduced_precision_reduction",
    ],
}
_AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps")


def global_state() -> dict[str, str]:
    """The state of the process and thread that tracing and kernels depend on, by name."""
    import torch
    from torch.backends import mha, opt_einsum

    c = torch._C
    state = {
        "grad mode": f"{torch.is_grad_enabled()}, inference {torch.is_inference_mode_enabled()}",
        "autocast": _autocast_state(),
        "deterministic": f"{torch.are_deterministic_algorithms_enabled()}"
        f", warn only {torch.is_deterministic_algorithms_warn_only_enabled()}"
        f", fill {torch.utils.deterministic.fill_uninitialized_memory}",
        "default dtype": f"{torch.get_default_dtype()} on {torch.get_default_device()}",
        "matmul precision": _matmul_precision(),
        "tiny numbers": "flushed to zero" if sys.float_info.min / 4 == 0 else "kept",
        "einsum": f"{opt_einsum.enabled} {opt_einsum.strategy}, {mha.get_fastpath_enabled()}",
    }
    for name, switches in _SWITCHES.items():
        held = ((each, getattr(c, f"_get_{each}", None)) for each in switches)
        state[name] = ", ".join(f"{each} {get()}" for each, get in held if get is not None)
    return state


def _matmul_precision() -> str:
    import torch

    try:
        whole = torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set by backend, in ways that this getter has no word for
        whole = "mixed"
    each = (f", {b} {op} {torch._C._get_fp32_precision_getter(b, op)}" for b, op in _PRECISIONS)
    return f"{whole}{''.join(each)}"


def _autocast_state() -> str:
    import torch

    devices = _AUTOCAST_DEVICES
    on = [d for d in devices if autocast_is_on() and torch.is_autocast_enabled(d)]
    dtypes = ", ".join(f"{d} {str(torch.get_autocast_dtype(d))[6:]}" for d in devices)
    return f"{'on for ' + ' and '.join(on) if on else 'off'}; {dtypes}" + (
        "" if torch.is_autocast_cache_enabled() else "; no cache"
    )


def compiler_settings() -> str:
    """PyTorch's own settings of AOTAutograd and of symbolic shapes."""
    from torch._functorch import config as aot
    from torch.fx.experimental import _config as shapes

    held = {**aot.save_config_portable(), **shapes.save_config_portable()}
    return "\n".join(f"{name} = {value!r}" for name, value in sorted(held.items()))


def unseen_state() -> str:
    """What is active around a compilation that a graph does not show; empty: nothing."""
    import torch
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    modes = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    for mode in modes:
        if not type(mode).__module__.startswith(("torch.", f"{__package__}.")):
            return f"{type(mode).__qualname__} is active"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func is active"
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return "hooks on saved tensors are active"
    return ""


@contextlib.contextmanager
def no_dispatch_modes() -> Iterator[None]:
    """Outside of any fake or proxy mode: real tensors stay real."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield


@contextlib.contextmanager
def no_buffer_hooks_left() -> Iterator[None]:
    """Remove PyTorch's own hooks on assignments to buffers where what set them up failed.

    An export that fails in PyTorch 2.11 leaves one behind. Dynamo cannot trace it, and breaks
    every later graph of the process in which a module assigns to a buffer. Those of other threads
    stay: what is removed is what the functions that failed here still hold.
    """
    try:
        yield
    except BaseException as error:
        for handle in _buffer_hooks_held(error):
            handle.remove()
        raise


def _buffer_hooks_held(error: BaseException) -> Iterator[Any]:
    """Handles of PyTorch's own hooks on buffers, in the functions that an error went through."""
    from torch.nn.modules.module import _global_buffer_registration_hooks as hooks
    from torch.utils.hooks import RemovableHandle

    for frame in _frames(error):
        for held in frame.f_locals.values():
            if isinstance(held, RemovableHandle) and held.hooks_dict_ref() is hooks:
                if getattr(hooks.get(held.id), "__module__", "").startswith("torch."):
                    yield held


def _frames(error: BaseException) -> Iterator[FrameType]:
    """Every function call that an error ended, and those that it came of."""
    seen: list[BaseException] = []
    told: list[BaseException | None] = [error]
    while told:
        each = told.pop()
        if each is not None and each not in seen:
            seen.append(each)
            told += [each.__cause__, each.__context__]
            yield from (frame for frame, _ in traceback.walk_tb(each.__traceback__))
