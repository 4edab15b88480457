"""What a file may do that nobody vouches for: PyTorch's operators, plug-ins, names, manifests."""

import json
import struct

import pytest
import torch

import dovetail
from dovetail import _native, errors
from dovetail.artifact.sign import new_key, sign_file
from dovetail.ir.host_operators import LISTED
from dovetail.runtime.host import _resolve
from dovetail.runtime.loaded import TRUST, Loaded, open_native
from tests.artifact.files import file_bytes

pytestmark = pytest.mark.xdist_group("artifact")

POOL = """\
program @m
input %x: float32[1, 1, 4, 4]
constant %g: float32[1, 1, 2, 2]
constant %i: int64[1, 1, 2, 2]
host %h: float32[1, 1, 4, 4]
output %y: float32[1, 1, 4, 4]
call %h = aten.max_pool2d_with_indices_backward.default [{"buffer": "g"}, {"buffer": "x"}, [2, 2], \
[2, 2], [0, 0], [1, 1], false, {"buffer": "i"}] {}
copy %y = %h
return %y
"""
ONES = {"g": struct.pack("<4f", 1, 1, 1, 1), "i": struct.pack("<4q", 0, 2, 8, 10)}


def call_of(op, arguments="[]", keywords="{}", shape="2, 3", dtype="float32"):
    return (
        f"program @p\ninput %x: float32[2, 3]\nhost %y: {dtype}[{shape}]\n"
        f"call %y = {op} {arguments} {keywords}\nreturn %y\n"
    )


def test_unchecked_indices_need_trust():
    data = file_bytes(POOL, ONES)
    with pytest.raises(errors.UntrustedArtifact) as refused:
        open_native(data)
    said = str(refused.value)
    assert "aten.max_pool2d_with_indices_backward.default" in said
    assert "do not check" in said
    assert "dovetail sign" in said
    assert "trust=True" in said
    (made,) = open_native(data, flags=TRUST)(torch.ones(1, 1, 4, 4))
    assert made.sum() == 4


@torch.library.custom_op("dovetail_test::owner", mutates_args=())
def owner(x: torch.Tensor) -> torch.Tensor:
    raise AssertionError("code of another package ran")


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("dovetail_test.owner.default", '[{"buffer": "x"}]'),
        ("prims.neg.default", '[{"buffer": "x"}]'),
        ("python.pow", "[10, 10000000000]"),
        ("python.neg", '[{"buffer": "x"}]'),
        ("higher_order.cond", "[]"),
        ("aten.empty.memory_format", "[[2, 3]]"),
        ("aten.from_file.default", '["/etc/passwd", false, 24]'),
        ("aten.as_strided.default", '[{"buffer": "x"}, [2, 3], [3, 1]]'),
        ("aten.relu_.default", '[{"buffer": "x"}]'),
        ("aten.relu", '[{"buffer": "x"}]'),
        ("aten.no_such.default", "[]"),
        ("torch.ops.aten.relu.default", '[{"buffer": "x"}]'),
        ("aten.__class__.default", "[]"),
    ],
)
def test_what_is_not_listed_needs_trust(op, arguments):
    with pytest.raises(errors.UntrustedArtifact, match=op.replace(".", r"\.")):
        open_native(file_bytes(call_of(op, arguments)))


def test_many_are_named_in_a_message_of_some_length():
    calls = "".join(f"call %h{i} = {'o' * 150}.op{i} [] {{}}\n" for i in range(100))
    buffers = "".join(f"host %h{i}: float32[2]\n" for i in range(100))
    text = f"program @p\ninput %x: float32[2]\n{buffers}{calls}return %h0\n"
    with pytest.raises(errors.UntrustedArtifact, match=r"and 90 more") as refused:
        open_native(file_bytes(text))
    assert len(str(refused.value)) < 1500


def test_listed_operators_run_unsigned():
    text = call_of("aten.relu.default", '[{"buffer": "x"}]')
    x = torch.randn(2, 3)
    assert torch.equal(open_native(file_bytes(text))(x)[0], x.relu())


def test_a_trusted_signature_is_enough(tmp_path):
    path = tmp_path / "m.dvt"
    path.write_bytes(file_bytes(POOL, ONES))
    seed = new_key()
    sign_file(path, seed)
    made = dovetail.load(path, trusted_keys=[_native.public_key(seed)])(torch.ones(1, 1, 4, 4))
    assert made.sum() == 4
    with pytest.raises(errors.UntrustedArtifact):
        dovetail.load(path, trusted_keys=[])
    assert dovetail.load(path, trusted_keys=[], trust=True)(torch.ones(1, 1, 4, 4)).sum() == 4


ZEROS = "aten.zeros_like.default"


@pytest.mark.parametrize(
    "attribute",
    [("device", "meta"), ("device", "cuda"), ("device", "nowhere"), ("layout", "sparse_coo"),
     ("op", "aten.relu.default"), ("op", "dovetail_test.owner.default"), ("module", "os")],
)  # fmt: skip
def test_only_dense_tensors_on_this_processor(attribute):
    kind, name = attribute
    keywords = json.dumps({kind: {"attr": [kind, name]}})
    with pytest.raises(errors.UntrustedArtifact, match=name):
        open_native(file_bytes(call_of(ZEROS, '[{"buffer": "x"}]', keywords)))


@pytest.mark.parametrize("name", ["nothing", "os", "__class__", "Tensor", "no_grad", "float32.x"])
@pytest.mark.parametrize("flags", [0, TRUST])
def test_constants_come_from_a_table(name, flags):
    keywords = json.dumps({"dtype": {"attr": ["dtype", name]}})
    with pytest.raises(errors.UnsupportedArtifact, match="no dtype"):
        open_native(file_bytes(call_of(ZEROS, '[{"buffer": "x"}]', keywords)), flags=flags)


@pytest.mark.parametrize("buffer", ["host", "output"])
@pytest.mark.parametrize(
    ("shape", "dtype"), [("3, 2", "float32"), ("2, 3, 1", "float32"), ("2, 3", "int32"),
                         ("2, 4", "float32"), ("2, 3", "float64")],
)  # fmt: skip
@pytest.mark.parametrize("op", ["aten.relu.default", "aten.hardtanh.default"])  # by C, by Python
def test_promises_are_held_against_results(op, shape, dtype, buffer):
    text = call_of(op, '[{"buffer": "x"}]', shape=shape, dtype=dtype)
    native = open_native(file_bytes(text.replace("host %y", f"{buffer} %y")))
    with pytest.raises((errors.RunFailed, RuntimeError)):
        native(torch.randn(2, 3))


@pytest.mark.parametrize("buffer", ["host", "output"])
@pytest.mark.parametrize("shape", ["2, 2", "4, 3", "6, 1", "1, 6", "3, 2", "2, 3, 1", "6"])
@pytest.mark.parametrize(
    ("op", "shapes"),
    [("mm", ("2, 3", "3, 3")), ("addmm", ("3", "2, 3", "3, 3")), ("mm", ("1, 3", "3, 1")),
     ("mm", ("2, 3", "4, 3")), ("bmm", ("1, 2, 3", "1, 3, 3")),
     ("baddbmm", ("1, 2, 3", "1, 2, 3", "1, 3, 3"))],
)  # fmt: skip
def test_products_fill_what_they_promise(op, shapes, shape, buffer):
    """PyTorch makes an output of another shape fit, and leaves the rest of it as it was."""
    inputs = "".join(f"input %x{i}: float32[{given}]\n" for i, given in enumerate(shapes))
    arguments = json.dumps([{"buffer": f"x{i}"} for i in range(len(shapes))])
    shape = f"1, {shape}" if op in ("bmm", "baddbmm") else shape
    text = f"program @p\n{inputs}{buffer} %y: float32[{shape}]\n"
    text += f"call %y = aten.{op}.default {arguments} {{}}\nreturn %y\n"
    native = open_native(file_bytes(text))
    given = [torch.ones([int(n) for n in s.split(",")]) for s in shapes]
    with pytest.raises((errors.RunFailed, RuntimeError)):
        native(*given)


FAR = 1117984489315730401 // 2  # of padding: (2 * 16 + 1) * (2 * FAR + 1) is 1 in 64 bits
X = {"buffer": "x"}


@pytest.mark.parametrize(
    ("op", "arguments", "x", "y"),
    [
        ("im2col.default", [X, [1, 1], [1, 1], [16, FAR], [1, 1]], "1, 1, 1, 1", "1, 1, 1"),
        (
            "col2im.default",
            [X, [4, 4], [2, 2], [1, 1], [2**31] * 2, [1, 1]],
            "1, 8, 9",
            "1, 2, 4, 4",
        ),
        ("upsample_nearest1d.default", [X, [8], 1e-300], "1, 2, 5", "1, 2, 8"),
        ("upsample_nearest3d.default", [X, [8] * 3, None, 1e-30], "1, 2, 5, 5, 5", "1, 2, 8, 8, 8"),
        ("_upsample_nearest_exact1d.default", [X, [8], 1e-19], "1, 2, 5", "1, 2, 8"),
        ("upsample_bicubic2d.default", [X, [8, 8], False, 1e-30], "1, 3, 5, 5", "1, 3, 8, 8"),
    ],
)
def test_numbers_that_operators_do_not_check(op, arguments, x, y):
    """They would write past their result, loop for hours, or read far outside of an image."""
    text = f"program @p\ninput %x: float32[{x}]\nhost %y: float32[{y}]\n"
    text += f"call %y = aten.{op} {json.dumps(arguments)} {{}}\nreturn %y\n"
    native = open_native(file_bytes(text))
    with pytest.raises(errors.RunFailed, match="does not check itself"):
        native(torch.ones([int(n) for n in x.split(",")]))


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("im2col", [[2, 2], [1, 1], [1, 1], [2, 2]]),
        ("upsample_nearest2d", [[8, 8], 1.6, 1.6]),
        ("upsample_bilinear2d", [[8, 8], True, 1.6]),
        ("upsample_bilinear2d", [[8, 8], False]),
    ],
)
def test_what_is_checked_is_called(op, arguments):
    x = torch.randn(1, 2, 5, 5)
    wanted = getattr(torch.ops.aten, op)(x, *arguments)
    shape = ", ".join(map(str, wanted.shape))
    text = f"program @p\ninput %x: float32[1, 2, 5, 5]\nhost %y: float32[{shape}]\n"
    text += f"call %y = aten.{op}.default {json.dumps([X, *arguments])} {{}}\nreturn %y\n"
    (made,) = open_native(file_bytes(text))(x)
    assert torch.equal(made, wanted)


BACKWARD = """\
program @p
input %g: float32[1, 2, 3, 3]
input %x: float32[1, 2, 3, 3]
input %w: float32[2, 2, 1, 1]
output %a: float32[1, 2, 3, 3]
call %a, _, _ = aten.convolution_backward.default [{"buffer": "g"}, {"buffer": "x"}, \
{"buffer": "w"}, [2], [1, 1], [0, 0], [1, 1], false, [0, 0], 1, [false, false, false]] {}
return %a
"""


def test_a_result_that_is_not_there_is_not_read():
    """An undefined tensor leaves no memory behind that nothing wrote."""
    native = open_native(file_bytes(BACKWARD), flags=TRUST)
    x = torch.ones(1, 2, 3, 3)
    with pytest.raises(errors.RunFailed, match="no result"):
        native(x, x, torch.ones(2, 2, 1, 1))


ODD = """\
{"tensor": 1e999}
{"tensor": -1}
{"tensor": 9}
{"tensor": 0.5}
{"tensor": true}
{"tensor": []}
{"number": 9}
{"number": -1}
{"number": null}
{"attr": []}
{"attr": ["dtype"]}
{"attr": 3}
{"float": "z"}
{"float": "0x1p99999"}
{"float": 1}
{"complex": ["z"]}
{"size": "s0"}
{"size": "*"}
{"buffer": "x"}
{}
{"a": 1, "b": 2}
{"tensor": 0, "x": 1}
{"module": "os"}"""


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("value", ODD.split("\n"))
def test_odd_arguments(value, trusted):
    """A file's own words for arguments are read, or refused by an error of ours."""
    text = json.dumps({"args": ["@"], "kwargs": {}}).replace('"@"', value)
    with pytest.raises(errors.DovetailError):
        _resolve("aten.relu.default", text, trusted)[0]([torch.randn(2, 3)], [])


def test_every_listed_operator_is_functional_and_here():
    for name in LISTED:
        namespace, base, overload = name.split(".")
        packet = getattr(torch.ops.aten, base, None)
        if packet is None or overload not in packet.overloads():
            continue  # of another version of PyTorch
        schema = getattr(packet, overload)._schema
        assert namespace == "aten"
        assert not schema.is_mutable
        assert all("Tensor" in str(r.real_type) for r in schema.returns)


# ---- manifests -----------------------------------------------------------------------------


def deep(levels):
    tree = {"tensor": 0}
    for _ in range(levels):
        tree = {"tuple": [tree]}
    return tree


PLAIN = {"tuple": [{"tuple": [{"tensor": 0}]}, {"dict": []}]}


@pytest.mark.parametrize(
    "outputs",
    [deep(300), {"size": "9**9**9"}, {"size": "(" * 400 + "1" + ")" * 400}, {"size": "x.y"},
     {"size": "__import__('os')"}, {"size": 5}, {"size": "-".join(["s0"] * 20000)},
     {"tensor": 7}, {"tensor": True}, {"tensor": -1}, {"list": {"a": 1}},
     {"dict": [[[], {"value": 1}]]}, {"dict": [["a"]]},
     {"tuple": 3}, {"other": []}, [], None, {"tuple": [], "list": []}],
)  # fmt: skip
def test_manifests_that_lie(outputs):
    """Each is refused by its own kind of error when the file is loaded, not when it is called."""
    with pytest.raises(errors.InvalidArtifact):
        Loaded(open_native(file_bytes(manifest={"inputs": PLAIN, "outputs": outputs})))


# ---- what the user is told -----------------------------------------------------------------


class Spectrum(torch.nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x).abs()


def test_the_user_is_told_what_needs_trust(tmp_path, caplog, capsys):
    from dovetail.cli import main

    plain, signed = tmp_path / "plain.dvt", tmp_path / "signed.dvt"
    made = dovetail.export(Spectrum(), (torch.randn(8),), backend="aten")
    made.save(signed, key=new_key())
    assert caplog.messages == []
    made.save(plain)
    (note,) = caplog.messages
    assert "plain.dvt runs only signed" in note
    assert "aten._fft_r2c.default" in note
    main(["inspect", str(plain)])
    main(["verify", str(plain)])
    said = capsys.readouterr().out
    assert said.count("it calls aten._fft_r2c.default") == 2
    with pytest.raises(errors.UntrustedArtifact, match=r"aten\._fft_r2c\.default"):
        dovetail.load(plain)
    x = torch.randn(8)
    torch.testing.assert_close(dovetail.load(plain, trust=True)(x), Spectrum()(x))


def test_the_user_is_told_what_runs_unsigned(tmp_path, caplog, capsys):
    from dovetail.cli import main

    path = tmp_path / "m.dvt"
    dovetail.export(torch.nn.ReLU(), (torch.randn(8),), backend="aten").save(path)
    main(["verify", str(path)])
    assert caplog.messages == []
    assert "runs unsigned" in capsys.readouterr().out
    assert dovetail.load(path)(-torch.ones(8)).tolist() == [0] * 8
