"""Lists of backends: who is asked, whose cost wins, who is next when one fails."""

import re

import pytest
import torch
from torch import nn

import dovetail
from dovetail import Support, errors, history
from dovetail.backends.aten import AtenBackend
from dovetail.capture.decompose import core_decompositions
from dovetail.options import Options
from dovetail.place.priority import priority_list
from dovetail.report.report import since
from tests.differential import assert_same

MM, RELU, SIN = "aten.mm.default", "aten.relu.default", "aten.sin.default"


def t(*shape, grad=False):
    return torch.randn(*shape).requires_grad_(grad)


def backend(name, costs, *, fails=False, whole=(), **body):
    """A backend that takes the operators in ``costs``, each at its cost."""

    class Costed(AtenBackend):
        ran = []  # noqa: RUF012 - shared by all instances on purpose
        writes_in_place = False

        def supports(self, call):
            if call.op in costs:
                return Support.yes(costs[call.op])
            return Support.no(f"{self.name} has no {call.op}")

        def keeps_whole(self, call):
            return call.op in whole

        def compile(self, segment):
            if fails:
                raise RuntimeError(f"the compiler of {self.name} crashed")
            return super().compile(segment)

        def load(self, blob):
            run = super().load(blob)

            def execute(inputs):
                Costed.ran.extend(c.op for c in run.segment.calls)
                return run(inputs)

            return execute

    Costed.name = name
    for key, value in body.items():
        setattr(Costed, key, value)
    return Costed


def verdicts(graph=0):
    return {v.op: v for v in history.recent()[-1].graphs[graph].verdicts}


def segments(graph=0):
    return [s.backend for s in history.recent()[-1].graphs[graph].segments]


def names(*given, **options):
    found = priority_list(Options.resolve(options), *given)
    return [b.name for b in found]


# ---- the list ----------------------------------------------------------------------------------


def test_aten_ends_every_list():
    assert names("reference") == ["reference", "aten"]
    assert names("aten") == ["aten"]
    assert names(backends=["reference"]) == ["reference", "aten"]
    assert names("reference", backends=["portable"]) == ["reference", "portable", "aten"]
    assert names("reference", backends=("reference", "aten")) == ["reference", "aten"]
    assert names(AtenBackend) == ["aten"]


def test_classes_and_objects_need_no_registration():
    one, two = backend("one", {}), backend("two", {})
    assert names(backends=[one, two()]) == ["one", "two", "aten"]


@pytest.mark.parametrize(
    ("first", "given", "message"),
    [
        (None, ["aten", "reference"], "'aten' last, since it takes everything"),
        ("aten", ["reference"], "'aten' last"),
        (None, ["reference", "reference"], "names each backend once"),
        ("reference", ["portable", "reference"], "starts with 'reference', which backend= names"),
    ],
)
def test_lists_that_make_no_sense(first, given, message):
    with pytest.raises(errors.InvalidOption, match=message):
        names(first, backends=given)


@pytest.mark.parametrize("given", ["reference", [3], 4, [None]])
def test_what_is_no_list_of_backends(given):
    with pytest.raises(errors.InvalidOption, match="'backends' must be a list of names"):
        Options.resolve({"backends": given})


def test_an_unknown_or_unavailable_backend_is_named():
    with pytest.raises(errors.UnknownBackend, match="referense"):
        names(backends=["referense"])
    away = backend("away", {})
    away.available = lambda self: dovetail.Availability(False, "no device found")
    with pytest.raises(errors.BackendUnavailable, match="no device found"):
        names(backends=[away])


def test_the_default_backend_takes_a_list():
    one = backend("one", {MM: 0.0})
    options = {"backends": [one, "reference"]}
    fn = torch.compile(lambda x: (x @ x).sin(), backend="dovetail", options=options)
    x = t(3, 3)
    torch.testing.assert_close(fn(x), (x @ x).sin())
    assert history.recent()[-1].backends == ("one", "reference", "aten")
    assert {op: v.backend for op, v in verdicts().items()} == {MM: "one", SIN: "reference"}


def test_export_takes_a_list():
    class Model(nn.Module):
        def forward(self, x):
            return (x @ x).sin()

    one = backend("one", {MM: 0.0})
    artifact = dovetail.export(Model(), (t(3, 3),), options={"backends": [one, "reference"]})
    x = t(3, 3)
    torch.testing.assert_close(artifact(x), (x @ x).sin())
    assert artifact.record.backends == ("one", "reference", "aten")
    assert one.ran == [MM]


# ---- who wins ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_three_backends_in_one_graph(grad, dynamic):
    one, two = backend("one", {MM: 0.0}), backend("two", {RELU: 0.0, MM: 0.0})
    fn = lambda x, w: ((x @ w).relu() @ w).sin()  # noqa: E731
    given = (t(3, 4, grad=grad), t(4, 4, grad=grad))
    with dovetail.registered_backend(one), dovetail.registered_backend(two):
        assert_same(fn, *given, backend="one", backends=["two"], grad=grad, dynamic=dynamic)
    found = verdicts()
    assert {op: found[op].backend for op in (MM, RELU, SIN)} == {
        MM: "one",
        RELU: "two",
        SIN: "aten",
    }
    assert set(one.ran) == {MM}
    assert set(two.ran) == {RELU}


def test_every_backend_is_asked_and_every_answer_kept():
    one, two = backend("one", {MM: 2e-6}), backend("two", {MM: 3e-6, RELU: 0.0})
    options = {"backends": [one, two]}
    torch.compile(lambda x: (x @ x).relu(), backend="dovetail", options=options)(t(3, 3))
    found = verdicts()
    assert found[MM].answers == (("one", Support.yes(2e-6)), ("two", Support.yes(3e-6)))
    assert found[RELU].answers == (
        ("one", Support.no("one has no aten.relu.default")),
        ("two", Support.yes()),
    )
    assert found[RELU].refusals == (("one", "one has no aten.relu.default"),)


@pytest.mark.parametrize(
    ("costs", "winner"),
    [
        ((0.0, 0.0), "one"),  # no costs: the first
        ((2e-6, 1e-6), "two"),  # both give one: the lower
        ((1e-6, 2e-6), "one"),
        ((1e-6, 1e-6), "one"),  # equal: the first
        ((1e-6, 0.0), "one"),  # only one gives a cost: the first
        ((0.0, 1e-6), "one"),
    ],
)
def test_costs_decide_where_both_give_one(costs, winner):
    one, two = (backend(n, {RELU: c}) for n, c in zip(("one", "two"), costs, strict=True))
    options = {"backends": [one, two]}
    before = [c.number for c in history.recent()]
    torch.compile(lambda x: x.relu(), backend="dovetail", options=options)(t(3))
    assert verdicts()[RELU].backend == winner
    report = str(since(before))
    assert ("which is cheaper than one" in report) is (winner == "two")


# ---- what is taken apart -----------------------------------------------------------------------

SILU = "aten.silu.default"


def core_rules(self):
    return core_decompositions()


@pytest.mark.parametrize(
    ("first", "second", "whole"),
    [
        ((), (), False),  # both have core ATen's rule
        ((SILU,), (), True),
        ((), (SILU,), False),  # the first has a rule, so the second is not asked
    ],
)
def test_the_first_with_an_opinion_decides(first, second, whole):
    one = backend("one", dict.fromkeys(first, 0.0), whole=first, decompositions=core_rules)
    two = backend("two", dict.fromkeys(second, 0.0), whole=second, decompositions=core_rules)
    torch.compile(nn.functional.silu, backend="dovetail", options={"backends": [one, two]})(t(3))
    assert (SILU in verdicts()) is whole


def test_where_the_first_has_no_rule_the_second_decides():
    one = backend("one", {}, decompositions=lambda self: {})
    for whole in ((), (SILU,)):
        torch.compiler.reset()
        two = backend("two", dict.fromkeys(whole, 0.0), whole=whole, decompositions=core_rules)
        options = {"backends": [one, two]}
        torch.compile(nn.functional.silu, backend="dovetail", options=options)(t(3))
        assert (SILU in verdicts()) is bool(whole)


@pytest.mark.usefixtures("no_cache")
def test_passes_of_each_backend_run_in_the_list_s_order():
    order = []

    def noting(name):
        def note(gm):
            order.append(name)
            return gm

        note.__name__ = f"note_{name}"
        return dovetail.Passes(post_grad=(dovetail.Pass(f"note_{name}", note),))

    one = backend("one", {}, passes=lambda self: noting("one"))
    two = backend("two", {}, passes=lambda self: noting("two"))
    torch.compile(lambda x: x + 1, backend="dovetail", options={"backends": [one, two]})(t(3))
    assert order == ["one", "two"]


# ---- failure -----------------------------------------------------------------------------------


def run_failing(*backends, **options):
    options = {"backends": list(backends), "strict": False, **options}
    x = t(3)
    compiled = torch.compile(lambda x: x.relu().sin().relu(), backend="dovetail", options=options)
    with pytest.warns(errors.FallbackWarning) as caught:
        torch.testing.assert_close(compiled(x), x.relu().sin().relu())
    return [str(w.message) for w in caught]


def test_a_failed_segment_goes_to_the_next_backend_not_straight_to_aten():
    one, two = backend("one", {RELU: 0.0}, fails=True), backend("two", {RELU: 0.0})
    (warning,) = run_failing(one, two)  # two segments, one reason
    expected = "2 segments fall back from one to two: RuntimeError: the compiler of one crashed"
    assert warning == expected
    assert two.ran == [RELU, RELU]
    assert segments() == ["two", "aten", "two"]
    found = verdicts()[RELU]
    assert found.backend == "two"
    why = "failed to compile: RuntimeError: the compiler of one crashed"
    assert found.refusals == (("one", why),)


def test_a_backend_that_refuses_a_call_is_not_handed_its_segment():
    one, two = backend("one", {RELU: 0.0}, fails=True), backend("two", {SIN: 0.0})
    (warning,) = run_failing(one, two)
    assert warning.startswith("2 segments fall back from one to aten")
    assert two.ran == [SIN]
    assert segments() == ["aten", "two", "aten"]


def test_two_failures_in_a_row():
    one, two = (backend(n, {RELU: 0.0}, fails=True) for n in ("one", "two"))
    warnings = run_failing(one, two)
    assert [re.search(r"from (\w+) to (\w+)", w).groups() for w in warnings] == [
        ("one", "aten"),
        ("two", "aten"),
    ]
    assert [name for name, _ in verdicts()[RELU].refusals] == ["one", "two"]
    assert history.recent()[-1].notes == warnings


def test_strict_raises_at_the_first_failure():
    one, two = backend("one", {RELU: 0.0}, fails=True), backend("two", {RELU: 0.0})
    options = {"backends": [one, two], "strict": True}
    with pytest.raises(errors.BackendFailed, match=r"'one' failed to compile.*crashed"):
        torch.compile(lambda x: x.relu(), backend="dovetail", options=options)(t(3))
    assert two.ran == []
