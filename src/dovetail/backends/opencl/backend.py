"""``opencl``: fused kernels as OpenCL C, on any device that has a driver for it.

The device is a GPU where there is one, else that with most compute units, of those whose driver
compiles for them: one may be older than the processor. ``pocl-binary-distribution`` brings a driver
for the CPU.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.backends.rendered import Device, Function, Memory, NoDevice, RendererBackend
from dovetail.codegen.opencl.render import PRELUDE, render
from dovetail.ir.real import Real

if TYPE_CHECKING:
    from dovetail.ir import OpCall
    from dovetail.ir.kernel import Kernel

GROUP = 64  # work-items that run together
_OPTIONS = ("-cl-fp32-correctly-rounded-divide-sqrt", "-w")  # -w: no warnings on stderr


class OpenCLBackend(RendererBackend):
    """Renders kernel IR as OpenCL C and keeps memory, queue and kernels of one device."""

    name = "opencl"
    prelude: ClassVar[str] = PRELUDE

    def open(self) -> OpenCLDevice:
        """The best device of any platform whose driver compiles for it."""
        problems = []
        for device in find_devices():
            opened = OpenCLDevice(device)
            if not (problem := opened.problem()):
                return opened
            problems.append(f"{device.name}: {problem}")
        raise NoDevice(f"no OpenCL driver compiles for its device; {'; '.join(problems)}")

    def render(self, kernel: Kernel) -> str:
        """A kernel as OpenCL C."""
        return render(kernel)

    def refuses(self, call: OpCall) -> str:
        """Double precision is optional in OpenCL.

        Running sums and products are made in it, and numbers computed from sizes come in it.
        """
        dtypes = {desc.dtype for desc in (*call.inputs, *call.outputs)}
        running = call.op in ("aten.cumsum.default", "aten.cumprod.default")
        wide = "float64" in dtypes or (running and "float32" in dtypes)
        wide = wide or any(isinstance(leaf, Real) for leaf in call.leaves())
        if wide and not self.device_of().has_double:
            return "the device has no double precision"
        return ""

    def device_of(self) -> OpenCLDevice:
        """The open device."""
        device = self.opened.device
        assert isinstance(device, OpenCLDevice)
        return device

    def fingerprint(self) -> str:
        """The device and its driver."""
        device = self.device_of().device
        return f"{device.name} {device.version} {device.driver_version}"


def find_devices() -> list[Any]:
    """The devices that there are, the best first; NoDevice where there is none."""
    if importlib.util.find_spec("pyopencl") is None:
        raise NoDevice("pyopencl is not installed: pip install 'dovetail[opencl]'")
    import pyopencl as cl

    try:
        platforms = cl.get_platforms()
    except cl.LogicError:
        platforms = []
    devices = [device for platform in platforms for device in platform.get_devices()]
    if not devices:
        reason = "no OpenCL device; pocl-binary-distribution brings a driver for the CPU"
        raise NoDevice(reason)
    gpu = cl.device_type.GPU
    return sorted(devices, key=lambda d: (not d.type & gpu, -d.max_compute_units))


class OpenCLDevice(Device):
    """One device, one queue in order."""

    def __init__(self, device: Any) -> None:
        import pyopencl as cl

        self.cl: Any = cl
        self.device = device
        self.context = cl.Context([device])
        self.queue = cl.CommandQueue(self.context)
        self.alignment = max(64, device.mem_base_addr_align // 8)
        self.has_double = "cl_khr_fp64" in device.extensions.split()
        self.group = min(GROUP, device.max_work_group_size)

    def problem(self) -> str:
        """Why its driver cannot compile for it, in the driver's words; empty where it can."""
        try:
            self.build("__kernel void nothing() {}", ("nothing",))
        except self.cl.Error as error:
            lines = str(error).splitlines()
            told = [line.strip() for line in lines if line.strip().startswith("error:")]
            return (told or lines or ["no reason given"])[0]
        return ""

    def build(self, source: str, names: Sequence[str]) -> Sequence[Function]:
        """Compile with the driver's own compiler."""
        with warnings.catch_warnings():  # of drivers that say so where all is well
            warnings.simplefilter("ignore", self.cl.CompilerWarning)
            program = self.cl.Program(self.context, source).build(_OPTIONS, cache_dir=False)
        return [getattr(program, name) for name in names]

    def allocate(self, size: int) -> Memory:
        """A buffer of the device."""
        return self.cl.Buffer(self.context, self.cl.mem_flags.READ_WRITE, size)

    def part(self, memory: Memory, offset: int, size: int) -> Memory:
        """A buffer within a buffer."""
        return memory.get_sub_region(offset, size)

    def upload(self, memory: Memory, address: int, size: int) -> None:
        """Through the queue; the host's memory may change as soon as this returns."""
        self.cl.enqueue_copy(self.queue, memory, _bytes(address, size), is_blocking=True)

    def download(self, memory: Memory, address: int, size: int) -> None:
        """Through the queue, and waited for."""
        self.cl.enqueue_copy(self.queue, _bytes(address, size), memory, is_blocking=True)

    def launch(
        self,
        function: Function,
        points: int,
        buffers: Sequence[Memory],
        sizes: Sequence[int],
        flag: Memory | None,
    ) -> None:
        """A work-item a point, in groups; the last group may be half empty."""
        from numpy import int64

        numbers = [int64(n) for n in (*sizes, points)]
        arguments = (*buffers, *numbers, *(() if flag is None else (flag,)))
        function.set_args(*arguments)
        group = min(self.group, points)
        total = -(-points // group) * group
        self.cl.enqueue_nd_range_kernel(self.queue, function, (total,), (group,))


def _bytes(address: int, size: int) -> Any:
    """The host's memory at an address, as something that can be copied from and to."""
    import ctypes

    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")
