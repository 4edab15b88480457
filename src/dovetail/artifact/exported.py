"""``dovetail.export``: a model as one program, with its parameters as constants.

The model goes through ``torch.export`` and then through the same passes, placement and code
generation as under ``torch.compile``. Parameters, and buffers that are only read, are constants:
what depends on them alone is computed once. In this process they share memory with the model (and
a write to them is noticed, as with ``freeze``); a saved file has its own. What the model writes to
is state, kept in the artifact from call to call. Autocast does not reach into an artifact: its
dtypes are those it was exported with.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from dovetail import history, registry
from dovetail.artifact.guards import InputGuards
from dovetail.artifact.interface import ModelInterface, Role
from dovetail.artifact.sign import Key
from dovetail.backend import Backend
from dovetail.capture._torch import tensors as torch_tensors
from dovetail.capture._torch.decompositions import correct_lstm
from dovetail.capture._torch.export import ignore_copied_leaves
from dovetail.capture._torch.state import no_buffer_hooks_left
from dovetail.capture.decompose import export_table
from dovetail.capture.lines import traces_by_operator
from dovetail.capture.metadata import correct
from dovetail.compiled import CompiledGraph
from dovetail.errors import DovetailError, ExportFailed, GuardFailed, InvalidExampleInputs
from dovetail.linking import GraphLinker
from dovetail.options import Options
from dovetail.pipeline import Compiler
from dovetail.place.priority import priority_list
from dovetail.runtime.layouts import copy_with_strides
from dovetail.runtime.link import Linked
from dovetail.runtime.resident import on_host

pytree = torch_tensors.pytree()
_STATE_WRITES = {OutputKind.BUFFER_MUTATION} | (
    {OutputKind.PARAMETER_MUTATION} if hasattr(OutputKind, "PARAMETER_MUTATION") else set()
)


def export(
    model: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    backend: str | type[Backend] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Artifact:
    """Compile a model ahead of time for these example inputs.

    ``dynamic_shapes`` says which dimensions may vary, as ``torch.export`` takes it. ``backend`` is
    a name or a class that need not be registered; ``options={"backends": […]}`` gives several.
    """
    chosen = Options.resolve(options)
    _check_example_inputs(args, kwargs)
    correct_lstm()
    ignore_copied_leaves()
    program = _capture(model, tuple(args), dict(kwargs or {}), dynamic_shapes)
    if backend is None and not chosen.backends:
        backend = registry.default_backend(_device_of(program))
    backends = priority_list(chosen, backend)
    compiler = Compiler(backends, chosen, history.begin(*(b.name for b in backends)))
    rules = export_table(compiler.opinions, backends[0].composites)
    with no_buffer_hooks_left():
        program = program.run_decompositions(rules)
    return _compile(program, compiler, type(model).__name__)


def _check_example_inputs(args: Any, kwargs: Any) -> None:
    if not isinstance(args, tuple | list):
        kind = type(args).__name__
        raise InvalidExampleInputs(f"args must be a tuple, not {kind}: export(model, (x,))")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        kind = type(kwargs).__name__
        raise InvalidExampleInputs(f'kwargs must be a dict, not {kind}: kwargs={{"mask": mask}}')


def _capture(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> Any:
    if not isinstance(model, torch.nn.Module):
        raise ExportFailed(repr(model), f"a torch.nn.Module is needed, not {type(model).__name__}")
    args, kwargs = _each_its_own((args, kwargs))
    try:
        with no_buffer_hooks_left():
            return torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes)
    except DovetailError:
        raise
    except Exception as error:  # torch.export raises many kinds; all mean the same to the user
        raise ExportFailed(type(model).__name__, _first_lines(error)) from error


def _each_its_own(inputs: Any) -> Any:
    """Inputs in which no tensor occurs twice: torch.export would take the two for one."""
    seen: set[int] = set()

    def own(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or id(value) not in seen:
            seen.add(id(value))
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    return pytree.tree_map(own, inputs)


class Artifact:
    """A compiled model: call it as the model. State is its own, not the model's."""

    def __init__(
        self,
        interface: ModelInterface,
        linked: Linked,
        record: history.Compilation,
    ) -> None:
        self.interface = interface
        self.linked, self._run = linked, linked.run
        self.record = record
        self._on_device: dict[str, Any] = {}  # state that a device holds, newer than the tensors
        self._kept = self._keep_state()

    @property
    def name(self) -> str:
        """The model's class."""
        return self.interface.name

    @property
    def compiled(self) -> CompiledGraph:
        """The compiled graph that runs."""
        return self.linked.graph

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """Buffers the model writes to, as they are after the last call; write to them to set it.

        State that an accelerator kept in its own memory is brought here, and stays here.
        """
        self._bring_state()
        roles, tensors = self.interface.roles, self.interface.tensors
        names = {role.key for role in roles if role.kind == "state"}
        return {name: tensors[name] for name in sorted(names)}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on inputs of the kind the model was exported for."""
        model = self.interface
        flat, spec = pytree.tree_flatten(in_order((args, kwargs), model.in_spec))
        if spec != model.in_spec:
            raise GuardFailed(f"called with {spec}, but exported with {model.in_spec}")
        model.guards.check(flat)
        given = iter(flat)
        inputs = [
            next(given)
            if role.kind == "user"
            else self._on_device.get(role.key, model.tensors[role.key])
            for role in model.roles
        ]
        with torch.no_grad(), _without_autocast():
            results = self._run(inputs)
            self._apply_writes(results, flat)
        outputs = results[len(model.writes) :]
        for position, source in model.returned.items():
            outputs[position] = flat[source]
        return pytree.tree_unflatten(outputs, model.out_spec)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        key: Key | None = None,
        without_torch: bool = False,
        targets: str | Sequence[str] | None = None,
    ) -> None:
        """Write a .dvt file that ``dovetail.load`` runs.

        ``key`` is a private key to sign it with: the path of a key file, as ``dovetail sign
        --new-key`` writes it, or the bytes of one, or the 32 bytes of the key.

        The file gives the bits that this artifact gives, calling PyTorch for what it calls PyTorch
        for. ``without_torch`` puts the runtime's own kernels in its place (products may then differ
        in the last bits), and refuses to write a file that would need PyTorch all the same.

        Generated kernels are written as the code that ran here, which any processor of this
        machine's level runs (x86-64-v3, x86-64-v4 or armv8-a; x86-64-v4-bf16 where it has products
        of pairs of bfloat16). ``targets`` names the levels that the file is to have code for
        instead; what is missing is generated. On other processors the file runs from its kernel IR,
        compiled when it is loaded where llvmlite is installed, else interpreted, which is slower by
        far: name ``x86-64-v3`` too if a file made on a machine with AVX-512 is to run on those
        without.
        """
        from dovetail.artifact.save import save

        self._bring_state()
        save(
            self.interface,
            self.linked,
            path,
            key=key,
            without_torch=without_torch,
            targets=targets,
        )

    def _keep_state(self) -> frozenset[int]:
        """Which of the writes stay on a device from call to call."""
        if all(each.executable.memory is None for each in self.linked.parts[-1].segments):
            return frozenset()
        from dovetail.runtime.resident import keep_state

        given = {role.key: n for n, role in enumerate(self.interface.roles) if role.kind == "state"}
        writes = enumerate(self.interface.writes)
        return keep_state(self.linked, {n: given[k] for n, (kind, k) in writes if kind == "state"})

    def _bring_state(self) -> None:
        """Have all state in the tensors of the host, from now on.

        DeviceLost, once, where it was lost with its device: it is as it was last here.
        """
        held, self._on_device, self._kept = self._on_device, {}, frozenset()
        for key, value in held.items():
            self.interface.tensors[key].copy_(value.fetch())

    def _apply_writes(self, results: Sequence[Any], flat: Sequence[Any]) -> None:
        for n, ((kind, key), value) in enumerate(zip(self.interface.writes, results, strict=False)):
            if n in self._kept:
                self._on_device[key] = value
                continue
            if kind == "state":
                value = on_host(value)
            target = self.interface.tensors[key] if kind == "state" else flat[int(key)]
            target.copy_(value)


def _compile(program: Any, compiler: Compiler, name: str) -> Artifact:
    signature = program.graph_signature
    written = {s.target for s in signature.output_specs if s.kind in _STATE_WRITES}
    roles = [_role(spec, written) for spec in signature.input_specs]
    tensors = _tensors(program, roles)
    gm = program.graph_module
    correct(gm)
    traces = traces_by_operator(gm)
    frozen = [i for i, role in enumerate(roles) if role.kind == "constant"]
    linked = compiler.compile_linked(gm, (), "inference", frozen, now=True)
    inputs = [
        (node, spec.arg)
        for node, spec in zip(
            gm.graph.find_nodes(op="placeholder"), signature.input_specs, strict=True
        )
        if spec.kind is InputKind.USER_INPUT
    ]
    interface = ModelInterface(
        name=name,
        roles=tuple(roles),
        tensors=tensors,
        writes=tuple(_writes(signature)),
        guards=InputGuards.of([node for node, _ in inputs], program.range_constraints),
        in_spec=program.call_spec.in_spec,
        out_spec=program.call_spec.out_spec,
        returned=_returned(signature),
        traces=traces,
    )
    return Artifact(interface, linked, compiler.record)


def load_graph(data: bytes) -> Artifact:
    """A model that was saved on a GPU, from the bytes of a trusted file."""
    from dovetail.artifact.graph_file import graph_from_bytes

    interface, graph = graph_from_bytes(data)
    names = [name for _, part in graph.parts() for each in part.segments for name in each.backends]
    backends = tuple(registry.get_backend(name) for name in dict.fromkeys(names)) or (
        registry.get_backend(registry.LAST_BACKEND),
    )
    record = history.begin(*(backend.name for backend in backends))
    linked = GraphLinker(backends, Options.resolve(None), record).link(graph)
    return Artifact(interface, linked, record)


def _role(spec: Any, written: set[str]) -> Role:
    if spec.kind is InputKind.USER_INPUT:
        return Role("user")
    if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
        return Role("state" if spec.target in written else "constant", spec.target)
    raise ExportFailed("the model", f"an input of kind {spec.kind.name} cannot be exported")


def _tensors(program: Any, roles: Sequence[Role]) -> dict[str, Any]:
    """Constants as they are; a copy of each state, so that the model's own stays untouched."""
    held = {**program.constants, **program.state_dict}
    found = {role.key: held[role.key] for role in roles if role.kind != "user"}
    state = {role.key for role in roles if role.kind == "state"}
    return {
        key: copy_with_strides(value.detach(), value.stride()) if key in state else _shared(value)
        for key, value in found.items()
    }


def _shared(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory without gradients; a parameter stays one, for how its writes are noticed."""
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    shared = tensor.detach()
    return torch.nn.Parameter(shared, requires_grad=False) if is_parameter else shared


def _writes(signature: Any) -> list[tuple[str, str]]:
    """What leads the program's outputs: new values of state and of inputs written in place."""
    users = [s.arg.name for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
    writes = []
    for spec in signature.output_specs:
        if spec.kind in _STATE_WRITES:
            writes.append(("state", spec.target))
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            writes.append(("user", str(users.index(spec.target))))
    return writes


def _returned(signature: Any) -> dict[int, int]:
    """Outputs that are an input the model wrote to: the caller gets that input back."""
    users = [s.arg.name for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
    specs = signature.output_specs
    written = {s.arg.name: s.target for s in specs if s.kind is OutputKind.USER_INPUT_MUTATION}
    results = [s.arg.name for s in specs if s.kind is OutputKind.USER_OUTPUT]
    return {i: users.index(written[name]) for i, name in enumerate(results) if name in written}


def in_order(value: Any, spec: Any) -> Any:
    """A nested value with its dictionaries (and so keywords) in the order of ``spec``."""
    children = spec.children() if callable(getattr(spec, "children", None)) else spec.children_specs
    if isinstance(value, dict) and spec.type is dict and set(value) == set(spec.context):
        pairs = zip(spec.context, children, strict=True)
        return {key: in_order(value[key], child) for key, child in pairs}
    if isinstance(value, tuple | list) and len(value) == len(children):
        items = [in_order(item, child) for item, child in zip(value, children, strict=True)]
        return type(value)(items) if type(value) in (tuple, list) else value
    return value


def _without_autocast() -> contextlib.AbstractContextManager[Any]:
    """Autocast switched off for every device it is on for."""
    stack = contextlib.ExitStack()
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            stack.enter_context(torch.autocast(device, enabled=False))
    return stack


def _device_of(program: Any) -> str:
    tensors = [*program.state_dict.values(), *pytree.tree_leaves(program.example_inputs)]
    types = {t.device.type for t in tensors if isinstance(t, torch.Tensor)}
    return min(types - {"cpu", "meta"}, default="cpu")


def _first_lines(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return "\n".join(text.splitlines()[:6])
