"""Every private PyTorch interface that dovetail touches, one function each.

PyTorch's compiler internals move between releases. They are reached from here alone, imported
inside the function that needs them, and ``tests/capture/test_torch_interfaces.py`` exercises each
so that a move shows as one clear failure. Importing this module imports nothing of torch.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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

# ---- Dynamo's registry -----------------------------------------------------------------------

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


def pass_through_dynamo(error: Exception) -> Exception:
    """``error`` as Dynamo lets it through: the user sees our class, not BackendCompilerFailed.

    It is a copy: whoever holds the error itself, a backend's author say, keeps it as it was.
    """
    cls = _let_through(type(error))
    if isinstance(error, cls):
        return error
    copy: Exception = cls.__new__(cls, *error.args)
    copy.__dict__.update(error.__dict__)
    return copy.with_traceback(error.__traceback__)


_classes_let_through: dict[type[Exception], type[Exception]] = {}


def _let_through(cls: type[Exception]) -> type[Exception]:
    """A class of errors that Dynamo does not wrap, of the same name; one for each."""
    from torch._dynamo.exc import ShortenTraceback

    if issubclass(cls, ShortenTraceback):
        return cls
    own = {"__module__": cls.__module__, "__doc__": cls.__doc__, "first_useful_frame": None}
    both = type(cls.__name__, (cls, ShortenTraceback), own)
    return _classes_let_through.setdefault(cls, both)


# ---- AOTAutograd -------------------------------------------------------------------------------


def aot_autograd(**compilers: Any) -> Callable[..., Any]:
    """AOTAutograd as a Dynamo backend: functionalise, differentiate, partition, call compilers.

    In-place writes to inputs are kept as ``copy_`` at the end of the graph.
    """
    from torch._dynamo.backends.common import aot_autograd as build

    return build(keep_inference_input_mutations=True, **compilers)  # type: ignore[no-any-return]


def keep_random_draws() -> Any:
    """Within the context, PyTorch's own passes keep random operators whose result is unused.

    Without them the generator would be elsewhere than in eager for whatever is drawn next.
    """
    from torch._inductor import config

    return config.patch(fallback_random=True)


def whole_upsampling() -> Any:
    """Within the context, autograd sees upsampling as operators with gradients of their own.

    Otherwise PyTorch's Python dispatcher takes them apart before autograd, and the gradients add up
    at indices, one by one. The context is the thread's own, as that dispatcher is.
    """
    import torch
    from torch._dispatch.python import no_python_dispatcher
    from torch.overrides import TorchFunctionMode

    aten, interpolate = torch.ops.aten, torch.nn.functional.interpolate
    packets = [getattr(aten, name) for name in _UPSAMPLING]
    operators = {getattr(torch._C._nn, name, None) for name in _UPSAMPLING} - {None}
    operators |= {*packets, *(op for packet in packets for op in (packet.default, packet.vec))}

    class WholeUpsampling(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            kwargs = kwargs or {}
            whole = func in operators or (func is interpolate and _stays_whole(kwargs))
            with no_python_dispatcher() if whole else contextlib.nullcontext():
                return func(*args, **kwargs)

    return WholeUpsampling()


_UPSAMPLING = (
    *(f"upsample_nearest{n}d" for n in (1, 2, 3)),
    *(f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"),
)
_WHOLE_MODES = frozenset({"nearest", "nearest-exact", "linear", "bilinear", "trilinear"})


def _stays_whole(options: Mapping[str, Any]) -> bool:
    """Whether ``interpolate`` calls an operator of ``_UPSAMPLING``; PyTorch passes on keywords."""
    return options.get("mode", "nearest") in _WHOLE_MODES and not options.get("antialias")


def min_cut_partition(joint: Any, inputs: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Forward and backward graph from a joint graph, saving as little as possible between."""
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    # Joint passes have merged common subexpressions; PyTorch's own step, which they would go
    # through again, imports half of Inductor.
    with config.patch(cse=False):
        return min_cut_rematerialization_partition(joint, inputs, **kwargs)  # type: ignore[no-any-return]


def static_input_positions() -> frozenset[int]:
    """Positions of parameters and buffers among the inputs of the graph being compiled."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    return frozenset(getattr(metadata, "static_input_indices", None) or ())


def size_guards() -> object:
    """What is known of symbolic sizes so far: it differs once something is decided by a size."""
    from torch._guards import TracingContext

    env = getattr(getattr(TracingContext.try_get(), "fake_mode", None), "shape_env", None)
    if env is None:
        return None
    return len(env.guards), dict(env.replacements), dict(env.var_to_range)


def input_names(gm: Any) -> list[str]:
    """What a user calls each input of a Dynamo graph: ``0.weight``, or the name in the graph."""
    nodes = gm.graph.find_nodes(op="placeholder")
    sources = [getattr(node.meta.get("grapharg"), "source", None) for node in nodes]
    found = [_module_path(source) for source in sources]
    return [path or node.name for path, node in zip(found, nodes, strict=True)]


def _module_path(source: Any) -> str:
    """The path of a parameter or buffer in its module, from where Dynamo found it."""
    name = getattr(source, "name", "")
    text = str(name() if callable(name) else name)  # a method before PyTorch 2.10
    return ".".join(re.findall(r"_(?:modules|parameters|buffers)\['([^']+)'\]", text))


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
    subclass, and grad mode does not change. False wherever that cannot be known.
    """
    from torch._functorch._aot_autograd.schemas import PlainTensorMeta
    from torch._guards import TracingContext

    found = getattr(TracingContext.try_get(), "fw_metadata", None)
    if found is None:
        return False
    written = any(info.mutates_data or info.mutates_metadata for info in found.input_info)
    aliased = found.num_outputs_aliased or found.num_intermediate_bases
    special = found.dynamic_outputs or found.is_rng_op_functionalized or found.tokens
    kinds = (*found.subclass_inp_meta, *found.subclass_fw_graph_out_meta)
    plain = all(isinstance(kind, PlainTensorMeta) for kind in kinds)
    same_mode = found.grad_enabled_mutation is None
    return plain and same_mode and not (written or aliased or special)


def autocast_is_on() -> bool:
    """Whether autocast is on for any device."""
    import torch

    return bool(torch._C._is_any_autocast_enabled())


def without_grad(run: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    """A function of one list as one of its items, called with grad mode off."""
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

    return call


def boxed(fn: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Mark a function as taking one list of inputs, which it may empty to free them early."""
    from torch._functorch.aot_autograd import make_boxed_func  # noqa: F401 - fails when it moves

    fn._boxed_call = True  # type: ignore[attr-defined]
    return fn


# ---- training graphs from the cache ------------------------------------------------------------

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
        "outputs": [[o.output_type.name, o.requires_grad] for o in found.output_info],
        "tangents": [_layout_plan(meta) for meta in found.subclass_tangent_meta],
        "detached": [n for n in unused if n in non_leaves],
        "unchecked": found.num_tensors_saved_with_no_vc_check,
        "deterministic": found.deterministic,
    }
    return plan if _is_as_planned(plan, found, len(gradients)) else None


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
    tensors = all(issubclass(info.raw_type, torch.Tensor) for info in found.output_info)
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
    outputs = [(kinds[str(kind)], bool(grad)) for kind, grad in plan["outputs"]]
    if any(kind.name not in ("non_alias", "unsafe_view_alias") for kind, _ in outputs):
        raise ValueError("an output that is an alias")
    count = len(plan["tangents"])
    deterministic = plan["deterministic"]
    return schemas.ViewAndMutationMeta(
        input_info=[
            schemas.InputAliasInfo(**{word: word in each for word in words})
            for each in plan["inputs"]
        ],
        output_info=[
            schemas.OutputAliasInfo(
                output_type=kind,
                raw_type=torch.Tensor,
                base_idx=None,
                dynamic_dims=None,
                requires_grad=grad,
                requires_grad_for_backward=grad,
            )
            for kind, grad in outputs
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
        num_symints_saved_for_bw=0,
        num_tensors_saved_with_no_vc_check=int(plan["unchecked"]),
        num_opaque_objects_saved_for_bw=0,
        deterministic=None if deterministic is None else bool(deterministic),
        bw_donated_idxs=[],
    )


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
        num_symints_saved_for_bw=0,
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


# ---- decompositions ----------------------------------------------------------------------------


def core_aten_decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's own table from ATen to core ATen, for what is left once autograd was applied.

    That takes composite operators apart, unless they have kernels of their own. PyTorch's function
    of this name lists the others too, which takes it a tenth of a second; export alone needs them
    (``composite_operators``).
    """
    from torch._decomp import _core_aten_decompositions_post_autograd
    from torch._export.utils import _get_decomp_for_cia, _is_preservable_cia_op
    from torch.export.decomp_utils import PRESERVED_ATEN_CIA_OPS

    table = dict(_core_aten_decompositions_post_autograd())
    for op in _composites_with_kernels():
        if op not in table and op not in PRESERVED_ATEN_CIA_OPS and _is_preservable_cia_op(op):
            table[op] = _get_decomp_for_cia(op)
    return table


def _composites_with_kernels() -> Iterator[Any]:
    """Composite operators, defined as such in C++ or in Python, that a device has a kernel for."""
    import torch
    from torch._decomp import decomposition_table

    registered = torch._C._dispatch_get_registrations_for_dispatch_key
    composite = set(registered("CompositeImplicitAutograd"))
    for name in composite & {name for key in _DEVICE_KEYS for name in registered(key)}:
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        yield getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    yield from (op for op in decomposition_table if key in op.py_kernels)


# Dispatch keys of devices whose dense tensors torch.compile may meet.
_DEVICE_KEYS = ("CPU", "CUDA", "XPU", "MPS", "HPU", "MTIA", "XLA", "PrivateUse1", "Meta")


def export_composites() -> dict[Any, Callable[..., Any]]:
    """What core ATen has for composite operators beyond ``core_aten_decompositions``."""
    from torch.export.decomp_utils import PRESERVED_ATEN_CIA_OPS

    found = (op for op in composite_operators() if op not in PRESERVED_ATEN_CIA_OPS)
    return {op: composite_decomposition(op) for op in found}


def named_decompositions(names: Iterable[str]) -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of ATen operators, by name; those it has none for are left out."""
    import torch
    from torch._decomp import decomposition_table

    found = {}
    for name in names:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            op = getattr(packet, overload)
            if op in decomposition_table:
                found[op] = decomposition_table[op]
    return found


def keep_composites(rules: Mapping[Any, Callable[..., Any]]) -> Any:
    """Within the context, each composite operator is decomposed by its rule.

    A rule that returns NotImplemented leaves the operator whole. Autograd does not see through
    an operator kept whole, so this is for inference graphs.
    """
    from torch.export.exported_program import _override_composite_implicit_decomp

    return _override_composite_implicit_decomp(dict(rules))


def composite_decomposition(op: Any) -> Callable[..., Any]:
    """The decomposition a composite operator has by default."""
    from torch._export.utils import _get_decomp_for_cia

    return _get_decomp_for_cia(op)  # type: ignore[no-any-return]


@functools.cache
def correct_lstm() -> None:
    """Give the final states of a decomposed LSTM eager's shape, for the rest of the process.

    PyTorch 2.11 takes the wrong one of two dimensions of one away, in one function for all that
    take an LSTM apart. Where the shape is right, the function that stands in for it adds nothing.
    """
    from torch._decomp import decompositions

    layer = decompositions.one_layer_lstm

    @functools.wraps(layer)
    def corrected(inp: Any, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        out, final = layer(inp, hidden, *args, **kwargs)
        pairs = zip(final, hidden, strict=True)
        return out, tuple(f if f.dim() == h.dim() else f.view(h.shape) for f, h in pairs)

    decompositions.one_layer_lstm = corrected


def composite_operators() -> list[Any]:
    """Every operator that PyTorch defines by others and can decompose safely."""
    from torch._export.utils import _collect_all_valid_cia_ops

    return sorted(_collect_all_valid_cia_ops(), key=str)


# ---- starting without a trace ------------------------------------------------------------------


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

    class Artifact(BackendCacheArtifact):  # type: ignore[misc]
        def after_deserialization(self) -> Any:
            return call

        def __reduce__(self) -> tuple[Any, ...]:
            return restore, (self.key, self.content)

        def __deepcopy__(self, memo: Any) -> Any:
            return self

    return Artifact(key, content)


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

    class Code(OutputCode):  # type: ignore[misc]
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

    return Code()


def declare_serializable(cls: type) -> None:
    """Let ``aot_compile`` take results of this class."""
    from torch._dynamo.aot_compile_types import SerializableCallable

    SerializableCallable.register(cls)


class Asked(NamedTuple):
    """The call of ``torch.compile`` for which PyTorch reads an entry."""

    function: Callable[..., Any]  # what is compiled, a method of its module mostly
    compiler: Any  # what ``backend=`` stands for
    options: dict[str, Any]  # and its keyword arguments


def asked_for() -> Asked | None:
    """Which call of ``torch.compile`` reads an entry right now, from the frames; None: none does.

    PyTorch passes none of it on: an entry is found by a function's name and line alone.
    """
    from torch._dynamo import eval_frame, package

    load = package.DiskDynamoCache.load.__code__
    call = eval_frame._TorchDynamoContext.__call__.__code__
    function: Any = None
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code is load:
            function = eval_frame.innermost_fn(frame.f_locals["fn"])
        elif frame.f_code is call and function is not None:
            backend = eval_frame.innermost_backend(frame.f_locals["self"].callback)
            compiler = getattr(backend, "compiler_fn", backend)
            return Asked(function, compiler, dict(getattr(backend, "kwargs", {})))
        frame = frame.f_back
    return None


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


def is_loading_aot() -> bool:
    """Whether ``torch.compiler.load_compiled_function`` or its like reads a function right now."""
    from torch._dynamo.aot_compile import AOTCompiledFunction

    load = AOTCompiledFunction.deserialize.__func__.__code__
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not load:
        frame = frame.f_back
    return frame is not None


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


def level_of_caller() -> int:
    """``stacklevel`` of a warning about the call that led into PyTorch and from there to us."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("dovetail", "torch"):
            return level
        level, frame = level + 1, frame.f_back
    return level


def hide_traceback(cause: type[Exception]) -> None:
    """Keep PyTorch from logging a traceback where an entry is not read because of this error."""
    import logging

    logger = logging.getLogger("torch._dynamo.package")
    if not any(isinstance(each, _Hides) and each.cause is cause for each in logger.filters):
        logger.addFilter(_Hides(cause))


class _Hides:
    """A filter of log records: drops those that tell of one class of errors."""

    def __init__(self, cause: type[Exception]) -> None:
        self.cause = cause

    def filter(self, record: Any) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        while error is not None and not isinstance(error, self.cause):
            error = error.__cause__
        return error is None


def register_cache_artifact(kind: str, populate: Callable[[str, bytes], None]) -> None:
    """Let ``torch.compiler.load_cache_artifacts`` hand over what was recorded under this name."""
    from torch.compiler._cache import CacheArtifact, CacheArtifactFactory

    class Artifact(CacheArtifact):  # type: ignore[misc]
        def populate_cache(self) -> None:
            populate(self.key, self.content)

        @staticmethod
        def type() -> str:
            return kind

    if kind not in CacheArtifactFactory._artifact_types:
        CacheArtifactFactory.register(Artifact)


def record_cache_artifact(kind: str, key: str, content: bytes) -> None:
    """Have ``torch.compiler.save_cache_artifacts`` save it."""
    from torch.compiler._cache import CacheArtifactManager

    seen = CacheArtifactManager._seen_artifacts
    if not any(each.type() == kind and each.key == key for each in seen):
        CacheArtifactManager.record_artifact(kind, key, content)


# Guards that compare identities. An entry leaves them out: another process has other objects.
_DROPPED_GUARDS = frozenset(
    [
        "BUILTIN_MATCH",
        "CLASS_MATCH",
        "CLOSURE_MATCH",
        "DICT_VERSION",
        "FUNCTION_MATCH",
        "ID_MATCH",
        "MODULE_MATCH",
        "NN_MODULE",
        "WEAKREF_ALIVE",
    ]
)


class Traced(NamedTuple):
    """What Dynamo traces right now, and the guards that its entry leaves out."""

    function: Callable[..., Any]
    dropped: dict[str, Any]  # where an object is found, ``L['self'].act``: Dynamo's source of it
    scope: dict[str, dict[str, Any]]  # L and G: the frame's variables
    output: Any

    def guard_attributes(self, name: str, attributes: Iterable[str]) -> None:
        """Guard the values of attributes, such as ``__code__.co_code``, of a dropped one's object.

        They are constants, which an entry keeps.
        """
        from torch._dynamo.guards import GuardBuilder
        from torch._dynamo.source import AttrSource

        for path in attributes:
            source = self.dropped[name]
            for attribute in path.split("."):
                source = AttrSource(source, attribute)
            self.output.guards.add(source.make_guard(GuardBuilder.CONSTANT_MATCH))


def traced() -> Traced | None:
    """What Dynamo traces for an entry, or for ``aot_compile``, right now; None: nothing."""
    found = _traced_ahead() or _traced_for_entry()
    if found is None:
        return None
    function, output = found
    guards = (guard for guard in output.guards if guard.create_fn_name() in _DROPPED_GUARDS)
    dropped = {guard.name: guard.originating_source for guard in guards}
    scope = {"L": dict(output.local_scope), "G": output.global_scope}
    return Traced(function, dict(sorted(dropped.items())), scope, output)


def _traced_for_entry() -> tuple[Callable[..., Any], Any] | None:
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        output = InstructionTranslator.current_tx().output
    except AttributeError:  # none in this thread
        return None
    function = getattr(output.package, "_innermost_fn", None)
    return None if function is None else (function, output)


def _traced_ahead() -> tuple[Callable[..., Any], Any] | None:
    from torch._dynamo.aot_compile import aot_compile_fullgraph

    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not aot_compile_fullgraph.__code__:
        frame = frame.f_back
    if frame is None:
        return None
    return frame.f_locals["fn"], frame.f_locals["graph_capture_output"].output_graph


# ---- operators ---------------------------------------------------------------------------------


def operator_types() -> tuple[Any, Any, Any]:
    """The classes of operators: an overload, a packet of overloads, a higher-order operator."""
    from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

    return OpOverload, OpOverloadPacket, HigherOrderOperator


def call_mutable(op: Any, only_clone: Any = None, **kwargs: Any) -> Any:
    """Run a functionalised call of an operator that writes to its arguments.

    Only the bases at the positions in ``only_clone`` are copied first; all when it is None.
    """
    from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2_dense

    return auto_functionalized_v2_dense(op, only_clone, **kwargs)


def schema_of(op: Any) -> Any:
    """An operator's schema: its arguments and results, and which of them alias or are written."""
    return op._schema


def overload_name(op: Any) -> str:
    """The overload's own part of its name: Tensor for ``aten.add.Tensor``."""
    return str(op._overloadname)


# ---- graphs, fake tensors, symbols ---------------------------------------------------------------


def fake_mode_of(values: Iterable[Any]) -> Any:
    """The FakeTensorMode in which a graph's values were made, or None."""
    from torch._guards import detect_fake_mode

    return detect_fake_mode(list(values))


def unbacked_bindings(node: Any) -> dict[str, tuple[tuple[str, int], ...]]:
    """Data-dependent symbols that a node defines, each with the way to read it off its result.

    A way is steps such as ("item", 0) into a tuple, ("size", -1) and ("item", 1) for a tensor's
    second size, ("storage_offset", -1), ("div", 4), ("bool", 0).
    """
    bindings = node.meta.get("unbacked_bindings") or {}
    return {str(symbol): tuple(map(_path_step, path)) for symbol, path in bindings.items()}


def _path_step(key: Any) -> tuple[str, int]:
    from torch.fx.experimental.symbolic_shapes import CallMethodKey, ConvertIntKey, DivideByKey
    from torch.utils._pytree import SequenceKey

    if isinstance(key, SequenceKey):
        return ("item", key.idx)
    if isinstance(key, CallMethodKey):
        return (key.name, -1)
    if isinstance(key, ConvertIntKey):
        return ("bool", 0)
    if isinstance(key, DivideByKey):
        return ("div", int(key.divisor))
    raise TypeError(f"unknown key {key!r} on the way to a data-dependent size")


def sym_expr(value: Any) -> Any:
    """The sympy expression of a SymInt, SymFloat or SymBool."""
    return value.node.expr


def size_hint(value: Any) -> int | None:
    """What a SymInt was in the example call; None where only the data tells."""
    return int(value.node.hint) if value.node.has_hint() else None


def sympy_functions() -> Any:
    """The module of integer functions that PyTorch adds to sympy."""
    from torch.utils._sympy import functions

    return functions


class SymbolFacts(NamedTuple):
    """What a ShapeEnv knows of its symbols, as sympy expressions without the symbols replaced."""

    ranges: Mapping[Any, tuple[Any, Any]]
    hints: Mapping[Any, Any]
    known: Sequence[Any]  # guards, assertions and divisibilities
    like_sizes: frozenset[Any]


def symbol_facts(env: Any) -> SymbolFacts:
    """The facts of a ShapeEnv."""
    asserts = (each for held in env.deferred_runtime_asserts.values() for each in held)
    known = [*(guard.expr for guard in env.guards), *(each.expr for each in asserts)]
    return SymbolFacts(
        ranges={s: (r.lower, r.upper) for s, r in env.var_to_range.items()},
        hints=env.backed_var_to_val,
        known=[env.replace(expr) for expr in (*known, *env.divisible, *env.axioms)],
        like_sizes=frozenset(env.size_like),
    )


def shape_env(value: Any) -> Any:
    """The ShapeEnv of a SymInt, SymFloat or SymBool."""
    return value.node.shape_env


def tensor_version(tensor: Any) -> int:
    """How often a tensor was written in place."""
    return int(tensor._version)


def pytree() -> Any:
    """Flattening and unflattening of nested containers."""
    from torch.utils import _pytree

    return _pytree


# ---- what cache keys ask -----------------------------------------------------------------------


def static_kind(node: Any) -> str:
    """How Dynamo marks an input that is the same tensor at every call; empty: it does not."""
    return str((node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type") or "")


def own_tensors(module: Any) -> dict[str, Any]:
    """A module's own parameters and buffers by name, without those of its submodules."""
    held = {**module._parameters, **module._buffers}
    return {name: tensor for name, tensor in held.items() if tensor is not None}


def storage_id(tensor: Any) -> int:
    """A number that tensors share as long as they share memory."""
    return int(tensor.untyped_storage()._cdata)


def is_plain_tensor(value: Any) -> bool:
    """Whether a tensor, real or fake, is of no class of its own."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    return type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)


def is_fake(value: Any) -> bool:
    """Whether a tensor has no contents."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, FakeTensor) or bool(value.is_meta)


def is_view(tensor: Any) -> bool:
    """Whether autograd knows a tensor as a view of another."""
    return bool(tensor._is_view())


def tensor_flags(tensor: Any) -> str:
    """What else AOTAutograd looks at in an input, a word each."""
    flags = (
        ("requires_grad", tensor.requires_grad),
        ("leaf", tensor.requires_grad and tensor.is_leaf),
        ("view", tensor.requires_grad and tensor._is_view()),
        ("conj", tensor.is_conj()),
        ("neg", tensor.is_neg()),
        ("inference", tensor.is_inference()),
    )
    return " ".join(name for name, holds in flags if holds)


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
        if not type(mode).__module__.startswith(("torch.", __name__)):
            return f"{type(mode).__qualname__} is active"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func is active"
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return "hooks on saved tensors are active"
    return ""


# ---- logging -----------------------------------------------------------------------------------


def trace_artifact(name: str, text: Callable[[], str]) -> None:
    """Add a text to PyTorch's structured trace (``TORCH_TRACE``), read by tlparse."""
    from torch._logging import trace_structured

    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": "string"},
        payload_fn=text,
    )


@contextlib.contextmanager
def no_dispatch_modes() -> Iterator[None]:
    """Outside of any fake or proxy mode: real tensors stay real."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield
