"""Constants laid out once: at the first call, again when they were written to, never at load."""

import pytest
import torch
from torch import nn

import dovetail
from dovetail import history
from dovetail.artifact.save import pack
from dovetail.compilers.layouts import GraphConstants
from dovetail.file.processors import target_here
from dovetail.ir import Input, OpCall, Ref, Segment, TensorDesc
from dovetail.ir.program import Copy, KernelCall
from dovetail.place.cut import PlacedSegment
from dovetail.place.placement import Placement
from dovetail.place.prepare import Preparation
from dovetail.schedule.cpu.packing import panel_width
from tests.differential import needs_code

pytestmark = needs_code


def network():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten()]
    return nn.Sequential(*layers).eval()


X = torch.randn(2, 3, 12, 12)


def test_frozen_weights_are_laid_out_again_when_they_were_written_to():
    model = network()
    compiled = torch.compile(model, backend="cpu", options={"freeze": True, "cache": False})
    with torch.no_grad():
        for factor in (1.0, 0.5, -2.0):
            model[2].weight.mul_(factor)
            torch.testing.assert_close(compiled(X), model(X), atol=1e-5, rtol=1e-5)


def test_a_cached_graph_takes_other_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("DOVETAIL_CACHE", "1")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))
    options = {"freeze": True}
    for scale in (1.0, 3.0):
        model = network()
        with torch.no_grad():
            model[0].weight.mul_(scale)
            torch.compiler.reset()
            compiled = torch.compile(model, backend="cpu", options=options)
            torch.testing.assert_close(compiled(X), model(X), atol=1e-5, rtol=1e-5)
    assert [str(v.state) for v in history.recent()[-1].cache] == ["hit"]


def test_a_file_holds_weights_as_kernels_want_them(tmp_path):
    model = network()
    exported = dovetail.export(model, (X,), backend="cpu")
    exported.save(tmp_path / "model.dvt")
    program = pack(exported.interface, exported.linked).program
    held = [b.desc for b in program.buffers if b.kind == "constant" and b.desc.rank == 4]
    assert len(held) >= 2
    transformed = [d for d in held if d.shape[0] == d.shape[1] in (4, 6)]  # for Winograd
    assert all(d.strides[0] == 1 for d in held if d not in transformed)
    assert all(d.strides[3] == 1 for d in transformed)
    constants = {b.name for b in program.buffers if b.kind == "constant" and b.desc.rank == 4}
    for instruction in program.instructions:
        if isinstance(instruction, Copy):
            assert instruction.source not in constants
        elif isinstance(instruction, KernelCall):  # one that computes, not one that lays out
            laid_out = len(instruction.inputs) == 1 and "sum" not in instruction.kernel
            assert not laid_out or constants.isdisjoint(instruction.inputs)
    loaded = dovetail.load(tmp_path / "model.dvt")
    torch.testing.assert_close(loaded(X), model(X), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("freeze", [False, True])
def test_a_constant_of_the_graph_is_packed_while_it_is_compiled(freeze):
    listed, linear = torch.randn(40, 96).tolist(), nn.Linear(40, 96)

    def model(x):
        return x @ torch.tensor(listed) + linear(x), torch.tensor(listed)[0]

    x, options = torch.randn(5, 40), {"freeze": freeze, "cache": False}
    with torch.no_grad():
        compiled = torch.compile(model, backend="cpu", options=options)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x))
    texts = [s.text for graph in history.recent()[-1].graphs for s in graph.segments]
    width = panel_width(96, target_here())
    packed = f"as [d1 / {width}: {96 // width}, d0: 40, d1: {width}] constant"
    assert sum(text.count(packed) for text in texts) == (2 if freeze else 1)
    assert ("aten.clone" in "".join(texts)) == freeze  # of what is frozen, in the part of its own


# ---- the graph's own form --------------------------------------------------------------------

IMAGE = TensorDesc("float32", (2, 3, 4, 4), (48, 16, 4, 1))


def clone(name, of):
    return OpCall(name, "aten.clone.default", (Ref(of, IMAGE),), {}, IMAGE)


def parts(*calls, outputs=("y",), frozen=("w",)):
    """What runs once gives its inputs on; what runs every time takes ``x`` and those."""
    given = tuple(Input(f"once_{name}", IMAGE, "constant") for name in frozen)
    inputs = (Input("x", IMAGE), *given)
    refs = tuple(Ref(name, IMAGE) for name in frozen)
    once = Placement(tuple(Input(n, IMAGE) for n in frozen), {}, {}, (), refs, ())
    segment = Segment("segment_0", inputs, calls, tuple(Ref(o, IMAGE) for o in outputs))
    sources, results = tuple((i.name, ()) for i in inputs), tuple((o, ()) for o in outputs)
    placed = PlacedSegment(segment, (), sources, results)
    every = Placement(inputs, {}, {}, (placed,), segment.outputs, ())
    return Preparation(once, every), placed


def add(name, *refs):
    args = tuple(Ref(ref, IMAGE) for ref in refs)
    return OpCall(name, "aten.add.Tensor", args, {}, IMAGE)


def test_calls_on_constants_move_with_what_they_need():
    calls = clone("a", "once_w"), clone("b", "a"), add("y", "x", "b")
    work, placed = parts(*calls)
    moved = work.move(placed, calls[:2])
    once, every = work.finish([moved])
    assert [c.name for c in moved.segment.calls] == ["y"]
    assert [i.name for i in moved.segment.inputs] == ["x", "b"]
    assert [i.name for i in every.inputs] == ["x", "b"]
    (added,) = once.segments
    assert [c.name for c in added.segment.calls] == ["a", "b"]
    assert added.sources == (("w", ()),)
    assert added.results == (("b", ()),)
    assert once.outputs == (Ref("b", IMAGE),)


def test_what_depends_on_other_inputs_stays():
    calls = clone("a", "x"), clone("b", "a"), add("y", "b", "once_w")
    work, placed = parts(*calls)
    assert work.move(placed, calls[:2]) is placed


def test_a_constant_that_is_still_used_goes_on_being_given():
    calls = clone("w", "once_w"), add("y", "w", "once_w")
    work, placed = parts(*calls)
    once, every = work.finish([work.move(placed, calls[:1])])
    assert [ref.name for ref in once.outputs] == ["w", "w_"]  # the name is taken
    assert [i.name for i in every.inputs] == ["x", "once_w", "w_"]
    (segment,) = every.segments
    assert segment.sources == (("once_w", ()), ("w_", ()))


def test_constants_that_a_graph_may_write_to_are_no_constants():
    held = {"c": torch.zeros(IMAGE.shape)}
    inputs = (Input("c", IMAGE, "constant"), Input("x", IMAGE))
    write = OpCall("w", "aten.copy_.default", (Ref("c", IMAGE), Ref("x", IMAGE)), {}, IMAGE)
    other = OpCall("w", "aten.copy_.default", (Ref("x", IMAGE), Ref("c", IMAGE)), {}, IMAGE)
    for call, fixed in ((write, False), (other, True), (clone("y", "c"), True)):
        segment = Segment("segment_0", inputs, (call,), (Ref(call.name, IMAGE),))
        placed = PlacedSegment(segment, (), (("c", ()), ("x", ())), ((call.name, ()),))
        part = Placement(inputs[1:], held, {}, (placed,), segment.outputs, ())
        assert bool(GraphConstants(part, set()).inputs(placed)) == fixed
