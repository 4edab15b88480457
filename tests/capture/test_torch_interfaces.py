"""Each private PyTorch interface we use, so that a move shows here, by name."""

import weakref
from threading import Barrier, Thread

import pytest
import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import dovetail
from dovetail import errors
from dovetail.capture import _torch

aten = torch.ops.aten


def test_dynamo_registry():
    from torch._dynamo.backends import registry

    assert isinstance(registry._BACKENDS, dict)
    assert isinstance(registry._COMPILER_FNS, dict)
    assert _torch.lookup_dynamo_backend("aot_eager") is not None
    assert _torch.lookup_dynamo_backend("no such backend") is None
    assert "inductor" in _torch.known_dynamo_backends()


def test_announce_and_withdraw():
    from torch._dynamo.backends import registry

    _torch.announce_backend("interface_test", lambda: lambda gm, inputs: gm.forward, ())
    assert torch.compile(lambda x: x + 1, backend="interface_test")(torch.ones(1)) == 2
    _torch.withdraw_backend("interface_test")
    assert "interface_test" not in registry._BACKENDS


def test_errors_pass_through_dynamo():
    def backend(gm, inputs):
        raise _torch.pass_through_dynamo(errors.GuardFailed("ours"))

    with pytest.raises(errors.GuardFailed, match="ours"):
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))


def test_errors_that_pass_through_dynamo_are_copies_of_one_class():
    error = errors.GuardFailed("ours")
    error.add_note("a note")
    shown = _torch.pass_through_dynamo(error)
    assert type(error) is errors.GuardFailed
    assert isinstance(shown, errors.GuardFailed)
    assert (str(shown), shown.__notes__) == (str(error), ["a note"])
    assert type(_torch.pass_through_dynamo(errors.GuardFailed("again"))) is type(shown)
    assert _torch.pass_through_dynamo(shown) is shown


def test_aot_autograd_and_partition():
    seen = []

    def note(kind):
        def compiler(gm, inputs):
            seen.append(kind)
            return _torch.boxed(lambda args: gm(*args))

        return compiler

    def partition(joint, inputs, **kwargs):
        seen.append("partition")
        return _torch.min_cut_partition(joint, inputs, **kwargs)

    aot = _torch.aot_autograd(
        fw_compiler=note("forward"),
        bw_compiler=note("backward"),
        inference_compiler=note("inference"),
        partition_fn=partition,
        decompositions={},
    )
    run = torch.compile(lambda x: (x.sin() * 2).sum(), backend=aot)
    run(torch.ones(3, requires_grad=True)).backward()
    run(torch.ones(3))
    assert seen == ["partition", "forward", "backward", "inference"]


def plain_answers(fn, *args):
    """What ``inference_is_plain`` says while a function is compiled."""
    answers = []

    def compiler(gm, inputs):
        answers.append(_torch.inference_is_plain())
        return _torch.boxed(lambda args: gm(*args))

    aot = _torch.aot_autograd(fw_compiler=compiler, inference_compiler=compiler)
    with torch.no_grad():
        torch.compile(fn, backend=aot)(*args)
    return answers


def test_plain_inference_is_told_from_the_rest():
    x = torch.ones(4)
    assert not _torch.inference_is_plain()
    assert plain_answers(lambda x: x + 1, x) == [True]
    assert plain_answers(lambda x: x.add_(1) * 2, x) == [False]
    assert plain_answers(lambda x: (x + 1, x[1:]), x) == [False]
    assert plain_answers(lambda x: x.view(2, 2), x) == [False]


def training_plans(fn, *args):
    """What ``training_plan`` says while a function is compiled, and its two graphs."""
    plans, graphs, returned = [], [], []

    def forward(gm, inputs):
        assert _torch.can_restore_training()
        plans.append(_torch.training_plan(returned))
        graphs.append(gm)
        return _torch.boxed(lambda args: gm(*args))

    def backward(gm, inputs):
        graphs.append(gm)
        return _torch.boxed(lambda args: gm(*args))

    def partition(joint, inputs, **kwargs):
        parts = _torch.min_cut_partition(joint, inputs, **kwargs)
        returned[:] = parts[1].graph.output_node().args[0]
        return parts

    aot = _torch.aot_autograd(fw_compiler=forward, bw_compiler=backward, partition_fn=partition)
    results = torch.compile(fn, backend=aot, dynamic=False)(*args)
    sum(r.sum() for r in results).backward()
    return plans, graphs


def test_training_is_restored_from_its_plan():
    x, y = torch.ones(3, requires_grad=True), torch.arange(3.0)
    (plan,), (forward, backward) = training_plans(lambda x, y: [x.sin() * y], x, y)
    assert plan["outputs"] == [["non_alias", True]]
    assert plan["tangents"] == [[[3], [1]]]
    run = _torch.restored_training(plan, lambda a: forward(*a), lambda a: backward(*a))
    x.grad = None
    (result,) = run(x, y)
    result.sum().backward()
    torch.testing.assert_close(x.grad, y * torch.ones(3).cos())


def test_what_autograd_does_beyond_a_plan():
    x = torch.ones(2, 3, requires_grad=True)
    fns = [
        lambda x: [x.view(-1), x * 2],
        lambda x: [(y := x * 2), y.view(-1)],
    ]
    for fn in fns:
        plans, _ = training_plans(fn, x * 1)
        assert None in plans, fn


def test_autocast():
    assert not _torch.autocast_is_on()
    with torch.autocast("cpu"):
        assert _torch.autocast_is_on()


def test_grad_mode_is_off_inside_and_as_before_after():
    run = _torch.without_grad(lambda args: [torch.is_grad_enabled(), *args])
    assert run(1, 2) == [False, 1, 2]
    assert torch.is_grad_enabled()

    def fail(args):
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        _torch.without_grad(fail)()
    assert torch.is_grad_enabled()


def test_decompositions():
    table = _torch.core_aten_decompositions()
    assert aten.silu.default in table
    assert aten.linear.default in _torch.composite_operators()
    rule = _torch.composite_decomposition(aten.linear.default)
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    torch.testing.assert_close(rule(x, w), x @ w.t())
    with _torch.keep_composites({aten.linear.default: lambda *a, **k: NotImplemented}):
        pass


def test_what_is_left_out_of_core_decompositions_is_taken_apart_by_autograd():
    table = _torch.core_aten_decompositions()
    whole = dict(torch._decomp.core_aten_decompositions().items())
    both = _torch.export_composites() | table
    assert [str(op) for op in whole if op not in both] == []
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    left_out = [op.name() for op in whole if op not in table]
    assert len(left_out) > 100
    assert not [name for name in left_out if has_kernel(name, "CPU") or has_kernel(name, "Meta")]


def test_decompositions_by_name():
    found = _torch.named_decompositions(["silu", "no_such_operator"])
    assert aten.silu.default in found
    assert all(op.overloadpacket is aten.silu for op in found)


def test_functionalised_custom_operators_run():
    op = torch.ops.aten.add_.Tensor
    x = torch.zeros(2)
    arguments = {"other": torch.ones(2), "_self_base_index": 0, "_all_bases": [x]}
    _, copied = _torch.call_mutable(op, None, **arguments)
    assert (copied == 1).all()
    assert (x == 0).all()
    _torch.call_mutable(op, (), **arguments)
    assert (x == 1).all()


def test_random_draws_are_kept_by_configuration():
    from torch._inductor import config

    before = config.fallback_random
    with _torch.keep_random_draws():
        assert config.fallback_random
    assert config.fallback_random == before


UPSAMPLING = {
    "interpolate": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "positional": lambda x: F.interpolate(x, None, 2, "bilinear"),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "module": nn.Upsample(scale_factor=2, mode="nearest-exact"),
    "overload": lambda x: aten.upsample_bilinear2d.vec(x, [8, 8], False, None),
    "packet": lambda x: aten.upsample_nearest2d(x, [8, 8]),
    "function": lambda x: torch._C._nn.upsample_bilinear2d(x, [8, 8], False),
}


def gradient_of(upsample):
    """What autograd calls the gradient of an upsampling, in the way AOTAutograd traces."""
    with enable_python_dispatcher():
        return upsample(torch.randn(1, 2, 4, 4, requires_grad=True)).grad_fn.name()


@pytest.mark.parametrize("upsample", UPSAMPLING.values(), ids=UPSAMPLING)
def test_upsampling_is_whole_to_autograd_within_the_context(upsample):
    assert "Upsample" not in gradient_of(upsample)
    with _torch.whole_upsampling():
        assert "Upsample" in gradient_of(upsample)
    assert "Upsample" not in gradient_of(upsample)


def test_upsampling_in_another_thread_is_as_it_was():
    found = []
    with _torch.whole_upsampling():
        thread = Thread(target=lambda: found.append(gradient_of(UPSAMPLING["interpolate"])))
        thread.start()
        thread.join()
    assert len(found) == 1
    assert "Upsample" not in found[0]


def test_bicubic_upsampling_is_taken_apart_within_the_context_too():
    with _torch.whole_upsampling():
        found = gradient_of(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"))
    assert "Upsample" not in found


def test_a_graph_keeps_the_gradient_of_upsampling_whole():
    graphs = []

    def keep(gm):
        graphs.append(gm)
        return gm

    passes = dovetail.passes.default().add("joint", keep)
    fn = torch.compile(
        lambda x: F.interpolate(x.sin(), scale_factor=2, mode="bilinear").sum(),
        backend="dovetail",
        options={"passes": passes},
    )
    fn(torch.randn(1, 2, 4, 4, requires_grad=True))
    targets = [node.target for gm in graphs for node in gm.graph.nodes]
    assert aten.upsample_bilinear2d_backward.default in targets


def test_two_threads_compile_upsampling_at_once():
    start, found = Barrier(2), []

    def train(factor):
        def fn(x):
            return F.interpolate(x, scale_factor=factor, mode="bilinear").square().sum()

        x = torch.randn(1, 2, 3 + factor, 4, requires_grad=True)
        (expected,) = torch.autograd.grad(fn(x), x)
        start.wait(10)
        (actual,) = torch.autograd.grad(torch.compile(fn, backend="dovetail")(x), x)
        torch.testing.assert_close(actual, expected)
        found.append(factor)

    threads = [Thread(target=train, args=(factor,)) for factor in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [2, 3]


def test_operators():
    overload, packet, higher_order = _torch.operator_types()
    assert isinstance(aten.add.Tensor, overload)
    assert isinstance(aten.add, packet)
    assert isinstance(torch.ops.higher_order.cond, higher_order)
    assert _torch.schema_of(aten.add_.Tensor).is_mutable
    assert _torch.overload_name(aten.add.Tensor) == "Tensor"


def test_symbols_and_fake_tensors():
    gm = make_fx(lambda x: x.reshape(-1) * x.shape[0], tracing_mode="symbolic")(torch.randn(3, 4))
    values = [n.meta["val"] for n in gm.graph.nodes if "val" in n.meta]
    mode = _torch.fake_mode_of(values)
    assert isinstance(mode, FakeTensorMode)
    expr = _torch.sym_expr(values[0].shape[0])
    assert expr.is_Symbol
    assert _torch.size_hint(values[0].shape[0]) == 3
    assert _torch.sympy_functions().FloorDiv


def test_unbacked_bindings():
    mode = FakeTensorMode(shape_env=torch.fx.experimental.symbolic_shapes.ShapeEnv())
    with mode:
        x = torch.empty(4)
    gm = make_fx(lambda x: x.nonzero(), tracing_mode="symbolic")(torch.ones(4))
    (node,) = (n for n in gm.graph.nodes if n.target is aten.nonzero.default)
    bindings = _torch.unbacked_bindings(node)
    assert list(bindings.values()) == [(("size", -1), ("item", 0))]
    assert _torch.size_hint(node.meta["val"].shape[0]) is None
    assert x.shape == (4,)


def test_names_of_parameters():
    found = []

    def backend(gm, inputs):
        found.extend(_torch.input_names(gm))

        def compiler(graph, _):
            nodes = graph.graph.find_nodes(op="placeholder")
            found.extend([_torch.input_label(node, found) for node in nodes])
            return _torch.boxed(lambda values: list(graph.forward(*values)))

        return _torch.aot_autograd(fw_compiler=compiler)(gm, inputs)

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).eval()
    with torch.no_grad():
        torch.compile(model, backend=backend)(torch.randn(2, 3))
    of_dynamo, of_aot = found[:7], found[7:]
    assert of_dynamo == of_aot
    assert {"0.weight", "0.bias", "1.running_mean", "1.bias"} < set(of_dynamo)


def test_a_storage_has_one_object_that_can_be_watched():
    """Device copies are dropped when the storage they were made from is gone."""
    x, gone = torch.ones(3), []
    watched = weakref.ref(x.untyped_storage(), gone.append)
    view = x.view(3, 1)
    assert watched() is view.detach().untyped_storage()
    del x
    assert not gone
    del view
    assert gone


def test_the_rest():
    x = torch.ones(2)
    before = _torch.tensor_version(x)
    x.add_(1)
    assert _torch.tensor_version(x) == before + 1
    assert _torch.pytree().tree_leaves({"a": [1, 2]}) == [1, 2]
    _torch.trace_artifact("test", lambda: "text")
    with FakeTensorMode(), _torch.no_dispatch_modes():
        assert type(torch.ones(1)) is torch.Tensor
    assert _torch.static_input_positions() == frozenset()


# ---- what cache keys ask -----------------------------------------------------------------------


def test_tensors_are_described_for_keys():
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.ones(4)
    assert _torch.storage_id(x) == _torch.storage_id(x[1:])
    assert _torch.storage_id(x) != _torch.storage_id(torch.ones(4))
    assert _torch.is_view(x[1:])
    assert not _torch.is_view(x)
    assert _torch.tensor_flags(x) == ""
    assert _torch.tensor_flags(torch.ones(2, requires_grad=True)[:1]) == "requires_grad view"
    fake = FakeTensorMode().from_tensor(x)
    assert _torch.is_plain_tensor(fake)
    assert _torch.is_fake(fake)
    assert not _torch.is_fake(x)
    assert not _torch.is_plain_tensor(x.as_subclass(type("Mine", (torch.Tensor,), {})))
    assert list(_torch.own_tensors(torch.nn.BatchNorm1d(2))) == [
        *("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    ]


def test_static_inputs_are_marked_by_dynamo():
    found = []

    def backend(gm, _):
        found.extend(map(_torch.static_kind, gm.graph.find_nodes(op="placeholder")))
        return gm.forward

    model = torch.nn.BatchNorm1d(2).eval()
    torch.compile(model, backend=backend)(torch.ones(3, 2))
    assert "" in found
    assert set(found) > {""}


def test_what_is_known_of_symbols():
    found = []

    def backend(gm, inputs):
        value = next(x for x in inputs if isinstance(x, torch.SymInt))
        found.append((_torch.sym_expr(value), _torch.symbol_facts(_torch.shape_env(value))))
        return gm.forward

    def fn(x):
        return x + 1 if x.shape[0] > 3 else x

    torch.compile(fn, backend=backend, dynamic=True)(torch.ones(7, 2))
    ((symbol, facts),) = found
    assert facts.hints[symbol] == 7
    assert facts.ranges[symbol][0] in (2, 4)
    assert any(symbol in expr.free_symbols for expr in facts.known)


def test_state_that_keys_hold():
    state = _torch.global_state()
    assert state["grad mode"] == "True, inference False"
    assert state["autocast"].startswith("off")
    with torch.autocast("cpu"):
        assert _torch.global_state()["autocast"].startswith("on for cpu")
    assert "activation_memory_budget" in _torch.compiler_settings()
    assert _torch.unseen_state() == ""
    with torch.autograd.graph.save_on_cpu():
        assert _torch.unseen_state() == "hooks on saved tensors are active"


needs_precompile = pytest.mark.skipif(
    bool(_torch.precompile_missing()), reason=_torch.precompile_missing() or "there"
)


def _restored(*args):
    return args


@needs_precompile
def test_precompile_artifacts():
    import copy

    from torch._dynamo.precompile_context import PrecompileContext

    artifact = _torch.precompile_artifact("key", b"bytes", _restored, len)
    assert artifact.__reduce__() == (_restored, ("key", b"bytes"))
    assert artifact.after_deserialization() is len
    assert copy.deepcopy(artifact) is artifact
    assert not _torch.is_kept("key")
    try:
        _torch.keep_artifact("key", b"bytes", _restored)
        assert _torch.is_kept("key")
    finally:
        PrecompileContext.clear()


@needs_precompile
def test_aot_autograd_keeps_output_code():
    import copy
    import pickle

    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache

    code = _torch.output_code(lambda inputs: inputs[::-1], lambda: (_restored, (b"bytes",)))
    assert code([1, 2]) == [2, 1]
    assert code.__dict__["_boxed_call"] is True
    assert copy.copy(code) is copy.deepcopy(code) is code
    assert pickle.loads(pickle.dumps(code)) == (b"bytes",)
    compiler = _torch.output_code_compiler(lambda gm, inputs: code)
    assert compiler(None, ()) is code
    assert callable(AOTAutogradCache.make_entry)
    assert not _torch.is_aot_compiling()
    with _torch.bundling():
        assert torch._functorch.config.force_non_lazy_backward_lowering
        assert torch._functorch.config.bypass_autograd_cache_key


@needs_precompile
def test_what_an_entry_is_read_for(tmp_path):
    from torch._dynamo import package

    seen = []

    def read(*_):
        seen.append(_torch.asked_for())
        raise RuntimeError

    class Net(torch.nn.Module):
        def forward(self, x):
            return x + 1

    net = Net()
    with pytest.MonkeyPatch.context() as patch, torch._dynamo.config.patch(caching_precompile=True):
        (tmp_path / package.CompilePackage.source_id_from_fn(net.forward)).mkdir()
        patch.setattr(package.DiskDynamoCache, "path_prefix", lambda _: str(tmp_path))
        patch.setattr(package.DiskDynamoStore, "load_cache_entry", read)
        torch.compile(net, backend="aot_eager", dynamic=False)
    assert seen[0].function == net.forward
    assert seen[0].compiler is _torch.lookup_dynamo_backend("aot_eager")
    assert seen[0].options == {}
    assert _torch.asked_for() is None
    assert not _torch.is_loading_aot()


@needs_precompile
def test_what_is_traced_for_an_entry():
    seen = []

    def backend(gm, inputs):
        traced = _torch.traced()
        seen.append((traced.function, list(traced.dropped), _torch.precompile_id(gm)))
        traced.guard_attributes("G['F'].silu", ("__qualname__",))
        return gm.forward

    def activated(x):
        return F.silu(x)

    with torch._dynamo.config.patch(caching_precompile=True):
        assert _torch.is_precompiling()
        torch.compile(activated, backend=backend)(torch.ones(2))
    function, dropped, key = seen[0]
    assert function is activated
    assert "G['F'].silu" in dropped
    assert key.startswith("__compiled_fn_")
    assert _torch.traced() is None
    assert not _torch.is_precompiling()


@needs_precompile
def test_names_that_dynamo_numbers():
    from torch._dynamo.bytecode_transformation import unique_id

    given = _torch.names_given()
    assert unique_id("x") == f"x_{given}"
    _torch.skip_names(given + 10)
    assert unique_id("x") == f"x_{given + 10}"
    _torch.skip_names(0)
    assert unique_id("x") == f"x_{given + 11}"


def test_tracebacks_are_hidden():
    import logging

    logger = logging.getLogger("torch._dynamo.package")
    for _ in range(2):
        _torch.hide_traceback(errors.NotRestored)
    kept = [each for each in logger.filters if getattr(each, "cause", None) is errors.NotRestored]
    assert len(kept) == 1
    for cause, is_shown in ((errors.NotRestored("ours"), False), (ValueError("others'"), True)):
        error = RuntimeError("on the way")
        error.__cause__ = cause
        info = (RuntimeError, error, None)
        record = logging.LogRecord("torch", logging.WARNING, "", 1, "Failed to load", (), info)
        assert bool(logger.filter(record)) is is_shown


def test_types_of_cache_artifacts():
    from torch.compiler._cache import CacheArtifactFactory, CacheArtifactManager

    seen = []
    with CacheArtifactManager.with_fresh_cache():
        _torch.register_cache_artifact("interface_test", lambda *entry: seen.append(entry))
        _torch.register_cache_artifact("interface_test", print)  # the first one stays
        try:
            for content in (b"first", b"second"):  # a key is recorded once
                _torch.record_cache_artifact("interface_test", "key", content)
            data, _ = torch.compiler.save_cache_artifacts()
            torch.compiler.load_cache_artifacts(data)
        finally:
            CacheArtifactFactory._artifact_types.pop("interface_test")
    assert seen == [("key", b"first")]


@needs_precompile
def test_results_that_aot_compile_takes():
    from torch._dynamo.aot_compile_types import SerializableCallable

    class Result:
        pass

    assert not isinstance(Result(), SerializableCallable)
    _torch.declare_serializable(Result)
    assert isinstance(Result(), SerializableCallable)
