"""Graphs as the pipeline hands them to ``graph_key``, and their keys."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch

from dovetail import history
from dovetail.backends.aten import AtenBackend
from dovetail.cache import Bypass
from dovetail.cache.graph_key import graph_key
from dovetail.options import Options
from dovetail.pipeline import Compiler
from dovetail.place.priority import priority_list


@dataclass
class Captured:
    """A graph at a stage, and what it was captured with."""

    stage: str
    gm: torch.fx.GraphModule
    inputs: list

    def key(self, *, backends=None, first="aten", **options):
        chosen = Options.resolve(options)
        backends = priority_list(chosen, first) if backends is None else backends
        found = graph_key(self.gm, self.inputs, backends, chosen, stage=self.stage)
        return found if isinstance(found, Bypass) else found.key


def capture(fn, *args, first="aten", at=None, dynamic=None, fullgraph=True, **options):
    """Every graph that a call, and backward where it has one, gives to the compiler.

    ``at`` is called on each graph while its context is still that of the compilation.
    """
    found = []

    def note(stage, gm, inputs):
        found.append(Captured(stage, gm, list(inputs)))
        if at is not None:
            found[-1] = at(found[-1])

    def backend(gm, inputs):
        note("dynamo", gm, inputs)
        chosen = Options.resolve(options)
        names = priority_list(chosen, first)
        compiler = Compiler(names, chosen, history.begin(*(b.name for b in names)))

        def compile_graph(graph):
            compiler.mark_kept(graph.gm, graph.kind)
            note(graph.kind, graph.gm, graph.inputs)
            graph.gm.recompile()
            return SimpleNamespace(run=lambda values: list(graph.gm.forward(*values)))

        return replace(compiler.capture(None), compile_graph=compile_graph).run(gm, inputs)

    torch.compiler.reset()
    result = torch.compile(fn, backend=backend, dynamic=dynamic, fullgraph=fullgraph)(*args)
    if isinstance(result, torch.Tensor) and result.requires_grad:
        result.sum().backward()
    history.clear()
    return found


def keys(fn, *args, **how):
    """The keys of all graphs of a call, by stage."""
    found = {}
    for stage, key in capture(fn, *args, at=lambda c: (c.stage, c.key()), **how):
        assert not isinstance(key, Bypass), key.reason
        found[stage] = key
    return found


def dynamo(fn, *args, **how):
    """The key of the graph that Dynamo makes of a call."""
    return keys(fn, *args, **how)["dynamo"]


def graph_of(target, x, *args):
    """A functional graph of one call."""
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    graph.output((graph.call_function(target, (node, *args)),))
    return Captured("inference", torch.fx.GraphModule(torch.nn.Module(), graph), [x])


def t(*shape, **how):
    """A tensor of consecutive numbers."""
    return torch.arange(float(torch.Size(shape).numel()), **how).reshape(shape)


class Tuned(AtenBackend):
    """A backend with options of its own."""

    name = "tuned"

    def __init__(self, *, level=1, table=None):
        self.level, self.table = level, table

    def fingerprint(self):
        return "tool 1"
