"""The compiled graph as a value: text, bytes, equality, the verifier, linking."""

import dataclasses
import gc
import random
import weakref

import pytest
import torch
from torch import nn

import dovetail
from dovetail import history
from dovetail.backend import Blob
from dovetail.compiled import decode, encode, verify
from dovetail.compiled.tensors import tensor_from_bytes, tensor_to_bytes
from dovetail.errors import InvalidCompiledGraph
from dovetail.options import Options
from dovetail.pipeline import Compiler
from dovetail.place.priority import priority_list


class Block(nn.Module):
    """Something for every kind of backend, with a random draw and a constant of its own."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        table = torch.tensor([[1.0, -2.0, 3.0, 0.5]])
        y = self.norm(torch.nn.functional.gelu(self.up(x)))
        return self.down(y.cumsum(0)) * table, torch.sort(y).indices, x.shape[0]


def compiled(model, args, *, freeze=False, backends=("cpu",), dynamic=None):
    options = Options.resolve({"backends": list(backends)})
    chosen = priority_list(options)
    compiler = Compiler(chosen, options, history.begin(*(b.name for b in chosen)))
    program = torch.export.export(model, args, dynamic_shapes=dynamic).run_decompositions()
    inputs = [*program.state_dict.values(), *program.constants.values()]
    frozen = range(len(inputs)) if freeze else ()
    graph = compiler.compile_graph(program.graph_module, "inference", frozen)
    return compiler, graph, [tensor.detach() for tensor in inputs]


CASES = {
    "one segment": {},
    "frozen": {"freeze": True},
    "several backends": {"backends": ("portable", "cpu")},
    "PyTorch alone": {"backends": ("aten",)},
    "dynamic": {"dynamic": ({0: torch.export.Dim.AUTO},)},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bytes_give_back_an_equal_graph_that_runs(case):
    model, x = Block().eval(), torch.randn(3, 8)
    compiler, graph, weights = compiled(model, (x,), **case)
    read = decode(encode(graph))
    assert read == graph
    assert str(read) == str(graph)
    assert encode(read) == encode(graph)
    expected = compiler.link(graph).run([*weights, x])
    results = compiler.link(read).run([*weights, x])
    for result, other, eager in zip(results, expected, model(x), strict=True):
        if isinstance(eager, torch.Tensor):
            assert torch.equal(result, other)
            torch.testing.assert_close(result, eager)


def test_calls_are_not_read_to_run(monkeypatch):
    model, x = Block().eval(), torch.randn(3, 8)
    compiler, graph, weights = compiled(model, (x,))
    read = decode(encode(graph))
    monkeypatch.setattr("dovetail.compiled.graph.segment_from_bytes", None)
    quiet = dataclasses.replace(
        compiler, options=dataclasses.replace(compiler.options, debug=False)
    )
    (result, *_) = quiet.link(read).run([*weights, x])
    torch.testing.assert_close(result, model(x)[0].detach())


def test_the_report_is_the_same_after_a_round_trip():
    compiler, graph, _ = compiled(
        Block().eval(), (torch.randn(3, 8),), backends=("portable", "cpu")
    )
    compiler.link(graph)
    compiler.link(decode(encode(graph)))
    first, second = compiler.record.graphs
    assert first.verdicts == second.verdicts
    assert first.segments == second.segments
    assert first.segments[0].ops


def test_code_that_this_process_alone_has_is_refused_with_its_name():
    _, graph, _ = compiled(nn.Linear(2, 2), (torch.ones(1, 2),))
    (segment,) = graph.every.segments
    live = dataclasses.replace(segment, blob=Blob(live=print))
    part = dataclasses.replace(graph.every, segments=(live,))
    with pytest.raises(InvalidCompiledGraph, match="backend 'cpu' is an object of this process"):
        encode(dataclasses.replace(graph, every=part))


def wrong(graph, **changes):
    return dataclasses.replace(graph, every=dataclasses.replace(graph.every, **changes))


def test_the_verifier_names_what_is_wrong():
    _, graph, _ = compiled(Block().eval(), (torch.randn(3, 8),), backends=("portable", "cpu"))
    segments = graph.every.segments
    assert len(segments) > 1
    verify(graph)
    with pytest.raises(InvalidCompiledGraph, match="before it is there"):
        verify(wrong(graph, segments=segments[::-1]))
    with pytest.raises(InvalidCompiledGraph, match="there already"):
        verify(wrong(graph, segments=(*segments, segments[0])))
    with pytest.raises(InvalidCompiledGraph, match="is never made"):
        verify(wrong(graph, segments=segments[:-1]))
    with pytest.raises(InvalidCompiledGraph, match="from input 99"):
        verify(wrong(graph, symbols={"s0": (99, 0)}))
    with pytest.raises(InvalidCompiledGraph, match="frozen inputs"):
        verify(dataclasses.replace(graph, frozen=(0,)))


def test_damaged_bytes_raise_one_error():
    _, graph, _ = compiled(Block().eval(), (torch.randn(3, 8),), freeze=True)
    data, rng = encode(graph), random.Random(0)
    refused = 0
    for _ in range(400):
        damaged = bytearray(data)
        if rng.random() < 0.5:
            del damaged[rng.randrange(len(damaged)) :]
        else:
            damaged[rng.randrange(2000)] ^= 1 << rng.randrange(8)
        try:
            decode(bytes(damaged))
        except InvalidCompiledGraph:
            refused += 1
    assert refused > 300


LAYOUTS = {
    "transposed": lambda: torch.arange(6.0).reshape(2, 3).T,
    "expanded": lambda: torch.ones(1, 4).expand(3, 4),
    "empty": lambda: torch.zeros(0, 3),
    "number": lambda: torch.tensor(2.5, dtype=torch.bfloat16),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "bool": lambda: torch.tensor([True, False]),
    "conjugate": lambda: torch.randn(3, dtype=torch.complex64).conj(),
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_constants_keep_their_layout(make):
    tensor = make()
    desc, contents = tensor_to_bytes("constant", tensor)
    read = tensor_from_bytes(desc, memoryview(contents))
    assert read.dtype == tensor.dtype
    assert torch.equal(read, tensor)
    assert read.stride() == tensor.stride()


@pytest.mark.parametrize("device", ["xpu", "xyz"])
def test_a_constant_on_a_device_that_is_not_there(device):
    graph = compiled(Block().eval(), (torch.randn(3, 8),))[1]
    every = dataclasses.replace(graph.every, constants={"held": torch.ones(7)})
    data = encode(dataclasses.replace(graph, every=every))
    at = b'"stored":[7],"device":"%s"'
    assert "held" in decode(data).every.constants
    with pytest.raises(InvalidCompiledGraph):
        decode(data.replace(at % b"cpu", at % device.encode()))


def test_an_exported_model_has_it():
    artifact = dovetail.export(nn.Linear(2, 3).eval(), (torch.ones(1, 2),), backend="cpu")
    assert "part 'inference'" in str(artifact.compiled)
    assert decode(encode(artifact.compiled)) == artifact.compiled


@pytest.mark.parametrize("through_bytes", [False, True])
def test_neither_what_runs_nor_the_report_holds_the_code_twice(through_bytes):
    model, x = Block().eval(), torch.randn(3, 8)
    compiler, graph, weights = compiled(model, (x,))
    graph = decode(encode(graph)) if through_bytes else graph
    part, run = weakref.ref(graph.every), compiler.link(graph).run
    del graph
    gc.collect()
    assert part() is None
    assert run([*weights, x])
    assert compiler.record.graphs[0].verdicts
