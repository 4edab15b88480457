"""Quantised models on the simulator: operations on quantised tensors, numbers of four bits."""

import struct

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines the operators
from torch import nn

import dovetail
from dovetail import errors
from dovetail.file import container
from dovetail.file.encode import encode_program
from dovetail.ir.program_text import parse_program
from dovetail.runtime.loaded import TRUST, open_native
from tests.native.seeds import OPERAND_BYTES, OPERANDS

pytestmark = pytest.mark.e2e
quantized = torch.ops.quantized_decomposed
STEP = 0.2  # of the results


class Linear(nn.Module):
    """A linear layer in quantize/dequantize form, with weights quantised as ``kind`` says."""

    def __init__(self, kind, rows=48, columns=64, zero_dtype=torch.int32):
        super().__init__()
        torch.manual_seed(3)
        weight = torch.randn(rows, columns)
        self.kind, self.bias = kind, nn.Parameter(torch.randn(rows))
        if kind == "tensor":
            self.given = (float(weight.abs().max()) / 127, 3, -128, 127, torch.int8)
            made = quantized.quantize_per_tensor(weight, *self.given)
        else:
            groups = columns // 32 if kind == "group" else 1
            most = 7 if kind == "group" else 127
            scales = weight.view(rows, groups, -1).abs().amax(2) / most
            zeros = torch.randint(-2, 3, (rows, groups), dtype=zero_dtype)
            shape = scales.shape if kind == "group" else (rows,)
            self.register_buffer("scales", scales.view(shape))
            self.register_buffer("zeros", zeros.view(shape))
            if kind == "group":
                self.given = (-8, 7, torch.int8, 32)
                how = quantized.quantize_per_channel_group
            else:
                self.given = (0, -128, 127, torch.int8)
                how = quantized.quantize_per_channel
            made = how(weight, self.scales, self.zeros, *self.given)
        self.register_buffer("weight", made)

    def real_weight(self):
        if self.kind == "tensor":
            return quantized.dequantize_per_tensor(self.weight, *self.given)
        if self.kind == "group":
            how, real = quantized.dequantize_per_channel_group, (torch.float32,)
        else:
            how, real = quantized.dequantize_per_channel, ()
        return how(self.weight, self.scales, self.zeros, *self.given, *real)

    def forward(self, x):
        given = (0.03, -5, -128, 127, torch.int8)
        x = quantized.dequantize_per_tensor(quantized.quantize_per_tensor(x, *given), *given)
        y = nn.functional.linear(x, self.real_weight(), self.bias)
        made = (STEP, 4, 0, 255, torch.uint8)
        return quantized.dequantize_per_tensor(quantized.quantize_per_tensor(y, *made), *made)

    def exactly(self, x):
        """The result in double precision, before it is rounded to a step."""
        given = (0.03, -5, -128, 127, torch.int8)
        x = quantized.dequantize_per_tensor(quantized.quantize_per_tensor(x, *given), *given)
        weight = self.real_weight().double()
        return nn.functional.linear(x.double(), weight, self.bias.double())


def check(model, got, x):
    """The result is the step nearest to the exact one, within what a number's rounding moves."""
    exact = model.exactly(x).clamp((0 - 4) * STEP, (255 - 4) * STEP)
    assert (got.double() - exact).abs().max() <= STEP / 2 * (1 + 1e-4)


@pytest.mark.parametrize("shape", [(5, 64), (2, 3, 64)], ids=["rows", "batch"])
@pytest.mark.parametrize("kind", ["tensor", "channel", "group"])
def test_a_quantised_linear_layer_is_one_operation(sim, kind, shape):
    model, x = Linear(kind).eval(), torch.randn(shape)
    sim.reset()
    with torch.no_grad():
        got = torch.compile(model, backend=sim.name, options={"strict": True})(x)
    check(model, got, x)
    assert sim.counted("launched") == 3  # quantize, the product, dequantize
    weight = 48 * 64 // 2 if kind == "group" else 48 * 64
    scales = {"tensor": 0, "channel": 48 * 8, "group": 48 * 2 * 8}[kind]
    assert sim.counted("bytes.in") == x.numel() * 4 + weight + scales + 48 * 4


def test_scales_that_come_to_lie_elsewhere_are_read_there(sim):
    model, x = Linear("channel").eval(), torch.randn(5, 64)
    compiled, old = torch.compile(model, backend=sim.name), model.scales
    with torch.no_grad():
        for _ in range(3):  # work that comes again is recorded
            check(model, compiled(x), x)
        for factor in (0.5, 0.25, 0.75):
            model.scales = old * factor
            check(model, compiled(x), x)


def test_the_option_check_finds_quantised_operations_right(sim):
    model, x = Linear("group").eval(), torch.randn(5, 64)
    with torch.no_grad():
        got = torch.compile(model, backend=sim.name, options={"check": True})(x)
    check(model, got, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_small_floating_point_types_hold_end_to_end(sim, sim_path, tmp_path, dtype):
    class Stored(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.randn(16, 8).to(dtype))

        def forward(self, x):
            small = x.to(dtype)
            return nn.functional.linear(x, self.weight.to(torch.float32)), small

    model, x, path = Stored().eval(), torch.randn(4, 8), tmp_path / "small.dvt"
    want, small = model(x)
    exported = dovetail.export(model, (x,), backend=sim.name)
    exported.save(path)
    for run in (exported, dovetail.load(path, plugins=[sim_path])):
        sim.reset()
        got, stored = run(x)
        torch.testing.assert_close(got, want)
        assert stored.dtype == dtype
        torch.testing.assert_close(stored.float(), small.float(), rtol=0, atol=0)
        assert sim.counted("launched") >= 2


@pytest.mark.parametrize("backend", ["dovetail", "reference", "eager"])
@pytest.mark.parametrize("kind", ["tensor", "channel", "group"])
def test_every_backend_runs_a_quantised_graph(kind, backend):
    model, x = Linear(kind).eval(), torch.randn(5, 64)
    for freeze in (False, True):
        with torch.no_grad():
            got = torch.compile(model, backend=backend, options={"freeze": freeze})(x)
        check(model, got, x)


@pytest.mark.parametrize("kind", ["tensor", "channel", "group"])
def test_a_file_holds_what_the_device_computes_with(sim, sim_path, tmp_path, kind):
    model, x = Linear(kind).eval(), torch.randn(5, 64)
    path = tmp_path / "quantised.dvt"
    dovetail.export(model, (x,), backend=sim.name).save(path)
    run = dovetail.load(path, plugins=[sim_path])
    sim.reset()
    check(model, run(x), x)
    assert sim.counted("launched", "prepared") == (3, 0)
    weight = 48 * 64 // 2 if kind == "group" else 48 * 64
    scales = {"tensor": 0, "channel": 48 * 8, "group": 48 * 2 * 8}[kind]
    assert sim.counted("bytes.in") == x.numel() * 4 + weight + scales + 48 * 4
    with path.open("rb") as file:
        entries = {e.kind: e.size for e in container.read_header(file).entries}
    held = weight + scales + 48 * 4
    assert entries[container.CONSTANTS] <= held + 3 * 64  # each starts at a border of 64 bytes


def test_a_constant_in_the_devices_own_layout_takes_the_place_of_the_original(
    sim, sim_path, tmp_path
):
    model, x = nn.Linear(64, 48).eval(), torch.randn(5, 64)
    path = tmp_path / "tiles.dvt"
    dovetail.export(model, (x,), backend=sim.name).save(path)
    weight = model.weight.detach()
    assert weight.numpy().tobytes() not in path.read_bytes()
    run = dovetail.load(path, plugins=[sim_path])
    sim.reset()
    torch.testing.assert_close(run(x), model(x))
    run(x)
    assert sim.counted("prepared") == 0
    assert sim.counted("bytes.in") == 2 * x.numel() * 4 + 48 * 64 * 4 + 48 * 4


def test_a_layout_that_cannot_be_made_or_is_not_accepted(sim, sim_path, tmp_path):
    model, x = nn.Linear(64, 48).eval(), torch.randn(5, 64)
    path, exported = tmp_path / "tiles.dvt", dovetail.export(model, (x,), backend=sim.name)
    sim.native.set("fault.constant_pack", 1)
    with pytest.raises(errors.PluginFailed, match="constant_pack"):
        exported.save(path)
    assert not path.exists()
    exported.save(path)
    run = dovetail.load(path, plugins=[sim_path])
    sim.native.set("fault.constant_accept", 1)
    with pytest.raises(errors.PluginFailed, match="constant_accept"):
        run(x)
    torch.testing.assert_close(run(x), model(x))


def test_numbers_that_need_more_bits_than_their_graph_says(sim):
    model = Linear("group").eval()
    model.weight[0, 0] = 9
    run = torch.compile(model, backend=sim.name, options={"strict": True})
    said = r"as int4 holds numbers from -\d to 9"
    with torch.no_grad(), pytest.raises(errors.MisdescribedNumbers, match=said):
        run(torch.randn(5, 64))


def test_what_is_read_by_others_too_stays_as_it_is(sim):
    class Both(Linear):
        def forward(self, x):
            return super().forward(x), self.weight + 1, self.real_weight()

    model, x = Both("group").eval(), torch.randn(5, 64)
    with torch.no_grad():
        got, added, real = torch.compile(model, backend=sim.name)(x)
    check(model, got, x)
    torch.testing.assert_close(added, model.weight + 1)
    torch.testing.assert_close(real, model.real_weight())


def test_a_plugin_that_knows_no_quantised_tensors_is_given_none(accel):
    model, x = Linear("channel").eval(), torch.randn(5, 64)
    with torch.no_grad():
        check(model, torch.compile(model, backend=accel.name)(x), x)
    assert accel.ran()["aten.addmm.default"] == 1


# ---- hostile files -----------------------------------------------------------------------------


def patched(change, text=OPERANDS):
    """The seed's file, its operands section as ``change`` leaves it."""
    trees = {
        "inputs": {"tuple": [{"tuple": [{"tensor": 0}]}, {"dict": []}]},
        "outputs": {"tensor": 0},
    }
    made, features = encode_program(parse_program(text), OPERAND_BYTES, trees, debug=False)
    sections = []
    for section in made:
        data = bytearray(b"".join(map(bytes, section.pieces)))
        if section.kind == container.OPERANDS:
            data = bytearray(change(data) or data)
        sections.append(container.Section(section.kind, [bytes(data)], section.required))
    layout, ordered = container.lay_out(sections, features)
    return b"".join(container.chunks(layout, ordered))


LAUNCHES, ROWS = 16, 16 + 3 * 16  # where the tables begin
WEIGHT = ROWS + 2 * 64  # the operand of four bits
NUMBERS = ROWS + 7 * 64


def put(place, form, *values):
    def change(data):
        struct.pack_into(form, data, place, *values)

    return change


HOSTILE = {
    "a launch that is not there": put(LAUNCHES + 32, "<I", 99),
    "launches out of order": put(LAUNCHES + 16, "<I", 0),
    "more scales than inputs": put(LAUNCHES + 16 + 4, "<I", 9),
    "fewer operands than listed": put(LAUNCHES + 16 + 8, "<I", 4),
    "more operands than listed": put(4, "<I", 1 << 20),
    "no kind": put(WEIGHT + 4, "<I", 0),
    "an unknown kind": put(WEIGHT + 4, "<I", 9),
    "prepared and not described": put(WEIGHT + 4, "<I", 4),
    "too many dimensions": put(WEIGHT + 10, "<B", 99),
    "no bits": put(WEIGHT + 9, "<B", 0),
    "a place that is not there": put(WEIGHT, "<I", 77),
    "scales among the operation's own": put(WEIGHT + 16, "<I", 0),
    "scales beyond all inputs": put(WEIGHT + 16, "<I", 4),
    "one scale for several blocks": put(WEIGHT + 16, "<I", 0xFFFFFFFF),
    "a scale that is not a number": put(ROWS + 64 + 24, "<d", float("nan")),
    "an infinite scale": put(ROWS + 64 + 24, "<d", float("inf")),
    "a scale of zero": put(ROWS + 64 + 24, "<d", 0.0),
    "a negative scale": put(ROWS + 64 + 24, "<d", -1.0),
    "a huge zero point": put(WEIGHT + 32, "<q", 1 << 40),
    "no range": put(WEIGHT + 40, "<2q", 3, 2),
    "numbers beyond four bits": put(WEIGHT + 48, "<q", 8),
    "real numbers of no type": put(WEIGHT + 12, "<2B", 0, 32),
    "quantised numbers that are fractions": put(WEIGHT + 8, "<2B", 2, 32),
    "zero points that are fractions": put(ROWS + 4 * 64 + 8, "<2B", 2, 32),
    "a negative block": put(NUMBERS + 6 * 8, "<2q", 0, -1),
    "a huge block": put(NUMBERS + 6 * 8, "<2q", 0, 1 << 40),
    "a negative size": put(NUMBERS, "<q", -2),
    "sizes beyond 64 bits": put(NUMBERS, "<4q", 1 << 62, 1 << 62, 1 << 62, 1 << 62),
    "elements beyond counting": put(NUMBERS, "<4q", 1 << 40, 1 << 40, 0, 0),
    "integers of three bits": put(WEIGHT + 9, "<B", 3),
    "scales of 200 bits": put(ROWS + 3 * 64 + 9, "<B", 200),
    "a zero point beyond its range": put(ROWS + 64 + 32, "<q", 128),
    "numbers that are not its own": put(WEIGHT + 56, "<I", 1),
    "something in its padding": put(WEIGHT + 60, "<I", 1),
    "cut short": lambda data: data[:-8],
    "too long": lambda data: data + bytes(8),
    "only a head": lambda data: data[:8],
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_when_it_is_opened(accel_path, change):
    with pytest.raises(errors.InvalidArtifact):
        open_native(patched(change), flags=TRUST, plugins=[accel_path])


BOUND = {
    "a tensor beyond its buffer": (put(NUMBERS, "<2q", 2, 3), "described beyond its buffer"),
    "blocks that leave a rest": (put(NUMBERS + 6 * 8, "<2q", 0, 3), "a scale for each"),
    "no scales at all": (put(NUMBERS + 12 * 8, "<q", 0), "a scale for each"),
    "no zero points at all": (put(NUMBERS + 16 * 8, "<q", 0), "a scale for each"),
    "more blocks than scales": (put(NUMBERS + 12 * 8, "<2q", 1, 2), "a scale for each"),
}


@pytest.mark.parametrize(("change", "said"), BOUND.values(), ids=BOUND)
def test_a_hostile_file_is_refused_when_sizes_are_known(sim_path, change, said):
    x = torch.zeros(2, 4, dtype=torch.int8).numpy()
    text = OPERANDS.replace("accel_c:relu", "accel_sim:unary").replace(
        "%r = accel_c", "%r = accel_sim"
    )
    text = text.replace("accel_c:matmul", "accel_sim:quantized_matmul").replace(
        "accel_c", "accel_sim"
    )
    with pytest.raises(errors.DovetailError, match=said):
        open_native(patched(change, text), flags=TRUST, plugins=[sim_path])(x)
