"""Artifacts run by the C runtime on AArch64: cross-compiled, under qemu's emulation."""

import math
import os
import shutil
import struct
import subprocess

import numpy as np
import pytest
import torch

from dovetail.file import container
from dovetail.file.encode import code_section
from tests.artifact.files import ROOT, file_bytes
from tests.native.interpret import ir_section, kernel_program

COMPILER = shutil.which("aarch64-linux-gnu-gcc")
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
needs_emulator = pytest.mark.skipif(
    COMPILER is None or EMULATOR is None,
    reason="needs qemu-aarch64 and aarch64-linux-gnu-gcc (packages qemu-user and "
    "gcc-aarch64-linux-gnu)",
)


def build(folder):
    """The C runtime and a program that runs artifacts with it, for AArch64."""
    made = folder / "run_artifact"
    native = ROOT / "native"
    command = [COMPILER, "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-static", "-pthread"]
    command += [f"-I{native / 'include'}", f"-I{native / 'src'}", "-o", made]
    command += [native / "tests" / "run_artifact.c", *sorted((native / "src").glob("*.c"))]
    subprocess.run([*map(str, command), "-lm"], check=True, capture_output=True, timeout=170)
    return made


def run(program, folder, inputs):
    """What the artifact in a folder does: the state of its code, its outputs as (shape, bytes)."""
    give(folder, inputs)
    (said,) = run_all(program, [folder])
    return said, taken(folder)


def give(folder, inputs):
    """Put the inputs of an artifact into its folder."""
    for n, given in enumerate(inputs):
        array = as_array(given)
        head = struct.pack(f"<{1 + array.ndim}q", array.ndim, *array.shape)
        (folder / f"in{n}").write_bytes(head + array.tobytes())


def run_all(program, folders, *, threads=2):
    """The state of each artifact's code, or what went wrong with it."""
    ran = subprocess.run(
        [EMULATOR, str(program), *map(str, folders)], capture_output=True, text=True, check=False,
        timeout=170, env={**os.environ, "DOVETAIL_NUM_THREADS": str(threads)},
    )  # fmt: skip
    assert ran.returncode in (0, 1), (ran.returncode, ran.stderr)
    said = ran.stdout.splitlines()
    assert len(said) == len(folders), said
    return [int(line) if line.removeprefix("-").isdigit() else line for line in said]


def taken(folder):
    """The outputs that lie in a folder."""
    outputs = []
    while (made := folder / f"out{len(outputs)}").exists():
        data = made.read_bytes()
        (rank,) = struct.unpack_from("<q", data)
        outputs.append((struct.unpack_from(f"<{rank}q", data, 8), data[8 + 8 * rank :]))
    return outputs


def as_array(value):
    """A tensor as an array of the same bytes."""
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value)
    value = value.contiguous()
    same = {torch.bfloat16: torch.int16}.get(value.dtype)
    return (value.view(same) if same else value).numpy()


def as_tensor(output, like):
    """An output with the type of another tensor."""
    shape, data = output
    padded = bytearray(data + bytes(8))
    return torch.frombuffer(padded, dtype=like.dtype)[: math.prod(shape)].view(shape)


def kernel_file(kernel, lengths, code, number):
    """A program of one call of a kernel, with object code for one processor."""
    return file_bytes(
        str(kernel_program(kernel, lengths)),
        generated={f"{kernel.name}@1": kernel.name},
        sections=[code_section([(number, code)]), ir_section([kernel])],
    )


def write(folder, data, *inputs):
    """A folder with a file and its inputs, as ``run_all`` expects it."""
    folder.mkdir(exist_ok=True)
    container.write_file(folder / "model.dvt", [data])
    give(folder, inputs)
    return folder
