"""Files for the tests: programs from text, bytes of a file, damaged and odd ones."""

import struct
from pathlib import Path

import torch

from dovetail.file import container
from dovetail.file.encode import encode_program
from dovetail.ir.program_text import parse_program
from dovetail.runtime.loaded import open_native

ROOT = Path(__file__).parents[2]
RELU = """\
program @relu
input %x: float32[2, 3]
output %y: float32[2, 3]
kernel %y = relu@1(%x)
return %y
"""


def file_bytes(text=RELU, contents=None, *, manifest=None, sections=(), blobs=None, **options):
    """The bytes of an artifact of a program's text."""
    program = parse_program(text)
    trees = {
        "inputs": {
            "tuple": [{"tuple": [{"tensor": i} for i in range(len(program.inputs))]}, {"dict": []}]
        },
        "outputs": {"tensor": 0},
    }
    generated = options.pop("generated", None)
    made, features = encode_program(
        program, contents or {}, manifest or trees, generated=generated, blobs=blobs, debug=False
    )
    features |= options.pop("features", 0)
    layout, ordered = container.lay_out([*made, *sections], features, **options)
    return b"".join(container.chunks(layout, ordered))


def open_package(package):
    sections, features = encode_program(package.program, package.contents, package.manifest)
    return open_native(b"".join(container.chunks(*container.lay_out(sections, features))))


def contents_as_tensors(package):
    """Constants and state as tensors of the layout that the program gives them."""
    found = {}
    for name, data in package.contents.items():
        desc = package.program.by_name[name].desc
        dtype = getattr(torch, desc.dtype)
        if len(data) == 0:
            found[name] = torch.empty(desc.shape, dtype=dtype)
            continue
        flat = torch.frombuffer(bytearray(data), dtype=dtype)
        found[name] = flat.as_strided(desc.shape, desc.strides)
    return found


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)
