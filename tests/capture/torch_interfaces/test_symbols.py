"""Symbolic sizes and fake tensors."""

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from dovetail.capture._torch.symbols import (
    fake_mode_of,
    shape_env,
    size_hint,
    sym_expr,
    symbol_facts,
    sympy_functions,
    unbacked_bindings,
)

aten = torch.ops.aten


def test_symbols_and_fake_tensors():
    gm = make_fx(lambda x: x.reshape(-1) * x.shape[0], tracing_mode="symbolic")(torch.randn(3, 4))
    values = [n.meta["val"] for n in gm.graph.nodes if "val" in n.meta]
    mode = fake_mode_of(values)
    assert isinstance(mode, FakeTensorMode)
    expr = sym_expr(values[0].shape[0])
    assert expr.is_Symbol
    assert size_hint(values[0].shape[0]) == 3
    assert sympy_functions().FloorDiv


def test_unbacked_bindings():
    mode = FakeTensorMode(shape_env=torch.fx.experimental.symbolic_shapes.ShapeEnv())
    with mode:
        x = torch.empty(4)
    gm = make_fx(lambda x: x.nonzero(), tracing_mode="symbolic")(torch.ones(4))
    (node,) = (n for n in gm.graph.nodes if n.target is aten.nonzero.default)
    bindings = unbacked_bindings(node)
    assert list(bindings.values()) == [(("size", -1), ("item", 0))]
    assert size_hint(node.meta["val"].shape[0]) is None
    assert x.shape == (4,)


def test_what_is_known_of_symbols():
    found = []

    def backend(gm, inputs):
        value = next(x for x in inputs if isinstance(x, torch.SymInt))
        found.append((sym_expr(value), symbol_facts(shape_env(value))))
        return gm.forward

    def fn(x):
        return x + 1 if x.shape[0] > 3 else x

    torch.compile(fn, backend=backend, dynamic=True)(torch.ones(7, 2))
    ((symbol, facts),) = found
    assert facts.hints[symbol] == 7
    assert facts.ranges[symbol][0] in (2, 4)
    assert any(symbol in expr.free_symbols for expr in facts.known)
