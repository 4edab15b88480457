"""Buffers that hold tensors packed or with a halo: as text, in files, in the C runtime."""

import struct
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import pad

import dovetail
from dovetail import errors
from dovetail.artifact.save import pack
from dovetail.file import container
from dovetail.file.decode import decode_artifact
from dovetail.file.encode import encode_program
from dovetail.ir.encode import segment_from_bytes, segment_to_bytes
from dovetail.ir.layout import Layout, LayoutPart
from dovetail.ir.memory import plan_memory
from dovetail.ir.program_text import parse_program
from dovetail.ir.program_verify import verify_program
from dovetail.ir.segment import Input, Segment
from dovetail.ir.segment_verify import InvalidSegment, verify_segment
from dovetail.ir.size import Size, substitute
from dovetail.ir.tensor import TensorDesc
from dovetail.page.program import program_data
from dovetail.runtime.loaded import open_native
from tests.artifact.files import file_bytes, floats
from tests.differential import needs_code
from tests.native.seeds_programs import LAYOUTS

CONTENTS = {"w": floats(*range(24)), "v": floats(*range(36))}
PACKED = Layout.of((3, 5), [(1, 4), (0, 1), (1, 1)])


def with_layouts(*words):
    """A file of LAYOUTS whose layouts section holds these numbers instead."""
    data = struct.pack(f"<{len(words)}I", *words)
    sections = decode_artifact(file_bytes(LAYOUTS, CONTENTS), "p").sections
    made = [
        container.Section(kind, [data if kind == container.LAYOUTS else body], kind != 16)
        for kind, body in sections.items()
    ]
    return b"".join(container.chunks(*container.lay_out(made, 0)))


def numbers():
    data = decode_artifact(file_bytes(LAYOUTS, CONTENTS), "p").sections[container.LAYOUTS]
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def given(rows):
    return torch.randn(1, 2, rows, 3), torch.randn(-(-rows // 4), 2, 4)


def test_a_text_says_what_a_buffer_holds():
    program = parse_program(LAYOUTS)
    verify_program(program)
    assert str(program) == LAYOUTS
    desc = program.by_name["w"].desc
    assert (desc.shape, desc.strides, desc.layout) == ((2, 3, 4), (12, 4, 1), PACKED)
    assert str(desc) == "f32[3, 5] as [d1 / 4: 2, d0: 3, d1: 4]"


def test_a_file_says_so_too():
    decoded = decode_artifact(file_bytes(LAYOUTS, CONTENTS), "layouts")
    assert decoded.program == parse_program(LAYOUTS)


def test_the_runtime_runs_it_and_counts_padding():
    native = open_native(file_bytes(LAYOUTS, CONTENTS))
    for rows in (3, 0, 5):
        x, q = given(rows)
        y, z, u, t = map(torch.from_dlpack, native(x, q))
        assert torch.equal(y, pad(x, (1, 1, 1, 1)).relu().permute(0, 2, 3, 1))
        assert torch.equal(z, -torch.arange(24.0).reshape(2, 3, 4))
        assert torch.equal(u, q * -2)
        assert torch.equal(t, torch.arange(36.0).reshape(2, 3, 3, 2))
        halo = (rows + 2) * 5 * 2 - rows * 3 * 2
        blocks = (q.shape[0] * 4 - rows) * 2
        assert native.padding() == 4 * (halo + blocks)
        assert plan_memory(parse_program(LAYOUTS), {"s0": rows}).padding == native.padding()


def test_the_report_counts_padding():
    memory = program_data(parse_program(LAYOUTS), {"s0": 3})["memory"]
    assert memory["padding"] == sum(b["padding"] for b in memory["buffers"]) == 4 * (50 - 18 + 2)
    assert str(plan_memory(parse_program(LAYOUTS), {"s0": 3})).endswith(", padding 136")


@pytest.mark.parametrize(
    ("desc", "problem"),
    [
        (TensorDesc("float32", (2, 3, 4), (12, 4, 1), "cpu", PACKED), ""),
        (TensorDesc("float32", (24,), (1,), "cpu", PACKED), "not the memory"),
        (TensorDesc("float32", (2, 3, 4), (1, 2, 6), "cpu", PACKED), "not the memory"),
        (TensorDesc("float32", (2,), (1,), "cpu", Layout((3,), (), (0,))), "no place"),
    ],
)
def test_memory_that_a_layout_does_not_speak_of_is_refused(desc, problem):
    program = parse_program(LAYOUTS)
    changed = tuple(replace(b, desc=desc) if b.name == "w" else b for b in program.buffers)
    segment = Segment("s", (Input("w", desc, "constant"),), (), ())
    if not problem:
        verify_program(replace(program, buffers=changed))
        verify_segment(segment)
        assert segment_from_bytes(segment_to_bytes(segment)) == segment
        return
    with pytest.raises(errors.InvalidProgram, match=problem):
        verify_program(replace(program, buffers=changed))
    with pytest.raises(InvalidSegment, match=problem):
        verify_segment(segment)


def test_sizes_of_a_layout_are_changed_with_those_of_its_memory():
    desc = parse_program(LAYOUTS).by_name["h"].desc
    known = desc.with_sizes(lambda d: substitute(d, {"s0": 4}))
    assert str(known) == "f32[1, 2, 4, 3] as [d0: 1, d2 + 1: 6, d3 + 1: 5, d1: 2]"
    renamed = desc.with_sizes(lambda d: substitute(d, {"s0": Size.symbol("n")}))
    assert (desc.symbols(), renamed.symbols()) == ({"s0"}, {"n"})


def test_a_file_without_layouts_has_none():
    sections = decode_artifact(file_bytes(LAYOUTS, CONTENTS), "p").sections
    made = [container.Section(kind, [body]) for kind, body in sections.items() if kind != 16]
    old = b"".join(container.chunks(*container.lay_out(made, 0, version=(1, 4))))
    assert open_native(old).padding() == 0
    assert all(b.desc.layout is None for b in decode_artifact(old, "p").program.buffers)


# Where LAYOUTS has the numbers of %q: [s0, 2] as [d0 / 4: (s0 + 3) // 4, d1: 2, d0: 4].
FIRST = 2 + 2 * 5  # after the two counts and a row each for q, w, v, h, p
AXES, PARTS = FIRST, FIRST + 4
DAMAGE = {
    "more layouts than there are": {0: 6},
    "fewer": {0: 4},
    "counts that wrap around": {0: 0xFFFFFFFF, 1: 0x80000000},
    "a buffer that is none": {10: 999},
    "a buffer twice": {4: 1},
    "a rank beyond all": {3: 17},
    "a rank of its own": {3: 3},
    "a rank that leaves nothing": {3: 0},
    "a size that is none": {AXES: 999},
    "an axis that is none": {PARTS: 2},
    "no step": {PARTS + 1: 0},
    "a step that does not end in one": {PARTS + 5: 2},
    "steps that grow": {PARTS + 1: 1, PARTS + 5: 4},
    "an axis in no dimension": {PARTS + 2: 0},
}
AT_A_CALL = {
    "blocks that do not fit": {PARTS + 1: 5},
    "zeros for which there is no room": {AXES + 1: 5},
    "zeros beyond all": {AXES + 1: 0xFFFFFFFF},
    "steps beyond all": {PARTS + 1: 0xFFFFFFFF},
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_layouts_are_refused(name):
    words = numbers()
    for at, number in DAMAGE[name].items():
        assert words[at] != number
        words[at] = number
    with pytest.raises(errors.InvalidArtifact, match="layouts section"):
        open_native(with_layouts(*words))


@pytest.mark.parametrize("name", AT_A_CALL)
def test_layouts_that_do_not_fit_are_refused_when_sizes_are_known(name):
    words = numbers()
    for at, number in AT_A_CALL[name].items():
        words[at] = number
    native = open_native(with_layouts(*words))
    with pytest.raises(errors.InvalidArtifact, match="'q' has not the memory"):
        native(*given(3))


@pytest.mark.parametrize("size", [0, 1, 3])
def test_sections_that_end_early_are_refused(size):
    with pytest.raises(errors.InvalidArtifact, match="layouts section"):
        open_native(with_layouts(*numbers()[:size]))


OVERLAPPING = """\
program @overlapping
input %x: float32[2, 4]
temporary %h: float32[2, 3] as [d0: 2, d1 + 1: 4]
output %y: float32[2, 4]
kernel %h = relu@1(%x)
kernel %y = neg@1(%h)
return %y
"""


@pytest.mark.parametrize(("stride", "fits"), [(4, True), (6, True), (3, False), (1, False)])
def test_places_that_are_one_are_refused(stride, fits):
    program = parse_program(OVERLAPPING)
    layout = Layout((2, 3), (LayoutPart(0, 2, stride), LayoutPart(1, 4, 1)), (0, 1))
    desc = TensorDesc("float32", (2, 4), (stride, 1), "cpu", layout)
    changed = tuple(replace(b, desc=desc) if b.name == "h" else b for b in program.buffers)
    sections, features = encode_program(replace(program, buffers=changed), {}, {}, debug=False)
    native = open_native(b"".join(container.chunks(*container.lay_out(sections, features))))
    if fits:
        native(torch.randn(2, 4))
        assert native.padding() == 8
        return
    with pytest.raises(errors.InvalidArtifact, match="'h' has not the memory"):
        native(torch.randn(2, 4))


@needs_code
def test_an_image_that_a_convolution_reads_with_zeros_around_it_says_so(tmp_path):
    model, x = nn.Conv2d(3, 64, 7, stride=2, padding=3).eval(), torch.randn(1, 3, 64, 64)
    exported = dovetail.export(model, (x,), backend="cpu", options={"cache": False})
    program = pack(exported.interface, exported.linked).program
    exported.save(tmp_path / "model.dvt")
    (held,) = [b.desc.layout for b in program.buffers if b.kind == "temporary" and b.desc.layout]
    assert (held.shape, held.before, held.padding) == (x.shape, (0, 0, 3, 3), 3 * (70**2 - 64**2))
    assert plan_memory(program).padding == 4 * held.padding
    loaded = dovetail.load(tmp_path / "model.dvt")
    torch.testing.assert_close(loaded(x), model(x), atol=1e-4, rtol=1e-4)
