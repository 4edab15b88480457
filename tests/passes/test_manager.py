"""The pass manager: add, remove, reorder; identities; blame."""

import importlib
import logging
import subprocess
import sys
import types

import pytest
import torch
from torch import fx

import dovetail
from dovetail import errors, history, passes
from dovetail.passes import PassManager

aten = torch.ops.aten


def t(*shape):
    return torch.randn(*shape)


def compile_and_run(fn, *args, backend="reference", **options):
    return torch.compile(fn, backend=backend, options=options or None)(*args)


def double_to_triple(gm):
    """A pass that changes results on purpose, so that its effect can be seen."""
    for node in gm.graph.nodes:
        if node.target is aten.mul.Tensor and node.args[1] == 2:
            node.args = (node.args[0], 3)
    return gm


# ---- adding, removing, reordering --------------------------------------------------------------


def test_a_pass_for_one_call():
    manager = passes.default().add("post_grad", double_to_triple)
    x = t(3)
    torch.testing.assert_close(compile_and_run(lambda x: x * 2, x, passes=manager), x * 3)
    torch.compiler.reset()
    torch.testing.assert_close(compile_and_run(lambda x: x * 2, x), x * 2)


def test_a_pass_for_the_whole_process():
    passes.set_default(lambda manager: manager.add("joint", double_to_triple))
    x = t(3).requires_grad_()
    compile_and_run(lambda x: (x * 2).sum(), x).backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 3.0))
    passes.set_default(None)
    assert "double_to_triple" not in passes.default().names("joint")


@pytest.mark.usefixtures("no_cache")
def test_a_pre_grad_pass_sees_torch_functions():
    seen = []

    def look(gm):
        seen.extend(n.target for n in gm.graph.nodes if n.op == "call_function")
        return gm

    compile_and_run(
        lambda x: torch.nn.functional.gelu(x), t(3), passes=PassManager().add("pre_grad", look)
    )
    assert torch._C._nn.gelu in seen


def test_order_and_position():
    def first(gm):
        return gm

    def last(gm):
        return gm

    manager = PassManager().add("post_grad", first, before="noops").add("post_grad", last)
    assert manager.names("post_grad")[0] == "first"
    assert manager.names("post_grad")[-1] == "last"
    middle = manager.remove("last").add("post_grad", last, after="cse")
    names = middle.names("post_grad")
    assert names.index("last") == names.index("cse") + 1
    reordered = manager.reorder("post_grad", ["dce", "last"])
    assert reordered.names("post_grad")[:3] == ["dce", "last", "first"]
    assert sorted(reordered.names("post_grad")) == sorted(manager.names("post_grad"))


def test_remove_is_by_name_at_every_stage():
    manager = PassManager().remove("cse")
    assert all("cse" not in manager.names(stage) for stage in ("joint", "post_grad"))
    compile_and_run(lambda x: x.sin() * x.sin(), t(3), passes=manager)
    assert history.recent()[-1].graphs[0].segments[0][1].count("aten.sin") == 2


def test_unknown_names_and_stages():
    with pytest.raises(errors.UnknownPass, match="did you mean 'noops'"):
        PassManager().remove("noop")
    with pytest.raises(errors.UnknownPass):
        PassManager().add("post_grad", double_to_triple, after="nothing")
    with pytest.raises(errors.UnknownOption, match="did you mean 'post_grad'"):
        PassManager().add("post_gard", double_to_triple)
    with pytest.raises(errors.InvalidOption, match="left out when before= is given"):
        PassManager().add("joint", double_to_triple, before="cse", after="dce")
    with pytest.raises(errors.InvalidOption, match="a PassManager"):
        passes.set_default("cse")
    assert PassManager().reorder("joint", ["dce", "dce"]).names("joint").count("dce") == 1
    with pytest.raises(errors.PassFailed, match="already there"):
        PassManager().add("joint", double_to_triple).add("joint", double_to_triple)


@pytest.mark.usefixtures("no_cache")
def test_a_backends_own_passes_run():
    ran = []

    def note(gm):
        ran.append("note")
        return gm

    from dovetail.backends.reference import ReferenceBackend

    class Mine(ReferenceBackend):
        name = "with_passes"

        def passes(self):
            return passes.Passes.of(post_grad=[note])

    with dovetail.registered_backend(Mine):
        compile_and_run(lambda x: x + 1, t(3), backend="with_passes")
    assert ran == ["note"]


# ---- identity ----------------------------------------------------------------------------------


def test_identity_follows_the_source():
    def make(factor):
        def scaled(gm):
            assert factor
            return gm

        return passes.as_pass(scaled)

    def scaled(gm):
        return gm  # other source

    assert make(1).identity == make(1).identity
    assert make(1).identity != make(2).identity
    assert make(1).identity != passes.as_pass(scaled).identity
    assert PassManager().identity == PassManager().identity
    assert PassManager().remove("cse").identity != PassManager().identity


_WRITTEN = """
import logging
import settings
from scaling import scaled
FACTOR, TABLE, log = 2, {"a": 1}, logging.getLogger()
class Table:
    rows = (1, 2)
def rewrite(gm):
    log.info("rewrite")
    def inner():
        return FACTOR, TABLE["a"], settings.level, Table.rows
    return gm if inner() else scaled(gm)
"""


def test_identity_follows_what_a_function_reads(monkeypatch):
    """Whether a file has it or not: values may be set at any time."""
    settings, scaling, mine = (types.ModuleType(n) for n in ("settings", "scaling", "mine"))
    settings.level, settings.unused = 1, object()
    exec("def scaled(gm):\n    return gm", vars(scaling))
    for module in (settings, scaling, mine):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(_WRITTEN.replace("logging.getLogger()", "print").replace("log.info", "log"), vars(mine))
    held = passes.as_pass(mine.rewrite)
    seen = [held.identity]
    assert held.identity == seen[0]
    changes = [
        (vars(mine), "FACTOR", 3),
        (mine.TABLE, "a", 2),
        (vars(settings), "level", 2),
        (vars(scaling)["scaled"], "__defaults__", (1,)),
    ]
    for owner, name, value in changes:
        setattr(owner, name, value) if callable(owner) else owner.update({name: value})
        seen.append(held.identity)
    mine.Table.rows = (1, 3)
    seen.append(held.identity)
    assert len(set(seen)) == len(seen)
    mine.log = logging.getLogger()  # no file says what it is
    with pytest.raises(errors.DovetailError, match="cannot be told apart"):
        _ = held.identity


def test_what_only_a_file_tells(tmp_path, monkeypatch):
    (tmp_path / "settings.py").write_text("level = 1")
    (tmp_path / "scaling.py").write_text("def scaled(gm):\n    return gm")
    (tmp_path / "mine_written.py").write_text(_WRITTEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = importlib.import_module("mine_written")
    try:
        held = passes.as_pass(mine.rewrite)
        before = held.identity
        sys.modules["settings"].level = 2
        assert held.identity != before
    finally:
        for name in ("settings", "scaling", "mine_written"):
            sys.modules.pop(name, None)


@pytest.mark.e2e
def test_identity_is_the_same_in_another_process():
    code = "from dovetail.passes import PassManager; print(PassManager().identity)"
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert {r.stdout.strip() for r in runs} == {PassManager().identity}


# ---- blame -------------------------------------------------------------------------------------


def returns_nothing(gm):
    gm.graph.lint()


def raises(gm):
    raise KeyError("oops")


def returns_a_graph(gm):
    return gm.graph


def uses_before_definition(gm):
    nodes = [n for n in gm.graph.nodes if n.op.startswith("call")]
    nodes[-1].append(nodes[0])
    return gm


def drops_the_output(gm):
    gm.graph.erase_node(gm.graph.output_node())
    return gm


def drops_an_input(gm):
    graph = fx.Graph()
    graph.output((graph.call_function(aten.full.default, ([3], 1.0)),))
    return fx.GraphModule(gm, graph)


def lies_about_shapes(gm):
    for node in gm.graph.nodes:
        if node.target is aten.sin.default:
            node.target = aten.sum.default  # its recorded value is now wrong
    return gm


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (returns_nothing, "returned nothing"),
        (raises, "raised KeyError"),
        (returns_a_graph, "returned a Graph"),
        (uses_before_definition, "not defined before it"),
        (drops_the_output, "0 output"),
        (drops_an_input, "0 inputs where the graph had 1"),
    ],
)
@pytest.mark.parametrize("stage", ["pre_grad", "post_grad"])
@pytest.mark.parametrize("debug", [False, True])
def test_a_pass_that_breaks_something_is_named(broken, message, stage, debug):
    manager = PassManager().add(stage, broken)
    with pytest.raises(errors.PassFailed, match=f"the {stage} pass {broken.__name__!r}.*{message}"):
        compile_and_run(lambda x: x.sin().cos() + 1, t(3), passes=manager, debug=debug)


def test_debug_mode_finds_wrong_metadata():
    manager = PassManager().add("post_grad", lies_about_shapes)
    with pytest.raises(errors.PassFailed, match="'lies_about_shapes' left sin described as"):
        compile_and_run(lambda x: x.sin() + 1, t(3), passes=manager, debug=True)


def test_debug_mode_takes_sizes_however_they_are_spelled():
    def fn(x):
        y = (x.mT @ x).sin().clone()
        y.flatten()[:2].copy_(y.flatten()[-1:].expand(1))
        y.view(-1)[1:].sub_(1)  # of s0 * s1 * s1 elements, or of s0 * s1 * (s1 * s1 // s1)
        return y

    options, x = {"debug": True, "cache": False}, t(2, 3, 4)
    compiled = torch.compile(fn, backend="reference", dynamic=True, options=options)
    torch.testing.assert_close(compiled(x), fn(x))


def test_debug_mode_looks_into_subgraphs():
    def fn(x):
        return torch.cond(x.sum() > 0, lambda a: a.sin() + 1, lambda a: a.cos() + 1, (x,))

    manager = PassManager().add("post_grad", lies_about_shapes)
    with pytest.raises(errors.PassFailed, match="lies_about_shapes"):
        compile_and_run(fn, t(3), passes=manager, debug=True)


# ---- records -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_cache")
def test_every_stage_keeps_its_graph_and_time():
    compile_and_run(lambda x: (x + 1) * (x + 1), t(3), keep_graphs=True)
    (compilation,) = history.recent()
    stages = {s.name: s for s in compilation.stages}
    assert stages["cse"].changed
    assert stages["cse"].before.count("aten.add") == 2
    assert stages["cse"].after.count("aten.add") == 1
    assert not stages["conv_bn"].changed
    assert all(s.ms > 0 for s in compilation.stages)
    names = [s.name for s in compilation.stages]
    stages = ["strides", "place", "layout", "compile", "link"]
    assert names == [*PassManager().names("post_grad"), *stages]


@pytest.mark.usefixtures("no_cache")
def test_graphs_are_not_kept_where_nobody_asks():
    compile_and_run(lambda x: (x + 1) * (x + 1), t(3))
    (compilation,) = history.recent()
    stages = {s.name: s for s in compilation.stages}
    assert stages["cse"].changed
    assert not stages["conv_bn"].changed
    assert not any(s.before or s.after for s in compilation.stages)


def transpose_outputs(gm):
    """A pass that lays results out otherwise than eager does."""
    output = gm.graph.output_node()
    with gm.graph.inserting_before(output):
        (value,) = output.args[0]
        turned = gm.graph.call_function(aten.permute.default, (value, [1, 0]))
        copy = gm.graph.call_function(
            aten.clone.default, (turned,), {"memory_format": torch.contiguous_format}
        )
        output.args = ((gm.graph.call_function(aten.permute.default, (copy, [1, 0])),),)
    return gm


def stages_named(name):
    (compilation,) = history.recent()
    return [s for s in compilation.stages if s.name == name]


@pytest.mark.usefixtures("no_cache")
def test_strides_are_restored_in_a_recorded_step():
    x, manager = t(3, 4), PassManager().add("post_grad", transpose_outputs)
    result = compile_and_run(lambda x: x + 1, x, passes=manager, debug=True, keep_graphs=True)
    assert result.stride() == (4, 1)
    (step,) = stages_named("strides")
    assert step.changed
    assert step.after.count("aten.clone") == step.before.count("aten.clone") + 1


@pytest.mark.usefixtures("no_cache")
def test_the_split_of_constants_is_a_recorded_step():
    model = torch.nn.Linear(3, 3).eval()
    with torch.no_grad():
        compile_and_run(model, t(2, 3), freeze=True, debug=True, keep_graphs=True)
    (step,) = stages_named("split")
    assert step.graph == "inference"
    assert step.after.count("return") == 2


@pytest.mark.usefixtures("no_cache")
def test_writing_in_place_is_a_recorded_step():
    def fn(x):
        x.index_fill_(0, torch.tensor([1]), 5.0)
        return x.sum()

    compile_and_run(fn, t(3), backend="aten", debug=True, keep_graphs=True)
    (step,) = stages_named("reinplace")
    assert "aten.index_fill_.int_Scalar" not in step.before
    assert "aten.index_fill_.int_Scalar" in step.after


def test_steps_enter_the_identity(monkeypatch):
    from dovetail.passes import manager, steps

    before = PassManager().identity
    other = passes.Pass("strides", double_to_triple)
    monkeypatch.setattr(manager, "STEPS", (other, *steps.STEPS[1:]))
    assert PassManager().identity != before


def test_the_report_shows_backward_and_leaves_the_rest_alone():
    model, compiled_before = torch.nn.Linear(3, 3), torch.compile(lambda x: x + 1, backend="aten")
    compiled_before(t(2))
    report = dovetail.explain(model, t(2, 3), backend="aten")
    assert {g.kind for c in report.compilations for g in c.graphs} == {"forward", "backward"}
    assert model.weight.grad is None
    history.clear()
    compiled_before(t(2))
    assert history.recent() == []  # still compiled


@pytest.mark.usefixtures("no_cache")
def test_the_report_says_what_ran_where():
    report = dovetail.explain(lambda x: (x + 1) * 2, t(3), backend="reference")
    assert report.placements() == {"reference": 2}
    assert "inference graph: 2 calls, 1 segment: 2 on reference" in str(report)
    data = report.to_dict()
    assert data["compilations"][0]["stages"][0]["name"] == "noops"
