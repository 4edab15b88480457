"""Training graphs from the cache: what AOTAutograd does around them, as JSON and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.capture._torch.aot_autograd import boxed

# What AOTAutograd notes for tracing or for messages alone, and donated buffers: our code donates
# nothing, and without them a backward may always keep its graph.
_NOT_RUN = frozenset(
    [
        *("traced_tangents", "traced_tangents_descs", "traced_tangent_metas", "output_types"),
        *("subclass_inp_meta", "subclass_fw_graph_out_meta", "static_input_indices"),
        *("bw_donated_idxs", "compile_id_str", "tangent_source_stack_traces"),
    ]
)
_MEMORY_FORMATS = ("contiguous_format", "channels_last", "channels_last_3d")


def can_restore_training() -> bool:
    """Whether this PyTorch runs training graphs as ``restored_training`` expects, and here."""
    from torch._dynamo import compiled_autograd, config
    from torch._functorch import config as aot
    from torch._functorch._aot_autograd import runtime_wrappers
    from torch._guards import TracingContext

    known = hasattr(runtime_wrappers, "AOTDispatchAutogradCompileSpec")  # since 2.13
    context = TracingContext.try_get()
    splits = getattr(context, "ddp_optimizer_ctx", None) is not None
    retraced = config.compiled_autograd or compiled_autograd.compiled_autograd_enabled
    return known and context is not None and not (splits or retraced or aot.debug_assert)


def training_plan(gradients: Sequence[Any]) -> dict[str, Any] | None:
    """What AOTAutograd does around the training graphs being compiled, as JSON.

    ``gradients`` are the outputs of the backward graph. None where AOTAutograd does anything that
    the plan does not say: the plan is made into AOTAutograd's own description of it again, and
    every field of that has to be as it was.
    """
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    found = getattr(context, "fw_metadata", None)
    guarded = found is not None and context.guards_context.aotautograd_guards
    if found is None or guarded or not can_restore_training():
        return None
    inputs = [[name for name, holds in vars(i).items() if holds is True] for i in found.input_info]
    unused = [n for n, gradient in enumerate(gradients) if gradient is None]
    pairs = enumerate(found.input_info)
    non_leaves = {n for n, info in pairs if info.requires_grad and not info.is_leaf}
    plan = {
        "inputs": inputs,
        "outputs": [_output_plan(info) for info in found.output_info],
        "tangents": [_layout_plan(meta) for meta in found.subclass_tangent_meta],
        "detached": [n for n in unused if n in non_leaves],
        "unchecked": found.num_tensors_saved_with_no_vc_check,
        "sizes": found.num_symints_saved_for_bw,
        "varying": [[n, sorted(dims)] for n, dims in found.dynamic_saved_tensors_idxs.items()],
        "deterministic": found.deterministic,
    }
    return plan if _is_as_planned(plan, found, len(gradients)) else None


def _output_plan(info: Any) -> list[Any]:
    """What becomes of an output, whether it needs a gradient, and which of its sizes vary.

    None in their place: it is a size.
    """
    import torch

    dims = sorted(info.dynamic_dims or ()) if issubclass(info.raw_type, torch.Tensor) else None
    return [info.output_type.name, info.requires_grad, dims]


def _layout_plan(meta: Any) -> Any:
    """How a tangent is to lie in memory: a format's name, or sizes and strides."""
    layout = getattr(meta, "memory_format", None)
    if layout is None:
        return None
    if layout.memory_format is not None:
        return str(layout.memory_format).removeprefix("torch.")
    return [list(layout.size), list(layout.stride)]


def _is_as_planned(plan: dict[str, Any], found: Any, gradients: int) -> bool:
    """Whether AOTAutograd does what the plan says and nothing else."""
    import torch
    from torch._functorch._aot_autograd.schemas import PlainTensorMeta

    try:
        planned = _training_metadata(plan)
    except (ValueError, TypeError, KeyError, AssertionError):  # what a plan has no words for
        return False
    kinds = (*found.subclass_inp_meta, *found.subclass_fw_graph_out_meta)
    plain = all(type(kind) is PlainTensorMeta for kind in kinds)
    known = (torch.Tensor, torch.SymInt, int)
    tensors = all(issubclass(info.raw_type, known) for info in found.output_info)
    ours, theirs = dict(vars(planned)), dict(vars(found))
    for held in (ours, theirs):
        outputs = [(o.output_type, o.base_idx, o.requires_grad) for o in held["output_info"]]
        further = [(o.requires_grad_for_backward, o.dynamic_dims) for o in held["output_info"]]
        held["output_info"] = [outputs, [(grad, dims or None) for grad, dims in further]]
        held["mutated_inp_stream_indices"] = held["mutated_inp_stream_indices"] or None
    same = ours.keys() == theirs.keys() and all(
        name in _NOT_RUN or ours[name] == theirs[name] for name in ours
    )
    written = found.num_mutated_inp_runtime_indices  # what is written outside of the graph
    return plain and tensors and same and not written and len(found.input_info) == gradients


def _training_metadata(plan: Mapping[str, Any]) -> Any:
    """AOTAutograd's description of what a plan says; an error where it says nothing sensible."""
    from dataclasses import fields

    import torch
    from torch._functorch._aot_autograd import schemas

    words = [field.name for field in fields(schemas.InputAliasInfo)]
    if unknown := {word for each in plan["inputs"] for word in each}.difference(words):
        raise ValueError(f"an input that is {unknown}")
    kinds = {kind.name: kind for kind in schemas.OutputType}
    outputs = [(kinds[str(kind)], bool(grad), dims) for kind, grad, dims in plan["outputs"]]
    if any(kind.name not in ("non_alias", "unsafe_view_alias") for kind, *_ in outputs):
        raise ValueError("an output that is an alias")
    count = len(plan["tangents"])
    deterministic = plan["deterministic"]
    made = schemas.ViewAndMutationMeta(
        input_info=[
            schemas.InputAliasInfo(**{word: word in each for word in words})
            for each in plan["inputs"]
        ],
        output_info=[
            schemas.OutputAliasInfo(
                output_type=kind,
                raw_type=int if dims is None else torch.Tensor,
                base_idx=None,
                dynamic_dims=set(map(int, dims)) if dims else None,
                requires_grad=grad,
                requires_grad_for_backward=grad,
            )
            for kind, grad, dims in outputs
        ],
        num_intermediate_bases=0,
        keep_input_mutations=True,
        traced_tangents=[],
        traced_tangents_descs=[None] * count,
        subclass_inp_meta=[],
        subclass_fw_graph_out_meta=[],
        subclass_tangent_meta=[
            schemas.PlainTensorMeta(n, memory_format=_planned_layout(layout))
            for n, layout in enumerate(plan["tangents"])
        ],
        num_symints_saved_for_bw=int(plan["sizes"]),
        num_tensors_saved_with_no_vc_check=int(plan["unchecked"]),
        num_opaque_objects_saved_for_bw=0,
        deterministic=None if deterministic is None else bool(deterministic),
        bw_donated_idxs=[],
    )
    made.dynamic_saved_tensors_idxs = {int(n): set(map(int, dims)) for n, dims in plan["varying"]}
    return made


def _planned_layout(layout: Any) -> Any:
    import torch
    from torch._functorch._aot_autograd.schemas import MemoryFormatMeta

    if isinstance(layout, str):
        if layout not in _MEMORY_FORMATS:
            raise ValueError(f"a gradient in {layout}")
        return MemoryFormatMeta(memory_format=getattr(torch, layout))
    size, stride = layout
    return MemoryFormatMeta(size=tuple(map(int, size)), stride=tuple(map(int, stride)))


def restored_training(
    plan: Mapping[str, Any], forward: Callable[..., Any], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """The function of a Dynamo graph from its compiled training graphs and their plan.

    AOTAutograd's own code runs them, as if it had just traced them.
    """
    from torch._dynamo import disable
    from torch._functorch._aot_autograd import runtime_wrappers
    from torch._functorch._aot_autograd.schemas import AOTConfig
    from torch._functorch.aot_autograd import AOT_COUNTER

    nothing = dict.fromkeys(("fw_compiler", "bw_compiler", "partition_fn", "decompositions"))
    spec = runtime_wrappers.AOTDispatchAutogradCompileSpec(
        compiled_fw_func=boxed(forward),
        compiled_bw_func=boxed(disable(backward, reason="it is compiled")),
        maybe_subclass_meta=None,
        num_symints_saved_for_bw=int(plan["sizes"]),
        backward_state_indices=[],
        disable_amp=False,
        indices_of_inps_to_detach=[int(n) for n in plan["detached"]],
        lazy_backward_info=runtime_wrappers.CachedAutogradLazyBackwardCompileInfo(_no_graph),
        bw_compiler=None,
        aot_config=AOTConfig(
            **nothing,
            num_params_buffers=0,
            aot_id=next(AOT_COUNTER),
            keep_inference_input_mutations=True,
        ),
        fw_metadata=_training_metadata(plan),
        try_save_cache_entry=None,
    )
    run = runtime_wrappers.AOTDispatchAutograd.post_compile(spec)
    return lambda *args: run([*args])


def _no_graph() -> Any:
    from dovetail.errors import UnsupportedGraph

    raise UnsupportedGraph(
        "compiled autograd needs the graph of a backward that was found compiled in the cache: "
        'turn compiled autograd on before the model is compiled, or pass options={"cache": False}'
    )
