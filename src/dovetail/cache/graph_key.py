"""The key of a graph: everything that can change what is compiled from it, part by part.

What must not enter: names of the user's, paths, addresses, the order in which graphs are
compiled, the environment, and the number of threads (kernels split their work when they run), but
where candidates were measured on so many (option ``autotune``).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import sympy
import torch
from torch import fx

from dovetail.backend import Backend
from dovetail.cache.access import Bypass
from dovetail.cache.graph_parts import GraphText
from dovetail.cache.key import Key
from dovetail.cache.own_sources import own_digest
from dovetail.cache.symbols import Symbols
from dovetail.capture._torch.dynamo import static_kind
from dovetail.capture._torch.state import compiler_settings, global_state, unseen_state
from dovetail.capture._torch.tensors import is_plain_tensor, is_view, storage_id, tensor_flags
from dovetail.capture.from_fx import KEPT
from dovetail.file.processors import processor_identity
from dovetail.options import Options
from dovetail.passes import manager
from dovetail.passes.base import STAGES
from dovetail.passes.constants import CONSTANT
from dovetail.passes.steps import STEPS
from dovetail.sources import Unidentified, identity, plain_attributes

# Inputs with parts of their own; more are told by one part.
_MOST_INPUTS = 32


class GraphKey(NamedTuple):
    """The key of a graph, and the symbolic sizes that it names."""

    key: Key
    symbols: Symbols


def graph_key(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    backends: Sequence[Backend],
    options: Options,
    *,
    stage: str,
    static: Iterable[int] = (),
) -> GraphKey | Bypass:
    """The key of a graph at a stage: "dynamo", or after AOTAutograd "inference", "forward", ….

    ``static`` are positions of inputs that are parameters and buffers, where neither Dynamo's
    marks nor ours on the graph's inputs say so.
    """
    try:
        parts = _KeyParts(gm, example_inputs, backends, options, stage, frozenset(static))
        return GraphKey(parts.key(), parts.symbols)
    except Unidentified as error:
        return Bypass(str(error))


@dataclass
class _KeyParts:
    gm: fx.GraphModule
    example_inputs: Sequence[Any]
    backends: Sequence[Backend]
    options: Options
    stage: str
    static: frozenset[int]

    def key(self) -> Key:
        """All parts; those that people recognise first come first."""
        if unseen := unseen_state():
            raise Unidentified(unseen)
        self.symbols = Symbols()
        self.text = GraphText(self.stage, self.symbols)
        inputs = self.inputs()
        self.text.add(self.gm)
        self.parts: dict[str, str] = {"stage": self.stage}
        self.texts: dict[str, str] = {}
        self.add("graph", "\n".join(self.text.lines), _summary(self.text.counts))
        self.add_inputs(inputs)
        self.add_tensors()
        self.add_symbols()
        self.parts |= global_state()
        self.add("PyTorch's settings", compiler_settings())
        self.add_passes()
        self.parts |= {f"option {k}": v for k, v in self.options.key_parts().items()}
        self.add_backends()
        self.parts |= _versions()
        tuned = self.options.autotune  # by measuring on this very processor, on so many threads
        if tuned:
            self.parts["threads"] = str(torch.get_num_threads())
        exact = tuned or any(backend.exact_processor for backend in self.backends)
        self.parts["processor"] = processor_identity(exact=exact)
        return Key.of(self.parts, self.texts)

    def add(self, name: str, part: str, text: str = "") -> None:
        """A part, and what a person reads for it."""
        self.parts[name] = part
        if text:
            self.texts[name] = text

    # ---- inputs ----

    def inputs(self) -> list[_Input]:
        """Every input, described; symbols get their names in this order."""
        nodes = self.gm.graph.find_nodes(op="placeholder")
        given = [*self.example_inputs, *[None] * (len(nodes) - len(self.example_inputs))]
        pairs = zip(nodes, given, strict=True)
        return [self.input(n, node, example) for n, (node, example) in enumerate(pairs)]

    def input(self, position: int, node: fx.Node, example: Any) -> _Input:
        """What is known of one input: from the graph, where sizes are symbolic."""
        meta = node.meta
        value = meta.get("val", meta.get("example_value", example))
        static = static_kind(node) or ("static" if position in self.static else "")
        marks = [static, *(name for name in (KEPT, CONSTANT) if meta.get(name))]
        if not isinstance(value, torch.Tensor):
            kind = "size" if isinstance(value, torch.SymInt) else "input"
            return _Input(self.text.arg(value), kind)
        if isinstance(example, torch.Tensor) and not is_plain_tensor(example):
            self.text.tensor(example)  # raises, naming its class
        cls = "Parameter" if isinstance(example, torch.nn.Parameter) else ""
        words = [self.text.tensor(value), cls, *marks, tensor_flags(value)]
        text = " ".join(filter(None, words))
        return _Input(text, "parameter" if any(marks) or cls else "input", value)

    def add_inputs(self, inputs: Sequence[_Input]) -> None:
        """A part for each input that varies, for all parameters, and for what holds of all."""
        own = [each.text for each in inputs if each.kind == "input"]
        for number, text in enumerate(own[:_MOST_INPUTS]):
            self.add(f"input {number}", text, text)
        further = own[_MOST_INPUTS:]
        self.add("further inputs", "\n".join(further), f"{len(further)} inputs")
        static = [each.text for each in inputs if each.kind == "parameter"] + self.text.held
        self.add("parameters", "\n".join(static), f"{len(static)} parameters and buffers")
        order = [each.text if each.kind == "size" else each.kind for each in inputs]
        self.add("order of inputs", ", ".join(order), f"{len(inputs)} inputs")
        self.add("shared memory", *self.shared(inputs))

    def shared(self, inputs: Sequence[_Input]) -> tuple[str, str]:
        """Which inputs lie in the same memory, and where; offsets too where the graph asks."""
        groups: dict[int, list[int]] = {}
        for position, each in enumerate(inputs):
            if each.value is not None and each.value.layout is torch.strided:
                groups.setdefault(storage_id(each.value), []).append(position)
        shared = [group for group in groups.values() if len(group) > 1]
        asked = groups.values() if self.text.asks_offsets else shared
        offsets = [f"{n} at {self.offset(inputs[n].value)}" for group in asked for n in group]
        text = "; ".join(" and ".join(map(str, group)) for group in shared) or "none"
        return f"{text}\n{', '.join(offsets)}", f"inputs that share memory: {text}"

    def offset(self, value: Any) -> str:
        """Where a tensor begins in its memory, and whether autograd knows that it is a view."""
        view = ", a view" if is_view(value) else ""
        return f"{self.text.arg(value.storage_offset())}{view}"

    # ---- the rest ----

    def add_tensors(self) -> None:
        """Constants that the graph holds, by their contents."""
        held = self.text.constants
        self.add("constants", "\n".join(held), f"{len(held)} constants")

    def add_symbols(self) -> None:
        """Symbolic sizes: ranges, what is known of them, and hints where those decide.

        Placement decides by the sizes of the example call where copies cost. What AOTAutograd
        decides by them it guards, and an entry holds its guards.
        """
        decide = any(b.transfer is not None for b in self.backends)
        lines = self.symbols.facts(with_hints=decide)
        self.add("symbols", "\n".join(lines), "; ".join(lines) or "no symbolic sizes")

    def add_passes(self) -> None:
        """Every pass and step by name and identity."""
        passes = manager.with_backends(self.options.passes, self.backends)
        found = [f"{s}: {each.identity}" for s in STAGES for each in passes.passes.at(s)]
        found += [each.identity for each in STEPS]
        names = ", ".join(name for s in STAGES for name in passes.names(s))
        self.add("passes", "\n".join(found), names)

    def add_backends(self) -> None:
        """Each backend's class, sources, options and fingerprint, and their order."""
        self.parts["backends"] = ", ".join(backend.name for backend in self.backends)
        for backend in self.backends:
            self.add(f"backend {backend.name}", *_backend(backend))


@dataclass(frozen=True)
class _Input:
    text: str
    kind: str  # "input", "parameter" (buffers too) or "size"
    value: torch.Tensor | None = None


def _backend(backend: Backend) -> tuple[str, str]:
    try:
        told = backend.fingerprint()
        args, options = backend.given
        given = identity((args, dict(sorted(options.items()))))
    except Unidentified as error:
        raise Unidentified(f"the options of the backend {backend.name}: {error}") from None
    except Exception as error:  # a vendor's library may raise anything
        raise Unidentified(f"the backend {backend.name} has no fingerprint: {error}") from error
    shown = f"{told}, options {options}" if options else told
    return f"{identity(type(backend))}\n{told}\n{given}\n{plain_attributes(backend)}", shown


def _summary(counts: dict[str, int]) -> str:
    most = ", ".join(f"{count} {name}" for name, count in Counter(counts).most_common(8))
    return f"{sum(counts.values())} calls: {most}"


@cache
def _versions() -> dict[str, str]:
    """What does not change within a process."""
    return {
        "dovetail": f"sources {own_digest()}",
        "torch": f"{torch.__version__} ({torch.version.git_version}), sympy {sympy.__version__}",
        "python": f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}",
    }
