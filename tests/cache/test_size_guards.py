"""Graphs whose compilation decides by sizes: kept with those decisions, found where they hold."""

import subprocess
import sys
from pathlib import Path

import pytest
import sympy
import torch
from torch.nn import functional as F

from dovetail import cache, errors, history, passes
from dovetail.cache.graphs import GUARDS_ADDED
from dovetail.cache.local import Local
from dovetail.cache.settings import current
from dovetail.cache.size_guards import (
    OtherSizes,
    check_guards,
    guard_texts,
    parse_guard,
    with_guards,
    without_guards,
)
from tests.differential import needs_code


@pytest.fixture(autouse=True)
def _from_nothing():
    torch.compiler.reset()
    history.clear()


def pooled(x):
    """AOTAutograd decides whether what is left has one element in each dimension."""
    return F.max_pool2d(x, 2) * 2


def image(size):
    return torch.arange(7.0 * size * size).sin().reshape(1, 7, size, size)


def verdicts():
    return [(v.graph, v.state) for c in history.recent() for v in c.cache]


def compiled_anew(fn, *inputs, **keywords):
    """Results for each input, and what the cache said."""
    torch.compiler.reset()
    history.clear()
    call = torch.compile(fn, backend="cpu", dynamic=True, **keywords)
    for x in inputs:
        torch.testing.assert_close(call(x), fn(x))
    return verdicts()


def test_guards_that_hold_are_added():
    assert compiled_anew(pooled, image(8)) == [("dynamo", "miss")]
    for size in (8, 12):  # not only for the sizes of who compiled it
        assert compiled_anew(pooled, image(size), image(6)) == [("dynamo", "hit")]
    # A size that the guards rule out is not run by this code, but compiled.
    assert compiled_anew(pooled, image(8), image(3)) == [("dynamo", "hit"), ("dynamo", "miss")]


def asks(gm):
    """A pass that does more for long inputs."""
    size = gm.graph.find_nodes(op="placeholder")[-1].meta["val"].shape[0]
    if size > 5:
        gm.graph.output_node()
    return gm


def asks_a_ratio(gm):
    size = gm.graph.find_nodes(op="placeholder")[-1].meta["val"].shape[0]
    if size / 4 > 1.3:
        gm.graph.output_node()
    return gm


def with_pass(fn):
    return {"passes": passes.default().add("post_grad", fn)}


def doubled(x):
    return x * 2


def aliased(x):
    return x * 2, x.view(-1)


def test_guards_that_do_not_hold_are_a_miss():
    options = with_pass(asks)
    long, short = torch.randn(8, 2), torch.randn(4, 2)
    assert compiled_anew(doubled, long, options=options) == [("dynamo", "miss")]
    found = compiled_anew(doubled, short, options=options)
    assert found == [("dynamo", "miss"), ("dynamo", "miss")]  # none that fits, then none
    reason = history.recent()[-1].cache[0].reason
    assert reason == "what is stored is for s0 > 5, not for s0 = 4"
    # Both are kept from now on.
    assert compiled_anew(doubled, short, options=options) == [("dynamo", "miss"), ("dynamo", "hit")]
    assert compiled_anew(doubled, torch.randn(6, 3), options=options) == [("dynamo", "hit")]


def test_guards_of_a_pass_after_autograd():
    options = with_pass(asks)
    long, short = torch.randn(8, 2), torch.randn(4, 2)
    assert compiled_anew(aliased, long, options=options)[-1] == ("inference", "miss")
    found = compiled_anew(aliased, torch.randn(9, 2), short, options=options)
    assert ("inference", "hit") in found
    assert found.count(("inference", "miss")) == 2  # for the short one: none that fits, then none
    found = compiled_anew(aliased, short, options=options)
    assert found[-2:] == [("inference", "miss"), ("inference", "hit")]


def test_guards_that_cannot_be_written():
    for _ in range(2):
        found = compiled_anew(doubled, torch.randn(8, 2), options=with_pass(asks_a_ratio))
        assert found[-1] == ("dynamo", "bypass")
        assert GUARDS_ADDED in history.recent()[-1].cache[-1].reason


def test_a_graph_without_guards_serves_all_sizes():
    assert compiled_anew(doubled, torch.randn(8, 2)) == [("dynamo", "miss")]
    assert compiled_anew(doubled, torch.randn(5, 2)) == [("dynamo", "hit")]


def test_results_tell_dynamo_which_sizes_vary():
    for _ in range(2):
        torch.compiler.reset()
        result = torch.compile(doubled, backend="cpu", dynamic=True)(torch.randn(8, 2))
        assert result._dynamo_propagated_dynamic_indices == {0, 1}


class Named:
    """Symbols of a key, as far as guards ask."""

    def __init__(self, **sizes):
        self.sizes = sizes

    def hints(self):
        return self.sizes


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("s0 % 2 == 0", [4, 6, 8]),
        ("s0 // 3 * 3 != s0", [4, 5, 7, 8]),
        ("s0 - 4 <= 1 or s0 == 9", [4, 5, 9]),
        ("max(s0, 6) > min(s0, 5) + 1", [4, 7, 8, 9]),
        ("s0 >= 8", [8, 9]),
        ("s0 < 8", [4, 5, 6, 7]),
    ],
)
def test_what_guards_say(text, holds):
    assert " or ".join(map(str, parse_guard(text))) == text
    for size in range(4, 10):
        if size in holds:
            check_guards([text], Named(s0=size))
        else:
            with pytest.raises(OtherSizes, match=f"s0 = {size}"):
                check_guards([text], Named(s0=size))


def test_a_guard_on_what_the_graph_does_not_have():
    with pytest.raises(errors.InvalidCompiledGraph):
        check_guards(["s1 == 3"], Named(s0=3))
    with pytest.raises(errors.InvalidCompiledGraph):
        check_guards(["7 // s0 == 3"], Named(s0=0))


@pytest.mark.parametrize(
    "told",
    [
        3,
        {"a": 1},
        [3],
        ["s0"],
        ["s0 == print(1)"],
        ["s0 == (1).real"],
        ["s0 ** 2 == 4"],
        ["x" * 20_000],
    ],
)
def test_what_is_no_guard(told):
    with pytest.raises(errors.InvalidCompiledGraph):
        guard_texts(told)


def test_bytes():
    assert with_guards([], b"graph") == b"graph"
    assert without_guards(b"graph") == ([], b"graph")
    data = with_guards(["s0 == 2", "s0 < s1"], b"graph")
    assert without_guards(data) == (["s0 == 2", "s0 < s1"], b"graph")
    for junk in (data[:9], data[:14], data.replace(b"==", b"=!"), data[:8] + b"\xff" * 40):
        with pytest.raises(errors.InvalidCompiledGraph):
            without_guards(junk)


def test_an_entry_with_other_guards_is_compiled_again(monkeypatch):
    compiled_anew(pooled, image(8))
    original = cache.lookup

    def spoilt(key):
        found = original(key)
        if not isinstance(found, cache.Hit):
            return found
        return cache.Hit(with_guards(["s7 == 3"], without_guards(found.payload)[1]), "local")

    monkeypatch.setattr(cache, "lookup", spoilt)
    assert ("dynamo", "miss") in compiled_anew(pooled, image(8))


def test_a_symbol_that_no_input_shows_has_no_text():
    from dovetail.cache.symbols import Symbols

    with pytest.raises(errors.SizeError):
        Symbols().renamed(sympy.Symbol("s9", integer=True) > 3)


_PROCESS = """
import sys, torch
from torch.nn import functional as F
from dovetail import history
from dovetail.capture import aot

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 2)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1)), x.split(2, 1)

torch.manual_seed(0)
model, ran, run = Net().eval(), [], aot.Capture.run
aot.Capture.run = lambda *args: ran.append(1) or run(*args)
call = torch.compile(model, backend="cpu", dynamic=True)
with torch.no_grad():
    for size in map(int, sys.argv[1:]):
        x = torch.randn(2, 3, size, size + 2)
        torch.testing.assert_close(call(x), model(x))
print([v.state for c in history.recent() for v in c.cache], len(ran))
"""


@needs_code
@pytest.mark.e2e
def test_another_process_finds_it_for_other_sizes(tmp_path):
    keywords = {"capture_output": True, "text": True, "check": True, "cwd": tmp_path}

    def sizes(*told):
        command = [sys.executable, "-c", _PROCESS, *map(str, told)]
        return subprocess.run(command, **keywords).stdout.strip()

    assert sizes(12) == "['miss'] 1"
    assert sizes(16, 9, 30, 8) == "['hit'] 0"


def by_parity(gm):
    """A pass whose result is right for sizes of one parity, which it asks for."""
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor):
        if node.args[1] == 3.0:
            even = node.meta["val"].shape[0] % 2 == 0
            node.args = (node.args[0], 3.0 if even else 30.0)
    return gm


def test_a_training_pair_takes_no_graph_of_other_sizes():
    """The forward graph of a pair may have been stored anew since, by who had other sizes."""

    def fn(x, w):
        return (torch.sin(x * w) * 3.0).sum(1)

    def factor(size):
        torch.compiler.reset()
        x, w = torch.arange(2.0 * size).reshape(size, 2), torch.ones(2, requires_grad=True)
        call = torch.compile(fn, backend="aten", dynamic=True, options=with_pass(by_parity))
        y = call(x, w)
        y.sum().backward()
        return round((y / fn(x, w)).mean().item())

    assert [factor(6), factor(6)] == [1, 1]
    local = Local(current().folder, current().size)
    for kept in local.entries():
        header = local.header(kept.digest)
        if header is not None and header.label.startswith("forward"):
            next(Path(current().folder).rglob(f"{kept.digest}*")).unlink()
    assert [factor(7), factor(6), factor(7), factor(6)] == [10, 1, 10, 1]
