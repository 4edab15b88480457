"""AOTAutograd: how it traces and partitions, and what it says of the graph being compiled."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any


def aot_autograd(**compilers: Any) -> Callable[..., Any]:
    """AOTAutograd as a Dynamo backend: functionalise, differentiate, partition, call compilers.

    In-place writes to inputs are kept as ``copy_`` at the end of the graph.
    """
    compilers["keep_inference_input_mutations"] = True

    def call(gm: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        nested = any(isinstance(x, list | tuple | dict) for x in inputs)
        keeps = not isinstance(compilers["fw_compiler"], FunctionType)
        if nested or keeps or os.environ.get("TORCH_COMPILE_DEBUG", "0") == "1":
            from torch._dynamo.backends.common import aot_autograd as build

            return build(**compilers)(gm, inputs)  # type: ignore[no-any-return]
        return _aot_autograd(gm, inputs, **compilers)

    return call


def _aot_autograd(gm: Any, inputs: Sequence[Any], **compilers: Any) -> Callable[..., Any]:
    """What PyTorch's own backend does for flat inputs and plain functions.

    That imports Inductor's scheduler, for a log that is off.
    """
    from torch._dynamo import disable
    from torch._dynamo.utils import counters
    from torch._functorch.aot_autograd import aot_module_simplified

    forward = compilers["fw_compiler"]
    compile_backward = compilers.get("bw_compiler", forward)

    def backward(*args: Any) -> Any:
        compile_ = disable(compile_backward, reason="it compiles")
        return disable(compile_(*args), reason="it is compiled")

    counts = counters["aot_autograd"]
    counts["total"] += 1
    compilers = {"inference_compiler": forward, **compilers, "bw_compiler": backward}
    try:
        compiled = aot_module_simplified(gm, inputs, **compilers)
    except Exception:
        counts["not_ok"] += 1
        raise
    counts["ok"] += 1
    return disable(compiled, reason="it is compiled")  # type: ignore[no-any-return]


def keep_random_draws() -> Any:
    """Within the context, PyTorch's own passes keep random operators whose result is unused.

    Without them the generator would be elsewhere than in eager for whatever is drawn next.
    """
    from torch._inductor import config

    return config.patch(fallback_random=True)


def static_input_positions() -> frozenset[int]:
    """Positions of parameters and buffers among the inputs of the graph being compiled."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    return frozenset(getattr(metadata, "static_input_indices", None) or ())


def inputs_written_later(gm: Any) -> list[Any]:
    """Inputs of a forward graph that AOTAutograd writes to once it ran: it returns their values."""
    described = gm.graph.output_node().meta.get("desc") or ()
    written = [getattr(each, "mutated_input", None) for each in described]
    inputs = gm.graph.find_nodes(op="placeholder")
    return [node for node in inputs if node.meta.get("desc", node) in written]


def input_label(node: Any, names: Sequence[str]) -> str:
    """What a user calls an input of a functional graph whose Dynamo graph has these inputs."""
    described = node.meta.get("desc")
    target, index = getattr(described, "target", None), getattr(described, "idx", None)
    if isinstance(target, str):
        return target
    return names[index] if isinstance(index, int) and index < len(names) else str(node.name)


def inference_is_plain() -> bool:
    """Whether AOTAutograd's own wrapper would do nothing for the inference graph being compiled.

    That is so when no input is written, no output is an alias of one, nothing is a tensor
    subclass, and grad mode does not change. False wherever that cannot be known. (It also marks
    outputs whose sizes vary, as ``without_grad`` does.)
    """
    from torch._functorch._aot_autograd.schemas import PlainTensorMeta
    from torch._guards import TracingContext

    found = getattr(TracingContext.try_get(), "fw_metadata", None)
    if found is None:
        return False
    written = any(info.mutates_data or info.mutates_metadata for info in found.input_info)
    aliased = found.num_outputs_aliased or found.num_intermediate_bases
    special = found.is_rng_op_functionalized or found.tokens
    kinds = (*found.subclass_inp_meta, *found.subclass_fw_graph_out_meta)
    plain = all(isinstance(kind, PlainTensorMeta) for kind in kinds)
    same_mode = found.grad_enabled_mutation is None
    return plain and same_mode and not (written or aliased or special)


def without_grad(
    run: Callable[[list[Any]], Any], varying: Mapping[int, set[int]] | None = None
) -> Callable[..., Any]:
    """A function of one list as one of its items, called with grad mode off.

    ``varying`` are dimensions of outputs whose sizes vary: Dynamo is told, for graphs that take
    them as inputs.
    """
    import torch

    is_enabled, enable = torch.is_grad_enabled, torch._C._set_grad_enabled

    def call(*args: Any) -> Any:
        if not is_enabled():
            return run([*args])
        enable(False)
        try:
            return run([*args])
        finally:
            enable(True)

    return _marking(call, varying) if varying else call


def _marking(call: Callable[..., Any], varying: Mapping[int, set[int]]) -> Callable[..., Any]:
    from torch._functorch._aot_autograd import runtime_wrappers

    guarded = not hasattr(runtime_wrappers, "mark_dynamo_propagated_dynamic_indices")
    name = f"_dynamo_{'weak' if guarded else 'propagated'}_dynamic_indices"  # weak before 2.13

    def marked(*args: Any) -> Any:
        results = call(*args)
        for n, dims in varying.items():
            setattr(results[n], name, getattr(results[n], name, set()) | dims)
        return results

    return marked


def boxed(fn: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Mark a function as taking one list of inputs, which it may empty to free them early."""
    from torch._functorch.aot_autograd import make_boxed_func  # noqa: F401 - fails when it moves

    fn._boxed_call = True  # type: ignore[attr-defined]
    return fn
