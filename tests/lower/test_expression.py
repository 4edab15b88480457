"""Expressions: what rules' bodies become, printed, compared, verified and evaluated."""

import math
import random
from dataclasses import replace

import pytest

from dovetail.ir.affine import Affine
from dovetail.ir.call import OpCall, Ref
from dovetail.ir.size import Size
from dovetail.ir.strides import contiguous_strides
from dovetail.ir.target import TARGETS
from dovetail.ir.tensor import TensorDesc
from dovetail.lower import all_rules, calls
from dovetail.lower.expression import (
    Active,
    Compute,
    Expression,
    InvalidExpression,
    Literal,
    Place,
    Read,
    ScanStep,
    Within,
    inline,
    trace,
    verify_expression,
)
from dovetail.lower.index_map import IndexMap, variables
from dovetail.lower.rules import Lower
from dovetail.lower.values import LibraryCall, Pointwise, Reduction, Source, View
from dovetail.schedule.plan import verdict

TARGET = TARGETS["x86-64-v4"]
X = Source("x", "float32", (4, 6))
PLACES = Source("places", "int64", (4,))


def desc(*shape, dtype="float32", strides=None):
    return TensorDesc(dtype, shape, contiguous_strides(shape) if strides is None else strides)


def call(op, *args, name="out", output=None, **kwargs):
    return OpCall(name, f"aten.{op}", args, kwargs, output or args[0].desc)


def lower_call(lower, made):
    return calls.lower_call(lower, made, lambda found, _: found)


def lower_one(made, *values):
    lower = Lower({(v.name, ()): v for v in values})
    return lower, lower_call(lower, made)


def gathered(b, index):
    row = b.apply(
        "check", "int64", b.read(PLACES, index[:1]), b.const(4, "int64"), b.mask_or_true()
    )
    inside = b.apply("lt", "bool", b.position(index[1].shift(1)), b.const(6, "int64"))
    value = b.masked(inside, lambda: b.read(X, (Affine.value(row), index[1].shift(1))))
    return b.apply("where", "float32", inside, value, b.const(-0.0, "float32"))


TEXT = """\
(d0, d1)
  %0: int64 = read places[d0]
  %1: int64 = 4
  %2: bool = active
  %3: int64 = check %0, %1, %2
  %4: int64 = index d1 + 1
  %5: int64 = 6
  %6: bool = lt %4, %5
  %7: bool = within %6
  %8: float32 = read x[%3, d1 + 1] where %7
  %9: float32 = -0.0
  %10: float32 = where %6, %8, %9
  return %10"""


def test_text_has_a_line_for_each_node():
    assert trace(gathered, 2, (X, PLACES)).text(["x", "places"]) == TEXT


def test_the_same_is_computed_once():
    def body(b, index):
        return b.apply("mul", "float32", b.read(X, index), b.read(X, index))

    read, product = trace(body, 2, (X,)).nodes
    assert isinstance(read, Read)
    assert product == Compute("mul", "float32", ("%0", "%0"))


def test_expressions_are_equal_by_what_they_compute_not_by_what_they_read():
    other = Source("other", "float32", (4, 6)), Source("rows", "int64", (4,))

    def same(b, index):
        stand_in = {X: other[0], PLACES: other[1]}

        class Renaming:
            def __getattr__(self, name):
                return getattr(b, name)

            def read(self, value, place):
                return b.read(stand_in[value], place)

        return gathered(Renaming(), index)

    first, second = trace(gathered, 2, (X, PLACES)), trace(same, 2, other)
    assert first == second
    assert hash(first) == hash(second)
    assert len({first, second, trace(gathered, 2, (PLACES, X))}) == 2


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (0.0, -0.0, False),
        (math.nan, float("nan"), True),
        (1.0, 1, True),  # as float32 writes it
        (2.0, 3.0, False),
    ],
)
def test_numbers_are_compared_by_what_they_print(one, other, same):
    first, second = (trace(lambda b, _, n=n: b.const(n, "float32"), 0, ()) for n in (one, other))
    assert (first == second) is same


def test_casts_to_the_type_a_value_has_are_none():
    halves = Source("h", "bfloat16", (3,))
    found = trace(lambda b, i: b.cast(b.read(halves, i), "float32"), 1, (halves,))
    assert [type(node) for node in found.nodes] == [Read]
    assert found.nodes[0].dtype == "float32"


def test_an_expression_can_be_inlined_in_another():
    first = trace(gathered, 2, (X, PLACES))

    def body(b, index):
        return inline(b, first, (X, PLACES), index)[0]

    assert trace(body, 2, (X, PLACES)) == first
    moved = trace(lambda b, i: inline(b, first, (X, PLACES), (i[1], i[0]))[0], 2, (X, PLACES))
    assert moved.reads[0].index == IndexMap((variables(2)[1],))
    assert [n.dtype for n in moved.nodes] == [n.dtype for n in first.nodes]
    verify_expression(moved, (X, PLACES))


def test_what_is_inlined_under_a_mask_is_under_both():
    first = trace(gathered, 2, (X, PLACES))

    def body(b, index):
        outer = b.apply("lt", "bool", b.position(index[0]), b.const(2, "int64"))
        return b.masked(outer, lambda: inline(b, first, (X, PLACES), index)[0])

    found = trace(body, 2, (X, PLACES))
    verify_expression(found, (X, PLACES))
    outer, inner = (node for node in found.nodes if isinstance(node, Within))
    assert found.nodes[int(inner.outer[1:])] == outer
    assert Active() not in found.nodes
    assert all(read.mask is not None for read in found.reads)


def test_a_body_may_read_only_operands():
    with pytest.raises(InvalidExpression, match="no operand"):
        trace(lambda b, i: b.read(X, i), 2, (PLACES,))


def test_masks_nest():
    def body(b, index):
        outer = b.apply("lt", "bool", b.position(index[0]), b.const(2, "int64"))
        inner = b.apply("lt", "bool", b.position(index[1]), b.const(2, "int64"))
        return b.masked(outer, lambda: b.masked(inner, lambda: b.read(X, index)))

    found = trace(body, 2, (X,))
    first, second = (node for node in found.nodes if isinstance(node, Within))
    assert first.outer is None
    assert found.nodes[int(second.outer[1:])] == first
    verify_expression(found, (X,))


def expression(*nodes, rank=2, results=None):
    return Expression(rank, nodes, results or (f"%{len(nodes) - 1}",))


READ = Read(0, IndexMap(variables(2)), "float32")
BAD = {
    "an operand that is not there": expression(replace(READ, operand=1)),
    "another type than its operand's": expression(replace(READ, dtype="float64")),
    "another rank than its operand's": expression(replace(READ, index=IndexMap(variables(1)))),
    "an index out of scope": expression(READ, rank=1),
    "a place out of scope": expression(Place(variables(3)[2])),
    "a use before the definition": expression(Compute("neg", "float32", ("%1",)), READ),
    "too many operands": expression(READ, Compute("neg", "float32", ("%0", "%0"))),
    "an unknown operation": expression(READ, Compute("negate", "float32", ("%0",))),
    "mixed types": expression(
        READ, Literal("1", "int64", 1), Compute("add", "float32", ("%0", "%1"))
    ),
    "a comparison that is a number": expression(READ, Compute("lt", "float32", ("%0", "%0"))),
    "a mask that is none": expression(
        READ, Compute("lt", "bool", ("%0", "%0")), replace(READ, mask="%1")
    ),
    "a mask that is a number": expression(READ, Within("%0", None)),
    "a gathered index that is no int64": expression(
        READ, replace(READ, index=IndexMap((Affine.value("%0"), variables(2)[1])))
    ),
    "a scan's step elsewhere": expression(READ, ScanStep("sum", "float32", ("%0",))),
    "a node twice": expression(READ, READ),
    "a result that is no node": expression(READ, results=("%4",)),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_the_verifier_refuses(bad):
    with pytest.raises(InvalidExpression):
        verify_expression(bad, (X,))


def test_the_verifier_accepts_a_scans_step_in_a_scan():
    found = expression(READ, ScanStep("sum", "float32", ("%0",)), Active())
    verify_expression(found, (X,), scans=True)


# ---- calls -------------------------------------------------------------------------------------


def test_values_know_the_call_they_come_from():
    x = Ref("x", desc(4, 6))
    made = call("_softmax.default", x, -1, False, name="probabilities")
    _, (result,) = lower_one(made, X)
    names, stack = set(), [result]
    while stack:
        value = stack.pop()
        names.add((value.origin, isinstance(value, Source)))
        stack += getattr(value, "reads", ()) or ([value.base] if isinstance(value, View) else [])
    assert names == {("probabilities", False), ("x", True)}


@pytest.fixture
def rules(monkeypatch):
    """The rules, some of which a test may replace."""
    changed = dict(all_rules())
    monkeypatch.setattr(calls, "all_rules", lambda: changed)
    return changed


def test_a_rule_runs_once_for_calls_that_agree(rules):
    runs = []
    original = rules["neg.default"]
    rules["neg.default"] = lambda *args: (runs.append(1), original(*args))[1]
    lower = Lower({("x", ()): X})
    x = Ref("x", desc(4, 6))
    assert verdict(call("neg.default", x, name="first"), TARGET) == ""
    (first,) = lower_call(lower, call("neg.default", x, name="first"))
    (second,) = lower_call(lower, call("neg.default", Ref("first", desc(4, 6)), name="second"))
    assert len(runs) == 1
    assert first is not second
    assert first.expression is second.expression
    assert (first.name, second.name) == ("first", "second")
    assert first.reads == (X,)
    assert second.reads == (first,)


def test_numbers_that_compare_equal_are_told_apart():
    x = Ref("x", desc(4, 6, dtype="int64"))
    lower = Lower({("x", ()): Source("x", "int64", (4, 6))})
    texts = []
    for n, number in enumerate((1, True, 1.0)):
        output = desc(4, 6, dtype="float32" if type(number) is float else "int64")
        (made,) = lower_call(lower, call("mul.Tensor", x, number, name=f"m{n}", output=output))
        texts.append(str(made.expression))
    assert texts[0] == texts[1] != texts[2]


def test_inner_values_get_names_of_their_own():
    lower = Lower({("x", ()): X})
    x = Ref("x", desc(4, 6))
    for n in range(2):
        lower_call(lower, call("_softmax.default", x, -1, False, name=f"s{n}"))
    names = set()
    stack = [lower.values[f"s{n}", ()] for n in range(2)]
    values = set()
    while stack:
        value = stack.pop()
        if value not in values and not isinstance(value, Source):
            values.add(value)
            names.add(value.name)
            stack += value.reads
    assert len(names) == len(values)


def test_a_rule_that_fails_is_a_refusal_with_its_reason(rules):
    rules["broken"] = lambda lower, call: lower.pointwise(
        call, lambda b, _: b.cast("%7", "float32"), ()
    )
    made = call("broken", Ref("x", desc(4, 6)))
    assert verdict(made, TARGET) == "its rule fails: KeyError: '%7'"
    assert isinstance(lower_call(Lower({("x", ()): X}), made), LibraryCall)


def test_a_rule_whose_expression_is_invalid_is_a_refusal(rules):
    rules["invalid"] = lambda lower, call: lower.pointwise(call, lambda b, i: b.position(i[0]), ())
    assert "is computed as int64" in verdict(call("invalid", Ref("x", desc(4, 6))), TARGET)


# ---- properties --------------------------------------------------------------------------------


def random_affine(rng, rank):
    place = Affine(rng.randrange(-3, 4))
    for variable in rng.sample(variables(rank), rng.randrange(rank + 1)):
        place += variable.scale(rng.choice((-2, -1, 1, 3)))
    return place


def evaluate(place, point):
    return place.offset + sum(c * point[name] for name, c in place.axes)


@pytest.mark.parametrize("seed", range(20))
def test_index_maps_compose_and_evaluate(seed):
    rng = random.Random(seed)
    for _ in range(20):
        first, second, third = (rng.randrange(1, 4) for _ in range(3))
        inner = IndexMap(tuple(random_affine(rng, first) for _ in range(second)))
        outer = IndexMap(tuple(random_affine(rng, second) for _ in range(third)))
        point = {f"d{n}": rng.randrange(-5, 6) for n in range(first)}
        between = {f"d{n}": evaluate(p, point) for n, p in enumerate(inner.results)}
        composed = IndexMap(outer.at(inner.results))
        expected = [evaluate(p, between) for p in outer.results]
        assert [evaluate(p, point) for p in composed.results] == expected
        assert composed.at(variables(first)) == composed.results


OPS = {"add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y}


def random_body(rng):
    """A body that builds a random expression of X, and a plain function that computes it."""
    plan = [(rng.choice(list(OPS)), rng.random(), rng.random()) for _ in range(rng.randrange(1, 9))]

    def both(read, number, apply):
        found = [read, number]
        for op, x, y in plan:
            found.append(apply(op, found[int(x * len(found))], found[int(y * len(found))]))
        return found[-1]

    def body(b, index):
        return both(
            b.read(X, index),
            b.cast(b.position(index[0].scale(2) + index[1]), "float32"),
            lambda op, x, y: b.apply(op, "float32", x, y),
        )

    return body, lambda x, place: both(x, place, lambda op, a, c: OPS[op](a, c))


def interpret(found, x, point):
    values = []
    for node in found.nodes:
        given = [values[int(name[1:])] for name in node.uses]
        match node:
            case Read():
                values.append(x)
            case Place():
                values.append(evaluate(node.index, point))
            case Compute(op="cast"):
                values.append(given[0])
            case Compute():
                values.append(OPS[node.op](*given))
    return values[int(found.results[0][1:])]


@pytest.mark.parametrize("seed", range(20))
def test_an_expression_computes_what_its_body_does(seed):
    rng = random.Random(seed)
    body, plain = random_body(rng)
    found = trace(body, 2, (X,))
    verify_expression(found, (X,))
    assert len(set(found.nodes)) == len(found.nodes)
    for _ in range(5):
        x, point = rng.randrange(-3, 4), {"d0": rng.randrange(4), "d1": rng.randrange(6)}
        assert interpret(found, x, point) == plain(x, 2 * point["d0"] + point["d1"])


def test_reshapes_print_their_runs():
    lower = Lower({("x", ()): X})
    made = call("view.default", Ref("x", desc(4, 6)), (2, 2, 6), output=desc(2, 2, 6))
    (found,) = lower_call(lower, made)
    assert str(found.index) == "[2*d0 + d1, d2]"
    back = call("view.default", Ref("out", desc(2, 2, 6)), (24,), name="flat", output=desc(24))
    (found,) = lower_call(lower, back)
    assert str(found.index) == "[unravel(d0, [2, 2, 6])]"


def test_symbolic_sizes_stay_in_index_maps():
    rows = Size.symbol("s0")
    x = Source("x", "float32", (rows, 6))
    found = IndexMap.of(1, lambda i: (Affine(rows).shift(-1), i[0].scale(rows)))
    assert str(found) == "[s0 + (-1), s0*d0]"
    value = Pointwise("y", "float32", (3,), None, lambda b, i: b.read(x, found.at(i)), (x,))
    assert value.expression.reads[0].index == found


def test_reductions_may_have_two_operands():
    def body(b, index):
        return b.read(X, index), b.position(index[1])

    value = Reduction("top", "int64", "argmax", (4, 6), (1,), body, (X,), "int64")
    assert value.expression.results == ("%0", "%1")
    assert value.shape == (4,)
