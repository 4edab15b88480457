"""What enters a graph's key: the graph, its inputs and its constants."""

import enum

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.cache.graphs import capture, dynamo, graph_of, keys, t

aten = torch.ops.aten


GRAPHS = {
    "a number": (lambda x: x * 2, lambda x: x * 3),
    "an integer for a float": (lambda x: x + 1, lambda x: x + 1.0),
    "zero's sign": (lambda x: x + 0.0, lambda x: x + -0.0),
    "a keyword": (lambda x: torch.add(x, x, alpha=2), lambda x: torch.add(x, x, alpha=3)),
    "a keyword's absence": (lambda x: x.sum(), lambda x: x.sum(dim=None, keepdim=True)),
    "a dtype": (lambda x: x.to(torch.float16), lambda x: x.to(torch.bfloat16)),
    "a device": (lambda x: x.to("cpu"), lambda x: x.to("meta")),
    "a memory format": (
        lambda x: x.clone(memory_format=torch.contiguous_format),
        lambda x: x.clone(memory_format=torch.preserve_format),
    ),
    "a function": (lambda x: torch.sin(x), lambda x: torch.cos(x)),
    "a method": (lambda x: x.sin(), lambda x: x.cos()),
    "a method for a function": (lambda x: torch.sin(x), lambda x: x.sin()),
    "the order of arguments": (lambda x: x.sin() - x, lambda x: x - x.sin()),
    "the order of results": (lambda x: (x.sin(), x.cos()), lambda x: (x.cos(), x.sin())),
    "a slice": (lambda x: x[1:3], lambda x: x[1:2]),
    "a string": (
        lambda x: nn.functional.gelu(x, approximate="none"),
        lambda x: nn.functional.gelu(x, approximate="tanh"),
    ),
    "a branch": (
        lambda x: torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a + 2, (x,)),
        lambda x: torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a + 3, (x,)),
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_what_changes_the_graph(name):
    one, other = (dynamo(fn, t(4, 4)) for fn in GRAPHS[name])
    assert one.differs(other) == ["graph"]


@pytest.mark.parametrize("name", ["a number", "a dtype", "a branch", "the order of results"])
def test_what_changes_the_functional_graph(name):
    one, other = (keys(fn, t(4, 4))["inference"] for fn in GRAPHS[name])
    assert one.differs(other) == ["graph"]


@pytest.mark.parametrize("name", GRAPHS)
def test_the_same_graph_again(name):
    one, other = (keys(GRAPHS[name][0], t(4, 4)) for _ in range(2))
    assert {k: v.digest for k, v in one.items()} == {k: v.digest for k, v in other.items()}


def overlapping():
    held = torch.empty(0).set_(t(8).untyped_storage(), 0, (4,), (1,))
    return held, torch.empty(0).set_(held.untyped_storage(), 2, (4,), (1,))


INPUTS = {
    "a size": ([t(4, 4), t(4)], [t(8, 4), t(4)], ["input 0"]),
    "a dtype": ([t(4, 4), t(4)], [t(4, 4), t(4).double()], ["input 1"]),
    "strides": ([t(4, 4), t(4)], [t(4, 4).t().contiguous().t(), t(4)], ["input 0"]),
    "requires_grad": ([t(4, 4), t(4)], [t(4, 4).requires_grad_(), t(4)], ["input 0"]),
    "a parameter": (
        [t(4), t(4)],
        [t(4), nn.Parameter(t(4))],
        ["input 1", "parameters", "order of inputs"],
    ),
    "shared memory": ([t(4), t(4)], list(overlapping()), ["shared memory"]),
}


@pytest.mark.parametrize("name", INPUTS)
def test_what_changes_the_inputs(name):
    one, other, expected = INPUTS[name]
    found = [dynamo(lambda x, y: x * y, *args, dynamic=False) for args in (one, other)]
    assert found[0].differs(found[1]) == expected


def test_a_difference_reads_as_one():
    one, other = (dynamo(lambda x: x + 1, t(n, 64), dynamic=False) for n in (8, 16))
    assert one.differs(other) == ["input 0"]
    assert one.text("input 0").startswith("float32[8, 64]")
    assert other.text("input 0").startswith("float32[16, 64]")


def test_where_a_tensor_begins_matters_to_those_who_ask():
    at = [torch.empty(0).set_(t(8).untyped_storage(), n, (4,), (1,)) for n in (0, 2)]
    plain = [dynamo(lambda x: x + 1, x) for x in at]
    assert plain[0] == plain[1]
    asked = [graph_of(aten.as_strided.default, x, (2,), (1,)).key() for x in at]
    assert asked[0].differs(asked[1]) == ["shared memory"]


def test_an_enumeration_by_its_value():
    def key(value):
        class Kind(enum.StrEnum):
            USED = value

        return dynamo(lambda x: F.gelu(x, approximate=Kind.USED), t(4))

    assert key("tanh") == key("tanh")
    assert key("tanh").differs(key("none")) == ["graph"]


def test_parameters_stand_apart_and_their_contents_do_not_matter():
    torch.manual_seed(0)
    one, again = (dynamo(nn.Linear(4, 4), t(2, 4)) for _ in range(2))
    wider = dynamo(nn.Linear(4, 8), t(2, 4))
    assert one == again
    assert one.differs(wider) == ["parameters"]


def test_kept_inputs_matter_after_autograd():
    (plain,) = (c for c in capture(lambda x: x + 1, t(4)) if c.stage == "inference")
    before = plain.key()
    (node,) = plain.gm.graph.find_nodes(op="placeholder")
    node.meta["dovetail_constant"] = True
    assert set(before.differs(plain.key())) == {"input 0", "parameters", "order of inputs"}


def test_constants_by_their_contents():
    def adds(value):
        return lambda x: x + torch.tensor([1.0, value])

    def graphs(value):
        return next(c for c in capture(adds(value), t(2)) if c.stage == "inference")

    one, again, other = (graphs(value).key() for value in (2.0, 2.0, 3.0))
    assert one == again
    assert one.differs(other) == ["constants"]
    assert one.text("constants") == "1 constants"


@pytest.mark.parametrize(
    "value",
    [t(3, 4).t(), t(3).bfloat16(), torch.tensor(2), t(0), torch.tensor([1 + 2j]).conj(), t(3) > 1],
    ids=["transposed", "bfloat16", "scalar", "empty", "conj", "bool"],
)
def test_every_kind_of_contents(value):
    from dovetail.cache.graph_parts import contents_digest

    assert contents_digest(value) == contents_digest(value.clone())
    if value.numel():
        assert contents_digest(value) != contents_digest(torch.ones_like(value) * 7 == 1)


def test_large_contents_are_hashed_whole():
    from dovetail.cache import graph_parts

    big = torch.zeros((2 * graph_parts._CHUNK) // 4 + 1000)
    before = graph_parts.contents_digest(big)
    for position in (0, graph_parts._CHUNK // 4, -1):
        changed = big.clone()
        changed[position] = 1
        assert graph_parts.contents_digest(changed) != before
