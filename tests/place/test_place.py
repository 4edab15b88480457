"""Placement: segments, reasons, fallback, operators kept whole."""

import random

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import dovetail
from dovetail import Support, errors, history
from dovetail.backends.aten import AtenBackend
from dovetail.place.placement import place
from tests.differential import assert_same

F = nn.functional
aten = torch.ops.aten


def accelerator(*ops, fails=False, **body):
    """A backend that takes only some operators and otherwise behaves like ATen."""

    class Accelerator(AtenBackend):
        name = "accelerator"
        writes_in_place = False
        ran = []  # noqa: RUF012 - shared by all instances on purpose

        def supports(self, call):
            if call.op in ops:
                return Support.yes()
            return Support.no(f"no kernel for {call.op}")

        def decompositions(self):
            from dovetail.capture.decompose import core_decompositions

            return core_decompositions()

        def compile(self, segment):
            if fails:
                raise RuntimeError("the vendor's compiler crashed")
            return super().compile(segment)

        def load(self, blob):
            run = super().load(blob)

            def execute(inputs):
                Accelerator.ran.append([c.op for c in run.segment.calls])
                return run(inputs)

            return execute

    for key, value in body.items():
        setattr(Accelerator, key, value)
    return Accelerator


def t(*shape, grad=False):
    return torch.randn(*shape).requires_grad_(grad)


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_what_is_refused_runs_on_aten(grad, dynamic):
    cls = accelerator("aten.mm.default", "aten.relu.default")
    with dovetail.registered_backend(cls):
        fn = lambda x, w: F.layer_norm((x @ w).relu(), (4,)) @ w  # noqa: E731
        assert_same(
            fn,
            t(3, 4, grad=grad),
            t(4, 4, grad=grad),
            backend="accelerator",
            grad=grad,
            dynamic=dynamic,
        )
    assert ["aten.mm.default", "aten.relu.default"] in cls.ran
    graph = history.recent()[-1].graphs[0]
    by_op = {v.op: v for v in graph.verdicts}
    assert by_op["aten.mm.default"].backend == "accelerator"
    refused = next(v for v in graph.verdicts if v.backend == "aten")
    assert refused.refusals == (("accelerator", f"no kernel for {refused.op}"),)


def test_tuple_results_cross_segments():
    cls = accelerator("aten.add.Tensor", "aten.mul.Tensor")
    with dovetail.registered_backend(cls):

        def fn(x):
            pairs = zip(x.split(2, 1), x.sort(1)[0].split(2, 1), strict=True)
            return [a + b * 2 for a, b in pairs]

        assert_same(fn, t(3, 4), backend="accelerator")
        assert_same(lambda x: x.max(0)[1] + x.max(0)[0] * 2, t(3, 4), backend="accelerator")


def test_mutation_and_data_dependent_sizes_cross_segments():
    cls = accelerator("aten.add.Tensor", "aten.mul.Tensor")
    with dovetail.registered_backend(cls):
        assert_same(lambda x: x.add_(1).relu_(), t(4), backend="accelerator", calls=2)
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            fn = lambda x: (x.nonzero() * 2 + 1, x.nonzero().shape[0])  # noqa: E731
            assert_same(fn, torch.tensor([0.0, 1.0, 2.0]), backend="accelerator")


def test_random_graphs_of_two_backends():
    rng = random.Random(0)
    choices = [(rng.randrange(n + 1), rng.randrange(4)) for n in range(60)]

    def fn(x):
        values = [x]
        for source, kind in choices:
            a = values[source]
            values.append([a + 1, a.sin() * x, a.relu() - a, a.t().contiguous().t()][kind])
        return values[-1], values[-7], sum(values)

    with dovetail.registered_backend(accelerator("aten.add.Tensor", "aten.relu.default")):
        assert_same(fn, t(3, 3), backend="accelerator")
    segments = history.recent()[-1].graphs[0].segments
    assert len(segments) > 5
    assert {name for name, *_ in segments} == {"accelerator", "aten"}


def random_graph(seed):
    """A DAG of calls with random sources, some of them random draws; every tenth is a large one."""
    rng = random.Random(seed)
    nodes = 2000 if seed % 10 == 0 else 300
    graph = torch.fx.Graph()
    values = [graph.placeholder("x")]
    values[0].meta["val"] = fake = FakeTensorMode().from_tensor(torch.randn(3))
    for _ in range(nodes):
        recent = values[-rng.choice([5, 50, 2000]) :]
        op = rng.choice(
            [aten.sin.default, aten.relu.default, aten.add.Tensor, aten.rand_like.default]
        )
        args = [rng.choice(recent) for _ in range(2 if op is aten.add.Tensor else 1)]
        node = graph.call_function(op, tuple(args))
        node.meta["val"] = fake
        values.append(node)
    graph.output(tuple(rng.sample(values, 5)))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize("seed", range(100))
def test_random_dags_are_cut_without_a_cycle(seed):
    gm = random_graph(seed)
    taken = ("aten.sin.default", "aten.rand_like.default") if seed % 2 else ("aten.sin.default",)
    placement = place(gm, [accelerator(*taken)(), AtenBackend()])
    calls = [n.name for n in gm.graph.nodes if n.op == "call_function"]
    placed = [c.name for s in placement.segments for c in s.segment.calls]
    assert sorted(placed) == sorted(calls)  # every call once
    made = {"x"}
    for segment in placement.segments:  # runnable in this order: so there is no cycle
        assert {name for name, _ in segment.sources} <= made
        made |= {c.name for c in segment.segment.calls}
        inside = {i.name for i in segment.segment.inputs}
        for call in segment.segment.calls:
            assert all(ref.name in inside for ref in call.refs())
            inside.add(call.name)
    draws = [n for n in placed if n.startswith("rand_like")]
    assert draws == [c for c in calls if c.startswith("rand_like")]  # in eager's order


def test_independent_work_shares_a_segment():
    def fn(x):
        return sum((x * n).sin().relu() for n in range(1, 9))

    with dovetail.registered_backend(accelerator("aten.sin.default", "aten.relu.default")):
        assert_same(fn, t(3), backend="accelerator")
    backends = [name for name, *_ in history.recent()[-1].graphs[0].segments]
    assert backends == ["aten", "accelerator", "aten"]


def test_a_write_waits_for_readers_on_another_backend():
    def fn(x, y):
        before = x.sin()
        x.add_(y)
        return before.sum() + y.sin().sum(), x.sin()

    with dovetail.registered_backend(accelerator("aten.sin.default")):
        assert_same(fn, t(3), t(3), backend="accelerator", calls=2)


@torch.library.custom_op("dovetail_tests::scale_", mutates_args=("out",))
def scale_(out: torch.Tensor) -> None:
    out.mul_(10)


def test_a_custom_operator_writes_after_earlier_readers():
    def fn(y):
        k = torch.sin(torch.sin(y * 3) * 3)
        r = y * k.sum()
        scale_(y)
        return r

    with dovetail.registered_backend(accelerator("aten.mul.Tensor", writes_in_place=True)):
        assert_same(fn, t(3), backend="accelerator", calls=2)


def test_names_of_tuple_elements_do_not_collide():
    cls = accelerator("aten.mul.Tensor", "aten.topk.default")
    narrow = cls.supports
    cls.supports = lambda self, call: (
        Support.no("k is at most 2")
        if call.op == "aten.topk.default" and call.args[1] > 2
        else narrow(self, call)
    )

    def fn(x):
        v, i = torch.topk(x, 3)
        w, j = torch.topk(v * 2, 2)
        return i * 10, j * 100, w

    with dovetail.registered_backend(cls):
        assert_same(fn, t(5), backend="accelerator")


# ---- operators kept whole ----------------------------------------------------------------------


def ops_of(kind="inference"):
    (graph,) = (g for c in history.recent() for g in c.graphs if g.kind == kind)
    return [v.op for v in graph.verdicts]


@pytest.mark.parametrize("claimed", [False, True])
def test_claimed_operators_are_not_decomposed(claimed):
    ops = ["aten.silu.default"] if claimed else []
    with dovetail.registered_backend(accelerator(*ops)):
        assert_same(lambda x: F.silu(x), t(4), backend="accelerator")
    assert ("aten.silu.default" in ops_of()) is claimed


@pytest.mark.parametrize("claimed", [False, True])
def test_claimed_composites_stay_whole_in_inference(claimed):
    op = "aten.linear.default"
    composites = frozenset({op}) if claimed else frozenset()
    with dovetail.registered_backend(accelerator(op, composites=composites)):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        assert_same(model, t(3, 4), backend="accelerator")
        assert (op in ops_of()) is claimed
        history.clear()
        torch.compiler.reset()
        assert_same(model, t(3, 4), backend="accelerator", grad=True)  # autograd's own parts
        assert op not in ops_of("forward")


def test_a_claim_may_depend_on_the_call():
    cls = accelerator("aten.silu.default")
    wide = cls.supports
    cls.supports = lambda self, call: (
        wide(self, call) if all(i.rank == 2 for i in call.inputs) else Support.no("rank 2 only")
    )
    with dovetail.registered_backend(cls):
        assert_same(lambda x, y: (F.silu(x), F.silu(y)), t(4), t(2, 2), backend="accelerator")
    assert ops_of().count("aten.silu.default") == 1


# ---- failure -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("supports", lambda self, call: True, r"supports\(aten\.relu\.default\) returned True"),
        ("supports", lambda self, call: {}[call.op], r"supports\(aten\.relu.*raised KeyError"),
        ("passes", lambda self: [], r"passes\(\) returned \[\]"),
        ("decompositions", lambda self: None, r"decompositions\(\) returned None"),
        ("load", lambda self, blob: None, r"load\(\) returned None"),
    ],
)
@pytest.mark.parametrize("cached", ["0", "1"])
def test_a_backend_that_breaks_its_contract_is_named(
    method, value, message, cached, monkeypatch, tmp_path
):
    monkeypatch.setenv("DOVETAIL_CACHE", cached)  # the key of a graph asks a backend too
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path / "cache"))
    cls = accelerator("aten.relu.default")
    setattr(cls, method, value)
    with (
        dovetail.registered_backend(cls),
        pytest.raises(errors.DovetailError, match=f"'accelerator'.*{message}"),
    ):
        torch.compile(lambda x: x.relu(), backend="accelerator")(t(3))


def test_debug_mode_checks_what_a_backend_returns():
    cls = accelerator("aten.relu.default")
    load = cls.load
    cls.load = lambda self, blob: lambda inputs: [load(self, blob)(inputs)[0].double()]
    options = {"debug": True}
    with (
        dovetail.registered_backend(cls),
        pytest.raises(
            errors.WrongOutputs, match="'accelerator' returned float64 instead of float32"
        ),
    ):
        torch.compile(lambda x: x.relu(), backend="accelerator", options=options)(t(3))


def test_strict_mode_raises_what_the_backend_raised():
    with dovetail.registered_backend(accelerator("aten.relu.default", fails=True)):
        run = torch.compile(lambda x: x.relu(), backend="accelerator")
        with pytest.raises(errors.BackendFailed, match=r"'accelerator' failed to compile.*crashed"):
            run(t(3))


def test_otherwise_the_segment_falls_back_with_one_warning():
    with dovetail.registered_backend(accelerator("aten.relu.default", fails=True)):
        run = torch.compile(lambda x: x.relu(), backend="accelerator", options={"strict": False})
        x = t(3)
        with pytest.warns(errors.FallbackWarning, match="crashed") as caught:
            torch.testing.assert_close(run(x), x.relu())
        assert len(caught) == 1
        torch.testing.assert_close(run(x), x.relu())
    assert history.recent()[-1].graphs[0].segments[0][0] == "aten"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda out: [*out, out[0]], "3 outputs where the graph has 2"),
        (lambda out: out[:1], "1 outputs where the graph has 2"),
        (lambda out: None, "a NoneType, not a sequence"),
        (lambda out: out[0], "a Tensor, not a sequence"),
    ],
)
@pytest.mark.parametrize("debug", [False, True])
def test_wrong_numbers_of_outputs_are_named(result, message, debug):
    cls = accelerator("aten.relu.default", "aten.sin.default")
    load = cls.load

    def load_wrong(self, blob):
        run = load(self, blob)
        return lambda inputs: result(run(inputs))

    cls.load = load_wrong
    with dovetail.registered_backend(cls):
        options = {"debug": debug}  # without it, a single segment runs with nothing around it
        run = torch.compile(lambda x: (x.relu(), x.sin()), backend="accelerator", options=options)
        with pytest.raises(errors.WrongOutputs, match=f"'accelerator' returned {message}"):
            run(t(3))


def test_function_backends_are_held_to_their_outputs_too():
    def short(gm, example_inputs):
        return lambda *args: gm(*args)[:1]

    with (
        dovetail.registered_backend(short),
        pytest.raises(errors.WrongOutputs, match="'short' returned 1 outputs"),
    ):
        torch.compile(lambda x: (x.relu(), x.sin()), backend="short")(t(3))


def test_a_function_backend_as_a_backend():
    seen = []

    def mine(gm, example_inputs):
        seen.append((gm, example_inputs))
        return gm.forward

    with dovetail.registered_backend(mine):
        backend = dovetail.get_backend("mine")
        segment = _segment(lambda x, y: ((x @ y).relu(),), t(2, 3), t(3, 4))
        run = backend.load(backend.compile(segment))
    x, y = t(2, 3), t(3, 4)
    torch.testing.assert_close(run([x, y])[0], (x @ y).relu())
    assert [tuple(e.shape) for e in seen[0][1]] == [(2, 3), (3, 4)]


def _segment(fn, *args):
    from torch.fx.experimental.proxy_tensor import make_fx

    from dovetail.capture.from_fx import segment_of

    return segment_of(make_fx(fn, tracing_mode="fake")(*args), "s")


class Copying(AtenBackend):
    """A backend whose results are always memory of their own."""

    name = "copying"
    keeps_views = False
    writes_in_place = False

    def load(self, blob):
        run = super().load(blob)
        return lambda inputs: [x.clone() for x in run(inputs)]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: (x[:, y.shape[1] :], x * 2),
        lambda x, y: x[:, -y.shape[1] :].t(),
        lambda x, y: (z := x * 2, z[:, y.shape[1] :]),
    ],
    ids=["of_an_input", "of_a_view", "of_a_result"],
)
def test_returned_views_whose_place_varies_are_views(fn):
    with dovetail.registered_backend(Copying):
        for columns in (5, 7):
            x, y = torch.arange(40.0).reshape(2, 20), torch.ones(2, columns)
            assert_same(fn, x, y, backend="copying", dynamic=True)
