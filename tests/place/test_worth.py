"""Segments that do not pay for their copies, views that go with their neighbours, estimates."""

import math
import random

import pytest
import torch

import dovetail
from dovetail import Speed, Support, Transfer, errors, history
from dovetail.backends.aten import AtenBackend
from dovetail.capture.ops import is_view_op
from dovetail.ir import OpCall, Ref, Size, TensorDesc
from dovetail.place.cost import HOST, Costs, speed_of
from dovetail.place.placement import place
from dovetail.place.worth import show_seconds
from tests.differential import assert_same
from tests.place.test_place import random_graph

MM, RELU = "aten.mm.default", "aten.relu.default"
SLOW = Transfer(latency_seconds=40e-6, bytes_per_second=1e9)


def t(*shape):
    return torch.randn(*shape)


def accelerator(*ops, transfer=SLOW, **body):
    """A backend with memory of its own, as far as placement knows."""

    class Accelerator(AtenBackend):
        name = "accelerator"
        writes_in_place = False

        def supports(self, call):
            if call.op in ops or ("views" in ops and is_view_op(call.op)):
                return Support.yes()
            return Support.no("no kernel")

    Accelerator.transfer = transfer
    for key, value in body.items():
        setattr(Accelerator, key, value)
    return Accelerator


def compiled(fn, *args, cls, dynamic=None, **options):
    options = {"backends": [cls], **options}
    run = torch.compile(fn, backend="dovetail", options=options, dynamic=dynamic)
    torch.testing.assert_close(run(*args), fn(*args))
    return history.recent()[-1].graphs[0]


def backends(graph):
    return [s.backend for s in graph.segments]


# ---- segments ----------------------------------------------------------------------------------


def test_a_small_segment_goes_back_and_the_verdict_says_why():
    graph = compiled(lambda x: x.relu().sin(), t(8), cls=accelerator(RELU))
    assert backends(graph) == ["aten"]
    ((name, reason),) = graph.verdicts[0].refusals
    # One copy in, one out; relu on the host is one call of some microseconds.
    assert (name, reason) == ("accelerator", "too small: 5.01 µs saved, 80.1 µs of copies")


def test_a_large_segment_stays():
    graph = compiled(
        lambda x, y: (x @ y).relu().sin(), t(512, 512), t(512, 512), cls=accelerator(MM, RELU)
    )
    assert backends(graph) == ["accelerator", "aten"]


def test_keep_small_leaves_it_where_it_is():
    graph = compiled(lambda x: x.relu().sin(), t(8), cls=accelerator(RELU), keep_small=True)
    assert backends(graph) == ["accelerator", "aten"]


@pytest.mark.parametrize("transfer", [None, Transfer()])
def test_copies_that_cost_nothing_send_nothing_back(transfer):
    cls = accelerator(RELU, transfer=transfer)
    graph = compiled(lambda x: x.relu().sin(), t(8), cls=cls)
    assert backends(graph) == ["accelerator", "aten"]
    assert len(graph.copies()) == (0 if transfer is None else 2)


def test_only_the_small_of_two_segments_goes_back():
    def fn(x, y):
        return (torch.sin((x @ y).relu()).sum() + y[0, :4].cos()).relu()

    graph = compiled(fn, t(512, 512), t(512, 512), cls=accelerator(MM, RELU))
    assert backends(graph) == ["accelerator", "aten"]
    assert [v.backend for v in graph.verdicts if v.op == RELU] == ["accelerator", "aten"]


def test_parameters_that_stay_on_the_device_do_not_count():
    model = torch.nn.Linear(2048, 2048, bias=False).eval()
    transfer = Transfer(latency_seconds=1e-6, bytes_per_second=1e8)  # 16 MB would take 160 ms
    cls = accelerator(MM, "views", transfer=transfer)
    with torch.no_grad():
        graph = compiled(model, t(64, 2048), cls=cls)
    assert backends(graph) == ["accelerator"]
    (segment,) = graph.segments
    assert (segment.kept, segment.bytes_kept) == (1, 2048 * 2048 * 4)
    assert (segment.inputs, segment.bytes_in) == (1, 64 * 2048 * 4)


def test_the_accelerator_s_own_costs_count():
    slow = lambda self, call: Support.yes(1.0) if call.op == MM else Support.no("no")  # noqa: E731
    x = t(512, 512)
    graph = compiled(lambda x: (x @ x).sin(), x, cls=accelerator(supports=slow))
    assert backends(graph) == ["aten"]
    declared = accelerator(MM, speed=Speed(flops_per_second=1e6))
    torch.compiler.reset()
    assert backends(compiled(lambda x: (x @ x).sin(), x, cls=declared)) == ["aten"]


def test_giving_back_goes_to_the_next_backend_that_takes_the_call():
    class Second(accelerator(RELU, transfer=None)):
        name = "second"

    options = {"backends": [accelerator(RELU), Second]}
    torch.compile(lambda x: x.relu().sin(), backend="dovetail", options=options)(t(8))
    graph = history.recent()[-1].graphs[0]
    assert backends(graph) == ["second", "aten"]


@pytest.mark.parametrize(("rows", "where"), [(2, ["aten"]), (4096, ["accelerator"])])
def test_symbolic_shapes_are_weighed_by_the_example(rows, where):
    graph = compiled(
        lambda x: (x @ x.t()).relu().sum(),
        t(rows, 64),
        cls=accelerator(MM, RELU, "aten.sum.default", "views"),
        dynamic=True,
    )
    assert backends(graph) == where
    assert all(s.symbolic for s in graph.segments if s.backend == "accelerator")


@pytest.mark.parametrize("seed", range(20))
def test_random_dags_with_costly_copies_are_cut_without_a_cycle(seed):
    gm = random_graph(seed)
    cls = accelerator(
        "aten.sin.default",
        "aten.add.Tensor",
        transfer=Transfer(latency_seconds=random.Random(seed).choice([8e-6, 2e-5])),
    )
    placement = place(gm, [cls(), AtenBackend()])
    calls = [n.name for n in gm.graph.nodes if n.op == "call_function"]
    assert sorted(c.name for s in placement.segments for c in s.segment.calls) == sorted(calls)
    made = {"x"}
    for segment in placement.segments:
        assert {name for name, _ in segment.sources} <= made
        made |= {c.name for c in segment.segment.calls}
    small = [v for v in placement.verdicts if v.refusals and "too small" in v.refusals[0][1]]
    assert all(v.backend == "aten" for v in small)
    assert small
    # What is left pays for itself: weighing it again changes nothing.
    free = place(gm, [cls(), AtenBackend()], keep_small=True)
    assert len(placement.segments) < len(free.segments)


# ---- views -------------------------------------------------------------------------------------


def test_a_view_between_calls_of_another_backend_goes_with_them():
    def fn(x):
        return x.sin().view(4, 2).t().cos()

    graph = compiled(fn, t(8), cls=accelerator("views", transfer=None))
    assert backends(graph) == ["aten"]
    refusals = {r for v in graph.verdicts for r in v.refusals}
    assert ("accelerator", "a view goes with the calls around it") in refusals


def test_a_view_between_calls_of_its_own_backend_stays():
    def fn(x):
        return x.relu().view(4, 2).relu()

    graph = compiled(fn, t(8), cls=accelerator("views", RELU, transfer=None))
    assert backends(graph) == ["accelerator"]


def test_a_view_of_an_input_goes_with_those_that_use_it():
    cls = accelerator("views", MM, transfer=None)
    graph = compiled(lambda x, y: (x.t() @ y, y.t().sin()), t(3, 4), t(3, 4), cls=cls)
    placed = {v.call: v.backend for v in graph.verdicts}
    assert placed["t"] == "accelerator"
    assert placed["t_1"] == "aten"


def test_a_view_that_both_use_stays_with_what_it_looks_at():
    def fn(x):
        y = x.sin().view(2, 4)
        return y.cos(), y.relu()

    graph = compiled(fn, t(8), cls=accelerator("views", RELU, transfer=None))
    assert backends(graph) == ["aten", "accelerator"]


def test_results_with_views_moved_are_the_same():
    def fn(x, y):
        a, b = x.sin().view(2, 4).split(2, 1)
        return (a @ b).relu().t() + y.unsqueeze(0), y.expand(2, 2).cos()

    with dovetail.registered_backend(accelerator("views", MM, RELU, transfer=None)):
        for dynamic in (None, True):
            assert_same(fn, t(8), t(2), backend="accelerator", dynamic=dynamic, calls=2)


# ---- estimates ---------------------------------------------------------------------------------


def tensor(*shape, dtype="float32", strides=None):
    if strides is None:
        strides = [math.prod(n for n in shape[i + 1 :]) for i in range(len(shape))]
    return TensorDesc(dtype, shape, tuple(strides))


def call(op, output, *inputs):
    return OpCall("c", op, tuple(Ref(f"x{n}", d) for n, d in enumerate(inputs)), {}, output)


@pytest.mark.parametrize(
    ("made", "flops", "size"),
    [
        (call("aten.mm.default", tensor(2, 5), tensor(2, 3), tensor(3, 5)), 60, 124),
        (call("aten.addmm.default", tensor(2, 5), tensor(5), tensor(2, 3), tensor(3, 5)), 60, 144),
        (call("aten.bmm.default", tensor(4, 2, 5), tensor(4, 2, 3), tensor(4, 3, 5)), 240, 496),
        (call("aten.linear.default", tensor(2, 5), tensor(2, 3), tensor(5, 3), tensor(5)), 60, 144),
        (call("aten.convolution.default", tensor(1, 8, 4, 4), tensor(1, 3, 6, 6),
              tensor(8, 3, 3, 3)), 2 * 128 * 27, 4 * (128 + 108 + 216)),
        (call("aten.add.Tensor", tensor(6, dtype="float64"), tensor(6, dtype="float64"),
              tensor(6, dtype="float64")), 6, 144),
        (call("aten.relu.default", tensor(4, 3), tensor(4, 3, strides=(0, 1))), 12, 60),
        (call("aten.abs.default", tensor(2), tensor(2, dtype="complex64")), 2, 24),
    ],
)  # fmt: skip
def test_operations_and_bytes(made, flops, size):
    costs = Costs()
    assert costs.flops(made) == flops
    assert costs.traffic(made) == size


def test_symbols_count_as_they_were_in_the_example():
    s = Size.symbol("s0")
    desc = TensorDesc("float32", (s, 4), (4, 1))
    assert Costs({"s0": 10}).bytes_of(desc) == 160
    assert Costs().bytes_of(desc) == 64 * 16  # nobody knows


def test_a_call_s_time():
    costs, relu = Costs(), call(RELU, tensor(10**6), tensor(10**6))
    host = AtenBackend()
    assert speed_of(host) is HOST
    assert costs.seconds(relu, host, None) == HOST.call_seconds + 8e6 / HOST.bytes_per_second
    assert costs.seconds(relu, host, Support.yes(3.0)) == 3.0
    assert costs.seconds(relu, accelerator()(), Support.yes()) is None
    view = call("aten.view.default", tensor(10**6), tensor(10**6))
    assert costs.seconds(view, host, None) == 0.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Transfer(latency_seconds=-1),
        lambda: Transfer(bytes_per_second=0),
        lambda: Transfer(latency_seconds=math.nan),
        lambda: Speed(flops_per_second=-1),
    ],
)
def test_rates_that_make_no_sense(make):
    with pytest.raises(errors.InvalidOption, match="times of 0 or more and rates above 0"):
        make()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.0, "2 s"), (0.0123, "12.3 ms"), (4e-5, "40 µs"), (5e-9, "5 ns"), (0.0, "0 µs"),
     (-3e-6, "-3 µs")],
)  # fmt: skip
def test_times_read_well(seconds, text):
    assert show_seconds(seconds) == text


def test_a_view_of_an_input_is_made_where_it_is_first_used():
    def fn(x, w):
        return (x.relu().sin() @ w.t()).relu()

    cls = accelerator("views", MM, RELU, transfer=None)
    graph = compiled(fn, t(3, 4), t(5, 4), cls=cls)
    assert backends(graph) == ["accelerator", "aten", "accelerator"]
    assert "aten.t.default" in graph.segments[2].ops
    assert graph.segments[2].inputs == 2  # the sine and w itself


def test_a_segment_that_nothing_needs_yet_waits_for_a_later_one():
    def fn(x, y):
        early = y.sin().cos()  # could run at once
        return (x.relu().sin() + early).relu()

    graph = compiled(fn, t(4), t(4), cls=accelerator(RELU, transfer=None))
    assert backends(graph) == ["accelerator", "aten", "accelerator"]


def test_what_reads_stays_before_what_writes():
    def fn(x, y):
        early = x.sin()
        z = y.relu().cos().relu()
        x.add_(z)
        return early, (x + z).cos()

    with dovetail.registered_backend(accelerator(RELU, "aten.copy_.default", transfer=None)):
        assert_same(fn, t(4), t(4), backend="accelerator", calls=2)
    with dovetail.registered_backend(accelerator(RELU, "aten.sin.default", transfer=None)):
        torch.compiler.reset()
        assert_same(fn, t(4), t(4), backend="accelerator", calls=2)
