"""Training steps as the ``cuda`` backend compiles them, on a machine without a GPU.

Graphs are captured on the processor and described as a GPU's before the joint passes see them. What
is compiled runs in the order of its steps: kernels by the reference, on memory that lies as a GPU's
would, and library calls by PyTorch's operators for the processor.
"""

from dataclasses import dataclass, field

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from dovetail.backends.cuda import backend
from dovetail.backends.cuda.backend import CudaBackend
from dovetail.backends.cuda.driver import LaunchedFunction
from dovetail.backends.cuda.products import LibraryCalls
from dovetail.backends.cuda.program import CudaProgram
from dovetail.backends.cuda.steps import SizedSteps
from dovetail.capture.aot import Capture
from dovetail.capture.decompose import composite_rules, keeping_claimed
from dovetail.capture.from_fx import segment_of
from dovetail.history import Compilation
from dovetail.ir.target import TARGETS
from dovetail.passes import manager
from dovetail.passes.base import PassRecorder
from dovetail.testing.kernel_reference import run_kernel

GPU, DEVICE = TARGETS["sm_90"], torch.device("cuda:0")


@dataclass
class Training:
    """A model's training step: its graphs by kind once they are compiled, and their programs."""

    model: torch.nn.Module
    graphs: dict = field(default_factory=dict)
    programs: dict = field(default_factory=dict)

    def __call__(self, *args):
        return torch.compile(self.model, backend=self._backend, dynamic=False)(*args)

    def _backend(self, gm, inputs):
        cuda = CudaBackend()
        passes = manager.with_backends(None, [cuda])
        recorder = PassRecorder(Compilation("test", ()))  # fake convolutions know no cuDNN here
        capture = Capture(
            compile_graph=self._compile,
            joint_passes=lambda gm: passes.run("joint", on_gpu(gm), "joint", recorder),
            decompositions=keeping_claimed([(cuda.decompositions(), cuda.keeps_whole)]),
            composites=composite_rules(cuda.composites, cuda.keeps_whole),
        )
        return capture.run(gm, inputs)

    def _compile(self, graph):
        program = CudaProgram(segment_of(graph.gm, graph.kind), GPU)
        self.graphs[graph.kind], self.programs[graph.kind] = graph.gm, program
        return Simulated(program)


def on_gpu(gm):
    """A graph described as one of tensors on a GPU."""

    def moved(value):
        if isinstance(value, FakeTensor):
            shape, strides = tuple(value.shape), value.stride()
            with torch.utils._python_dispatch._disable_current_modes():
                meta = torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")
            return FakeTensor(value.fake_mode, meta, DEVICE)
        return DEVICE if isinstance(value, torch.device) else value

    for node in gm.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map(moved, node.meta["val"])
        if node.op == "call_function":
            node.args = tuple(map(moved, node.args))
            node.kwargs = {name: moved(arg) for name, arg in node.kwargs.items()}
    return gm


class Apart(SizedSteps):
    """Steps whose values all have memory of their own."""

    def _arena(self):
        return None


class Simulated:
    """A program's steps, done one by one."""

    def __init__(self, program):
        self.program = program
        functions = {name: LaunchedFunction(n, 32, 0) for n, name in enumerate(program.kernels)}
        self.steps = Apart(program, int, functions, LibraryCalls())
        self.kernels = [kernel for kernel, _ in program.kernels.values()]

    @property
    def run(self):
        return lambda inputs: self.call(inputs)

    def call(self, inputs):
        values = [*inputs, *[None] * (self.steps.count - len(inputs))]
        inputs.clear()
        for kind, given in self.steps.steps:
            if kind == "empty":
                place, (shape, strides, dtype) = given
                values[place] = torch.empty_strided(shape, strides, dtype=dtype).fill_(-77)
            elif kind == "launch":
                self._launch(values, given[0], given[4])
            elif kind == "free":
                values[given[0]] = None
            else:
                given[0](values)
        return [get(values) for get in self.steps.outputs()]

    def _launch(self, values, number, words):
        kernel = self.kernels[number]
        arrays = {
            buffer.name: memory_of(values[place])
            for buffer, (_, place) in zip(kernel.buffers, words, strict=True)
        }
        run_kernel(kernel, arrays, {})


def memory_of(tensor):
    """A tensor's memory from its first element on, as one flat array that shares it."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return tensor.detach().as_strided((count,), (1,)).numpy()


def use_gpu(monkeypatch):
    """Have the backend compile for a GPU that is not there."""
    monkeypatch.setattr(backend, "target_of", lambda _: GPU)
    monkeypatch.setattr(backend, "_multiplying", lambda target: target)
