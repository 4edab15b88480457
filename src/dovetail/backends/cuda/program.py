"""A segment as launches of kernels and calls of PyTorch, in order."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from dovetail import history
from dovetail.backends.cuda.code import schedule_blocks
from dovetail.backends.cuda.stored import digest_of
from dovetail.backends.support import results_of
from dovetail.codegen.triton.compile import Cubin, compile_kernel
from dovetail.ir import Arg, Ref, Segment
from dovetail.ir.call import leaves
from dovetail.ir.kernel import Kernel
from dovetail.ir.kernel_call import call_sizes
from dovetail.ir.size import Dim
from dovetail.ir.target import Target
from dovetail.ir.tensor import ScalarDesc, TensorDesc
from dovetail.lower.values import LibraryCall, Value, root_of
from dovetail.schedule.build import Built
from dovetail.schedule.gpu.blocks import BlockSchedule
from dovetail.schedule.plan import Unschedulable, make_plan
from dovetail.schedule.program import describe

MOST_THREADS = 8  # that compile; most of the work is LLVM's and ptxas's, which need no Python
MOST_KEPT = 256  # kernels whose code a process keeps for the next segment that has one alike


@dataclass(frozen=True)
class KernelText:
    """A kernel told from others by its text: 0.0 equals -0.0, and one code cannot be both's."""

    text: str
    kernel: Kernel | None = field(default=None, compare=False)


@dataclass(frozen=True)
class BlockLaunch:
    """A kernel, the memory behind its buffers, and how many blocks it has."""

    name: str  # kernels of one name have the same code
    buffers: tuple[Value, ...]
    written: tuple[Value, ...]
    sizes: tuple[Dim, ...]
    blocks: Dim


class CudaProgram:
    """Steps in order, the kernels' schedules by name, and their code once it is made."""

    def __init__(self, segment: Segment, target: Target) -> None:
        self.segment, self.index, self.target = segment, device_of(segment), target
        plan = make_plan(segment, self.target)
        self.values = plan.values
        self.kernels: dict[str, tuple[Kernel, BlockSchedule]] = {}
        self.code: dict[str, Cubin] = {}
        self._names: dict[KernelText, str] = {}
        self.given = {each.name for each in segment.inputs}
        self._check_numbers()
        self.steps = [s if isinstance(s, LibraryCall) else self._launch(s) for s in plan.steps]
        self.outputs = [self._output(out) for out in segment.outputs]

    def _launch(self, built: Built) -> BlockLaunch:
        """A step's launch; kernels that differ in their names alone are one."""
        plain = replace(built.kernel, name=f"fused{describe(built.kernel)}")
        key = KernelText(str(plain))
        if key not in self._names:
            name = self._names[key] = str(len(self._names))
            self.kernels[name] = schedule_blocks(plain, self.target)
        name = self._names[key]
        kernel, schedule = self.kernels[name]
        roots = {b.name: root_of(built.buffers[b.name]) for b in kernel.buffers}
        written = tuple(roots[b.name] for b in kernel.buffers if b.role != "in")
        sizes = call_sizes(kernel)
        return BlockLaunch(name, tuple(roots.values()), written, sizes, schedule.units(kernel))

    def compile(self) -> None:
        """Make the kernels' code side by side; those of other segments that are alike are kept."""
        with history.step("codegen"), ThreadPoolExecutor(MOST_THREADS) as pool:
            made = pool.map(self._compiled, self.kernels.values())
            self.code = dict(zip(self.kernels, made, strict=True))

    def digests(self) -> dict[str, str]:
        """What code has to be of, by the kernels' names."""
        return {name: digest_of(*scheduled) for name, scheduled in self.kernels.items()}

    def _compiled(self, scheduled: tuple[Kernel, BlockSchedule]) -> Cubin:
        kernel, schedule = scheduled
        return _compiled(KernelText(str(kernel), kernel), schedule, self.target)

    def _check_numbers(self) -> None:
        """Unschedulable where a number is read that only a call between the kernels would tell."""
        refs = [ref for call in self.segment.calls for ref in call.refs()]
        refs += [out for out in leaves(self.segment.outputs) if isinstance(out, Ref)]
        for ref in refs:
            known = (ref.name, ref.path) in self.values or ref.name in self.given
            if not known and _size_of(ref) is None:
                raise Unschedulable(f"the number {ref.name} is a call's result")

    def _output(self, out: Arg) -> Arg | Value:
        """A value, or a size or number as it stands."""
        if not isinstance(out, Ref):
            return out
        value = self.values.get((out.name, out.path))
        if value is not None or out.name in self.given:
            return out if value is None else value
        return _size_of(out)


def _size_of(ref: Ref) -> Dim | None:
    """What a number is, where it is one of the sizes."""
    return ref.desc.size if isinstance(ref.desc, ScalarDesc) else None


@functools.lru_cache(maxsize=MOST_KEPT)
def _compiled(given: KernelText, schedule: BlockSchedule, target: Target) -> Cubin:
    assert given.kernel is not None
    return compile_kernel(given.kernel, schedule, target)


def device_of(segment: Segment) -> int:
    """The one GPU that a segment's tensors are on."""
    descs = [desc for call in segment.calls for desc in (*call.inputs, *results_of(call))]
    descs += [given.desc for given in segment.inputs if isinstance(given.desc, TensorDesc)]
    devices = {desc.device for desc in descs}
    if len(devices) != 1:
        raise Unschedulable(f"tensors on {', '.join(sorted(devices)) or 'no device'}")
    kind, _, index = devices.pop().partition(":")
    if kind != "cuda":
        raise Unschedulable(f"tensors on {kind}")
    return int(index or 0)
