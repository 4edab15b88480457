"""Custom operators, functions and modules in a graph's key, and what stops it from having one."""

import functools

import pytest
import torch
from torch import nn

from dovetail import passes
from dovetail.backends.aten import AtenBackend
from dovetail.cache import Bypass
from dovetail.passes import PassManager
from tests.cache.graphs import Captured, Tuned, capture, graph_of, t

aten = torch.ops.aten


@pytest.fixture
def library():
    with torch.library._scoped_library("keys", "FRAGMENT") as held:
        yield held


def test_a_custom_operator_is_called_by_name(library):
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    torch.library.register_fake("keys::twice", lambda x: torch.empty_like(x), lib=library)
    found = {c.stage: c for c in capture(lambda x: torch.ops.keys.twice(x) + 1, t(3))}
    reason = found["dynamo"].key()
    assert isinstance(reason, Bypass)
    assert reason.reason == "it calls the custom operator keys::twice, which tracing looks into"
    before = found["inference"].key()
    library.impl("twice", lambda x: x + x, "CPU", allow_override=True)
    assert found["inference"].key() == before
    (call,) = (n for n in found["inference"].gm.graph.nodes if "twice" in str(n.target))
    call.meta["val"] = call.meta["val"].to(torch.float64)
    assert before.differs(found["inference"].key()) == ["graph"]


def test_functions_of_the_user_that_tracing_runs():
    """Nobody can tell what they will read when AOTAutograd runs them: it comes before the key."""

    @torch.library.custom_op("keys::scaled", mutates_args=())
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    scaled.register_fake(torch.empty_like)

    @torch.compiler.allow_in_graph
    def whole(x):
        return x * 2

    @torch.compiler.allow_in_graph
    @functools.wraps(torch.sin)
    def named_after_another(x):
        return x * 2

    def reason(fn):
        return capture(fn, t(3))[0].key().reason

    told = reason(lambda x: torch.ops.keys.scaled(x))
    assert told == "it calls the custom operator keys::scaled, which tracing looks into"
    assert reason(lambda x: whole(x)).endswith("is code of the user's")
    assert reason(lambda x: named_after_another(x)).endswith("is code of the user's")


def test_what_an_operator_in_another_gives(library):
    library.define("filled(Tensor(a!) x) -> Tensor")
    library.impl("filled", lambda x: x.fill_(2) * 2, "CPU")
    torch.library.register_fake("keys::filled", torch.empty_like, lib=library)
    found = {c.stage: c for c in capture(lambda x: torch.ops.keys.filled(x) + 1, t(3))}["inference"]
    before = found.key()
    (call,) = (n for n in found.gm.graph.nodes if "auto_functionalized" in str(n.target))
    first, *rest = call.meta["val"]
    call.meta["val"] = (first.to(torch.float64), *rest)
    assert before.differs(found.key()) == ["graph"]


def test_a_module_left_whole():
    def key(module):
        graph = torch.fx.Graph()
        graph.output((graph.call_module("inner", (graph.placeholder("x"),)),))
        root = nn.Module()
        root.inner = module
        return Captured("dynamo", torch.fx.GraphModule(root, graph), [t(2, 4)]).key()

    assert key(nn.Linear(4, 4)) == key(nn.Linear(4, 4))
    assert key(nn.Dropout(0.5)).differs(key(nn.Dropout(0.4))) == ["graph"]
    assert set(key(nn.Linear(4, 4)).differs(key(nn.Linear(4, 8)))) == {"graph", "parameters"}
    assert key(nn.Dropout(0.5)).differs(key(nn.Dropout(0.5).eval())) == ["graph"]

    class Mine(nn.Module):
        pass

    assert "of class" in key(Mine()).reason


class Wrapped(torch.Tensor):
    pass


def test_no_key_where_something_cannot_be_told(graph):
    subclass = graph_of(aten.sin.default, torch.ones(3).as_subclass(Wrapped)).key()
    assert subclass.reason.endswith("test_key_functions.Wrapped")
    drawn = graph_of(aten.bernoulli.p, t(3), 0.5)
    drawn.gm.graph.find_nodes(op="call_function", target=aten.bernoulli.p)[0].kwargs = {
        "generator": torch.Generator()
    }
    assert "torch._C.Generator" in drawn.key().reason
    hop = torch._higher_order_ops.triton_kernel_wrap.triton_kernel_wrapper_mutation
    assert "triton_kernel_wrapper_mutation" in graph_of(hop, t(3)).key().reason

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Mode():
        assert "Mode is active" in graph.key().reason
    odd = graph.key(backends=[Tuned(table=object()), AtenBackend()])
    assert "the options of the backend tuned" in odd.reason
    held = object()
    manager = PassManager().add("post_grad", passes.Pass("odd", lambda gm: gm if held else None))
    assert isinstance(graph.key(passes=manager), Bypass)
