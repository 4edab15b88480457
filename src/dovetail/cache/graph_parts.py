"""An FX graph as text that any process gives alike: nodes by position, no name of the user's.

Works on what Dynamo captured (functions, methods, modules, higher-order operators) and on
functional ATen graphs. Tensors that the graph holds stand by number, and apart by contents.
"""

from __future__ import annotations

import enum
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import fx
from torch.fx.immutable_collections import immutable_dict, immutable_list

from dovetail.cache.symbols import Symbols
from dovetail.capture._torch.operators import schema_of
from dovetail.capture._torch.state import no_dispatch_modes
from dovetail.capture._torch.tensors import is_fake, is_plain_tensor, own_tensors, tensor_flags
from dovetail.capture.ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from dovetail.sources import Unidentified, identity, known_name

# Operators that are part of PyTorch: its version tells what they do.
_OWN_OPERATORS = frozenset(
    {"aten", "prims", "prim", "inductor", "quantized", "_quantized", "quantized_decomposed"}
)
# Higher-order operators whose arguments say all that they do.
_OPEN = frozenset(
    [
        "associative_scan",
        "auto_functionalized",
        "auto_functionalized_v2",
        "autograd_function_apply",
        "cond",
        "invoke_subgraph",
        "map_impl",
        "out_dtype",
        "run_and_save_rng_state",
        "run_with_rng_state",
        "scan",
        "graphsafe_run_with_rng_state",
        "strict_mode",
        "tag_activation_checkpoint",
        "while_loop",
        "while_loop_stack_output",
        "with_effects",
        "wrap",
        "wrap_activation_checkpoint",
        "wrap_with_autocast",
        "wrap_with_set_grad_enabled",
    ]
)
# What AOTAutograd reads of a node of Dynamo's beside its arguments.
_MARKS = ("recompute", "partitioner_tag", "custom")
# Calls whose result depends on where in its memory a tensor begins.
_ASK_OFFSETS = frozenset(
    [
        "as_strided",
        "as_strided_",
        "as_strided_copy",
        "as_strided_scatter",
        "data_ptr",
        "set_",
        "storage_offset",
        "untyped_storage",
    ]
)
_PLAIN = (
    *(int, bool, float, complex, str, bytes, type(None), type(...), range),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_CHUNK = 16 << 20  # bytes that a thread hashes at a time


class GraphText:
    """The text of a graph and its nested graphs, and what it met on the way."""

    def __init__(self, stage: str, symbols: Symbols) -> None:
        self.is_dynamo, self.symbols = stage == "dynamo", symbols
        self.lines: list[str] = []
        self.held: list[str] = []  # parameters and buffers of the graph's own, which AOT lifts
        self.constants: list[str] = []
        self.counts: dict[str, int] = {}  # calls, by the last word of their targets
        self.asks_offsets = False
        self._numbers: dict[int, str] = {}  # id of a tensor or nested graph → its name here
        self._keep: list[Any] = []  # so that no id is given twice
        self._targets: dict[Any, str] = {}
        self._nodes: dict[fx.Node, str] = {}
        self._kinds: dict[type, Callable[[Any], str]] = self._table()

    def add(self, gm: fx.GraphModule) -> None:
        """Append a graph; nested ones follow those that refer to them."""
        outer, self._nodes = self._nodes, {}
        nested: list[fx.GraphModule] = []
        for position, node in enumerate(gm.graph.nodes):
            self.lines.append(self._node(gm, node, nested))
            self._nodes[node] = f"%{position}"
        self._nodes = outer
        for sub in nested:
            self.lines.append(f"{self._numbers[id(sub)]}:")
            self.add(sub)

    # ---- nodes ----

    def _node(self, gm: fx.GraphModule, node: fx.Node, nested: list[fx.GraphModule]) -> str:
        op = node.op
        if op == "placeholder":
            return f"input {self.arg(node.args)}" if node.args else "input"
        if op == "output":
            return f"return {self.arg(node.args[0])}"
        if op == "get_attr":
            return self._attribute(gm, str(node.target), nested)
        target = self._called(gm, node, nested)
        keywords = [f"{k}={self.arg(node.kwargs[k])}" for k in sorted(node.kwargs)]
        text = f"{target}({', '.join([*map(self.arg, node.args), *keywords])})"
        return text + self._marks(node)

    def _called(self, gm: fx.GraphModule, node: fx.Node, nested: list[fx.GraphModule]) -> str:
        if node.op == "call_method":
            text = f".{node.target}"
        elif node.op == "call_module":
            text = f"call {self._attribute(gm, str(node.target), nested)}"
        else:
            text = self.target(node.target)
            if not _is_own(node.target) or isinstance(node.target, HigherOrderOperator):
                text += self._result(node)
        word = _word(node)
        self.counts[word] = self.counts.get(word, 0) + 1
        self.asks_offsets |= word in _ASK_OFFSETS
        return text

    def _result(self, node: fx.Node) -> str:
        """What a custom operator's own function for fake tensors says of its result.

        A higher-order operator may call one.
        """
        value = node.meta.get("val")
        return "" if value is None else f" -> {self._described(value)}"

    def _described(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, tuple | list):
            return f"({', '.join(map(self._described, value))})"
        return self.arg(value)

    def _marks(self, node: fx.Node) -> str:
        meta = node.meta
        found = []
        if self.is_dynamo:
            found = [f"{name} {self.arg(meta[name])}" for name in _MARKS if meta.get(name)]
        if bindings := meta.get("unbacked_bindings"):
            found += [f"{self.symbols.expression(s)} at {path}" for s, path in bindings.items()]
        return f" [{'; '.join(found)}]" if found else ""

    def _attribute(self, gm: fx.GraphModule, name: str, nested: list[fx.GraphModule]) -> str:
        *path, last = name.split(".")
        owner = gm.get_submodule(".".join(path))
        value = getattr(owner, last)
        if isinstance(value, fx.GraphModule):
            return self._nested(value, nested)
        if isinstance(value, torch.Tensor):
            lifted = self.is_dynamo and last in own_tensors(owner)
            return self._held(value) if lifted else self._constant(value)
        if isinstance(value, torch.nn.Module):
            return self._module(value)
        return self.arg(value)

    def _nested(self, sub: fx.GraphModule, nested: list[fx.GraphModule]) -> str:
        if id(sub) not in self._numbers:
            self._name(sub, f"graph {sum(n.startswith('graph') for n in self._numbers.values())}")
            nested.append(sub)
        return self._numbers[id(sub)]

    def _module(self, module: torch.nn.Module) -> str:
        """A module of PyTorch's own that Dynamo left whole, by class and settings."""
        cls = type(module)
        if not cls.__module__.startswith("torch.nn.modules."):
            raise Unidentified(f"it calls a module of class {cls.__qualname__} as a whole")
        hidden = [n for n in vars(module) if n.startswith("_") and "hooks" in n]
        if any(getattr(module, name) for name in hidden):
            raise Unidentified(f"it calls a module of class {cls.__qualname__} with hooks")
        plain = {n: v for n, v in vars(module).items() if not n.startswith("_")}
        texts = [f"{name}={self.arg(plain[name])}" for name in sorted(plain)]
        texts += [f"{n} {self._held(t)}" for n, t in own_tensors(module).items()]
        texts += [f"{n}: {self._module(m)}" for n, m in module.named_children()]
        return f"{cls.__qualname__}({', '.join(texts)})"

    # ---- tensors ----

    def tensor(self, value: torch.Tensor) -> str:
        """A tensor's type, sizes, strides and device."""
        if not is_plain_tensor(value):
            cls = type(value)
            raise Unidentified(f"a tensor is of class {cls.__module__}.{cls.__qualname__}")
        head = f"{str(value.dtype)[6:]}[{self._sizes(value.shape)}]"
        if value.layout is not torch.strided:
            return f"{head} {value.layout} {value.device}"
        return f"{head} strides ({self._sizes(value.stride())}) {value.device}"

    def _sizes(self, sizes: Sequence[Any]) -> str:
        return ", ".join([str(n) if type(n) is int else self.symbols.text(n) for n in sizes])

    def _held(self, value: torch.Tensor) -> str:
        if id(value) not in self._numbers:
            self._name(value, f"held {len(self.held)}")
            flags = tensor_flags(value)
            self.held.append(f"{type(value).__name__} {self.tensor(value)} {flags}")
        return self._numbers[id(value)]

    def _constant(self, value: torch.Tensor) -> str:
        if id(value) not in self._numbers:
            self._name(value, f"constant {len(self.constants)}")
            flags = tensor_flags(value)
            self.constants.append(f"{self.tensor(value)} {flags} {contents_digest(value)}")
        return self._numbers[id(value)]

    def _name(self, value: Any, name: str) -> None:
        self._numbers[id(value)] = name
        self._keep.append(value)

    # ---- targets ----

    def target(self, target: Any) -> str:
        """What a node calls, by name where a version tells what that is, else by its sources."""
        found = self._targets.get(target)
        if found is None:
            found = self._targets[target] = self._identify(target)
        return found

    def _identify(self, target: Any) -> str:
        if isinstance(target, HigherOrderOperator):
            if target.name() not in _OPEN:
                raise Unidentified(f"it calls the higher-order operator {target.name()}")
            return f"higher_order.{target.name()}"
        if isinstance(target, OpOverload):
            return str(target) if _is_own(target) else self._custom(target)
        if isinstance(target, OpOverloadPacket):
            overloads = [getattr(target, name) for name in target.overloads()]
            return f"{target}: {', '.join(map(self._identify, overloads))}"
        try:  # nothing tells what code of the user's will read when AOTAutograd runs it
            return known_name(target) or identity(target, versions_tell=True)
        except Unidentified as error:
            raise Unidentified(f"it calls {_shown(target)}: {error}") from None

    def _custom(self, op: Any) -> str:
        """A custom operator, which compiled code calls by name: how it is implemented is no matter.

        Tracing runs more of it than that: its functions for fake tensors and gradients.
        """
        if self.is_dynamo:
            name = schema_of(op).name
            raise Unidentified(f"it calls the custom operator {name}, which tracing looks into")
        return f"{op} {schema_of(op)} {sorted(map(str, op.tags))}"

    # ---- arguments ----

    def arg(self, value: Any) -> str:
        """An argument of a call."""
        kind = self._kinds.get(type(value))
        return kind(value) if kind is not None else self._other(value)

    def _table(self) -> dict[type, Callable[[Any], str]]:
        plain: dict[type, Callable[[Any], str]] = dict.fromkeys(_PLAIN, repr)
        symbolic = dict.fromkeys((torch.SymInt, torch.SymFloat, torch.SymBool), self._symbolic)
        return (
            plain
            | symbolic
            | {
                fx.Node: lambda node: self._nodes[node],
                list: self._list,
                immutable_list: self._list,
                tuple: self._tuple,
                torch.Size: self._tuple,
                dict: self._dict,
                immutable_dict: self._dict,
                slice: lambda s: f"slice{self._tuple((s.start, s.stop, s.step))}",
                torch.Tensor: self._constant,
                torch.nn.Parameter: self._constant,
            }
        )

    def _symbolic(self, value: Any) -> str:
        return f"<{self.symbols.text(value)}>"

    def _list(self, values: Sequence[Any]) -> str:
        return f"[{', '.join(map(self.arg, values))}]"

    def _tuple(self, values: Sequence[Any]) -> str:
        return f"({', '.join(map(self.arg, values))})"

    def _dict(self, held: Any) -> str:
        return f"{{{', '.join(f'{self.arg(k)}: {self.arg(v)}' for k, v in held.items())}}}"

    def _other(self, value: Any) -> str:
        if isinstance(value, enum.Enum):
            return f"{type(value).__qualname__}.{value.name} {self.arg(value.value)}"
        if isinstance(value, OpOverload | OpOverloadPacket | HigherOrderOperator):
            return self.target(value)
        if hasattr(type(value), "__members__") and type(value).__module__.startswith("torch."):
            return str(value)
        if isinstance(value, tuple) and type(value).__module__.startswith("torch."):
            return f"{type(value).__qualname__}{self._tuple(tuple(value))}"
        if callable(value) and not isinstance(value, torch.nn.Module):
            return self.target(value)
        cls = type(value)
        raise Unidentified(f"an argument is of type {cls.__module__}.{cls.__qualname__}")


def _is_own(target: Any) -> bool:
    return not isinstance(target, OpOverload) or target.namespace in _OWN_OPERATORS


def _word(node: fx.Node) -> str:
    """The name of what a node calls as people know it."""
    target = node.target
    if isinstance(target, OpOverload):
        return str(target.overloadpacket.__name__)
    if node.op == "call_module":
        return "module"
    return str(target if isinstance(target, str) else getattr(target, "__name__", "function"))


def _shown(target: Any) -> str:
    return str(getattr(target, "__qualname__", None) or type(target).__qualname__)


def contents_digest(value: torch.Tensor) -> str:
    """A hash of a tensor's elements in order, by threads where there are many."""
    if not is_plain_tensor(value) or is_fake(value):
        raise Unidentified("it holds a tensor whose contents cannot be read")
    if value.layout is not torch.strided or value.is_quantized:
        raise Unidentified(f"it holds a tensor of layout {value.layout}")
    with no_dispatch_modes(), torch.no_grad():
        flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        data = memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")
    if len(data) <= 2 * _CHUNK:
        return hashlib.sha256(data).hexdigest()
    chunks = [data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK)]
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        digests = pool.map(lambda chunk: hashlib.sha256(chunk).digest(), chunks)
        return hashlib.sha256(b"".join(digests)).hexdigest()
