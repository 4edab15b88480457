"""What the verifier asks of devices: who may touch what, and what a copy may cross."""

from __future__ import annotations

import re
from itertools import pairwise

from dovetail.errors import InvalidProgram
from dovetail.ir.program import (
    BlobCall,
    Copy,
    Instruction,
    Launch,
    Operand,
    Program,
    reads,
    writes,
)
from dovetail.ir.quantization import InvalidQuantization, verify_quantization
from dovetail.ir.strides import same_dims
from dovetail.ir.tensor import TensorDesc
from dovetail.ir.verify import requirement

HOST = "cpu"
_NAME = re.compile(r"[\w.-]+$")
_KERNEL = re.compile(r"[^\s@]+@\d+(-\d+)?$")
_ON_DEVICE = ("constant", "temporary", "view")  # what may lie in a device's memory
_require = requirement(InvalidProgram)


def verify_devices(program: Program) -> None:
    """Devices have names of their own, and every buffer lies on the host or on one of them."""
    _require(len(program.device_names) == len(program.devices), "a device is declared twice")
    for device in program.devices:
        named = bool(_NAME.match(device.name)) and device.name != HOST
        _require(named, f"{device.name!r} is no name of a device")
    if not program.devices:
        return
    for buffer in program.buffers:
        place = buffer.desc.device
        if place == HOST:
            continue
        what = f"buffer %{buffer.name}"
        _require(place in program.device_names, f"{what}: on {place}, which is not declared")
        _require(buffer.kind in _ON_DEVICE, f"{what}: a {buffer.kind} buffer is on the host")


def verify_sides(program: Program, instruction: Instruction) -> None:
    """An instruction's operands lie where it runs; a copy crosses one border at most."""
    if isinstance(instruction, Launch):
        _verify_launch(program, instruction)
    if not program.devices:
        return
    if isinstance(instruction, Copy):
        _verify_copy(program, instruction)
        return
    place = HOST
    if isinstance(instruction, Launch):
        place = instruction.device
    elif isinstance(instruction, BlobCall) and instruction.owner in program.device_names:
        place = instruction.owner
    for name in (*reads(instruction), *writes(instruction)):
        found = program.by_name[name].desc.device
        _require(found == place, f"%{name} is on {found}, and the instruction runs on {place}")


def _verify_launch(program: Program, launch: Launch) -> None:
    _require(launch.device in program.device_names, f"there is no device {launch.device!r}")
    _require(bool(_KERNEL.match(launch.kernel)), "a kernel is launched as name@version")
    _require(any(launch.outputs), "a kernel without an output")
    _require(0 <= launch.hidden <= len(launch.inputs), "a launch has more scales than inputs")
    names = (*launch.inputs, *launch.outputs)
    places = [operand.place for operand in launch.operands]
    ordered = all(a < b for a, b in pairwise(places))
    _require(ordered, "operands of a launch are out of order")
    for operand in launch.operands:
        there = 0 <= operand.place < len(names) and names[operand.place]
        _require(bool(there), "a launch describes an operand that is not there")
        _verify_operand(program, launch, operand)


def _verify_operand(program: Program, launch: Launch, operand: Operand) -> None:
    buffer = program.by_name[(*launch.inputs, *launch.outputs)[operand.place]]
    desc = buffer.desc
    if operand.dtype:
        whole = operand.place < len(launch.inputs) and buffer.kind != "view"
        _require(whole, "a launch describes a result, or a view")
        _require(len(operand.shape) == len(operand.strides), "an operand has not as many strides")
        desc = TensorDesc(operand.dtype, operand.shape, operand.strides)
    _require(not operand.prepared or buffer.kind == "constant", "what is prepared is a constant")
    if operand.quantization is None:
        return
    try:
        verify_quantization(operand.quantization, desc)
    except InvalidQuantization as error:
        raise InvalidProgram(f"%{buffer.name}: {error}") from None
    scales = launch.inputs[len(launch.inputs) - launch.hidden :]
    for ref in operand.quantization.refs():
        _require(ref.name in scales, f"%{ref.name} is none of the launch's scales")


def _verify_copy(program: Program, copy: Copy) -> None:
    target, source = program.by_name[copy.target], program.by_name[copy.source]
    sides = {target.desc.device, source.desc.device}
    if sides == {HOST}:
        return
    _require(HOST in sides and len(sides) == 2, "a copy is to or from the host")
    same = same_dims(target.desc.strides, source.desc.strides)
    _require(same, "a copy between devices keeps strides")
    _require(target.kind != "view", "a copy between devices fills a buffer, not a view")
