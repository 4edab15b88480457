"""Calls: what fits runs, however it lies in memory; what does not is refused with its name."""

import ctypes
import gc
import threading
import weakref

import numpy as np
import pytest
import torch

from dovetail import errors
from dovetail.file import container
from dovetail.file.encode import encode_program
from dovetail.ir.program_text import parse_program
from dovetail.runtime.loaded import PLAIN_TENSORS, TRUST, Loaded, open_native
from tests.artifact.cases import cases, package_of
from tests.artifact.files import file_bytes, floats, open_package

pytestmark = pytest.mark.xdist_group("artifact")

ADD = """\
program @add
symbol s0 = %x[0] in 2..8
input %x: float32[s0, 3]
input %bias: float32[3]
output %y: float32[s0, 3]
guard s0 % 2 == 0
kernel %y = add@1(%x, %bias)
return %y
"""


@pytest.fixture(scope="module")
def add():
    return Loaded(open_native(file_bytes(ADD)))


def test_good_calls(add):
    x, b = np.arange(12, dtype=np.float32).reshape(4, 3), np.ones(3, np.float32)
    assert isinstance(add(x, b), np.ndarray)
    assert np.array_equal(add(x, b), x + b)
    got = add(torch.from_numpy(x), torch.from_numpy(b))
    assert isinstance(got, torch.Tensor)
    assert torch.equal(got, torch.from_numpy(x + b))
    mixed = add(torch.from_numpy(x), b)
    assert isinstance(mixed, torch.Tensor)


@pytest.mark.parametrize(
    ("x", "b", "problem"),
    [
        (np.ones((4, 3)), np.ones(3, np.float32), "input 'x' is float64, expected float32"),
        (np.ones((4, 3), np.int32), np.ones(3, np.float32), "input 'x' is int32"),
        (np.ones((4, 3), bool), np.ones(3, np.float32), "input 'x' is bool"),
        (np.ones(4, np.float32), np.ones(3, np.float32), "'x' has 1 dimensions, expected 2"),
        (np.ones((4, 2), np.float32), np.ones(3, np.float32), "size 2 in dimension 1, expected 3"),
        (np.ones((4, 3), np.float32), np.ones(4, np.float32), "'bias' has size 4 in dimension 0"),
        (np.ones((3, 3), np.float32), np.ones(3, np.float32), "guard 0 does not hold: 1 is not 0"),
        (np.ones((1, 3), np.float32), np.ones(3, np.float32), "dynamic size s0 must be 2 to 8"),
        (np.ones((0, 3), np.float32), np.ones(3, np.float32), "dynamic size s0 must be 2 to 8"),
        (np.ones((10, 3), np.float32), np.ones(3, np.float32), "must be 2 to 8"),
        ("text", np.ones(3, np.float32), "is a str"),
        (3.5, np.ones(3, np.float32), "is a float"),
        (None, np.ones(3, np.float32), "is a NoneType"),
        ([[1.0]], np.ones(3, np.float32), "is a list"),
        (np.array(["a", "b"]), np.ones(3, np.float32), "buffer format"),
        (np.zeros((4, 3), "f4,i1")["f0"], np.ones(3, np.float32), "strides are no multiple"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(add, x, b, problem):
    with pytest.raises(errors.GuardFailed, match=problem):
        add(x, b)


def test_lazy_signs_are_seen_unless_the_caller_vouches():
    x = torch.randn(4, 3, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    bias = torch.zeros(3)
    assert torch.equal(Loaded(open_native(file_bytes(ADD)))(x, bias), x.resolve_neg())
    vouched = open_native(file_bytes(ADD), flags=PLAIN_TENSORS)
    assert torch.equal(vouched.run(torch.ones(4, 3), bias)[0], torch.ones(4, 3))
    assert torch.equal(vouched(x, bias)[0], -x.resolve_neg())


def test_wrong_counts(add):
    with pytest.raises(errors.GuardFailed, match="called with 1 tensors, expected 2"):
        add(np.ones((4, 3), np.float32))
    with pytest.raises(errors.GuardFailed, match="called with 3 tensors"):
        add(*[np.ones((4, 3), np.float32)] * 3)
    with pytest.raises(errors.GuardFailed, match="tuple of 2 values"):
        add(np.ones((4, 3), np.float32), bias=np.ones(3, np.float32))


def test_a_tensor_on_another_device(add):
    with pytest.raises(errors.GuardFailed, match="meta"):
        add(torch.ones(4, 3, device="meta"), torch.ones(3))


def test_tensors_that_are_no_memory(add):
    for odd in (
        torch.ones(4, 3).to_sparse(),
        torch.quantize_per_tensor(torch.ones(4, 3), 0.1, 0, torch.qint8),
    ):
        with pytest.raises(errors.GuardFailed, match="cannot be read"):
            add(odd, torch.ones(3))


def test_lazy_signs_are_resolved(add):
    values = torch.randn(4, 3, dtype=torch.complex64)
    lazy = values.conj().imag
    assert lazy.is_neg()
    assert torch.equal(add(lazy, torch.zeros(3)), -values.imag)
    text = "program @p\ninput %x: complex64[4, 3]\noutput %y: complex64[4, 3]\ncopy %y = %x\n"
    copy = Loaded(open_native(file_bytes(text + "return %y\n")))
    assert torch.equal(copy(values.conj()), values.conj().resolve_conj())


def test_parameters_and_tensors_with_gradients(add):
    x = torch.ones(4, 3, requires_grad=True)
    assert not add(x, torch.nn.Parameter(torch.ones(3))).requires_grad


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "negative strides": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "sliced": lambda x: np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "unaligned": lambda x: _unaligned(x),
    "read-only": lambda x: _read_only(x),
}


def _unaligned(x):
    raw = np.zeros(x.nbytes + 1, np.uint8)
    made = raw[1:].view(np.float32).reshape(x.shape)
    made[...] = x
    assert made.ctypes.data % 4
    return made


def _read_only(x):
    made = x.copy()
    made.flags.writeable = False
    return made


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_any_layout_gives_the_same_result(add, layout):
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    b = np.ones(3, np.float32)
    given = LAYOUTS[layout](x)
    assert np.array_equal(add(given, b), given + b)


@pytest.mark.parametrize("layout", ["transposed", "sliced", "broadcast"])
def test_any_torch_layout(add, layout):
    x = torch.randn(4, 3)
    given = {
        "transposed": x.t().contiguous().t(),
        "sliced": torch.randn(8, 9)[::2, ::3],
        "broadcast": x[:1].expand(4, 3),
    }[layout]
    assert torch.equal(add(given, torch.ones(3)), given + 1)


def test_aliasing_inputs():
    text = "program @p\ninput %a: float32[3]\ninput %b: float32[3]\noutput %y: float32[3]\n"
    run = Loaded(open_native(file_bytes(text + "kernel %y = sub@1(%a, %b)\nreturn %y\n")))
    x = torch.arange(4.0)
    assert torch.equal(run(x[1:], x[1:]), torch.zeros(3))
    assert torch.equal(run(x[1:], x[:3]), torch.ones(3))


def writes():
    return Loaded(open_package(package_of("writes", "portable")))


def test_a_model_that_writes_to_its_inputs():
    run = writes()
    x, y = torch.ones(3, 4), torch.ones(3, 4)
    assert torch.equal(run(x, y), torch.full((3, 4), 3.0))
    assert torch.equal(x, torch.full((3, 4), 2.0))
    strided = torch.ones(4, 3).t()
    run(strided, y)
    assert torch.equal(strided, torch.full((3, 4), 2.0))  # repacked, and written back
    with pytest.raises(errors.GuardFailed, match="share memory"):
        run(x, x)
    fixed = np.ones((3, 4), np.float32)
    fixed.flags.writeable = False
    with pytest.raises(errors.GuardFailed, match="read-only"):
        run(fixed, np.ones((3, 4), np.float32))


def test_empty_inputs():
    text = "program @p\nsymbol s0 = %x[0] in 0..9\ninput %x: float32[s0, 3]\n"
    text += "output %y: float32[s0, 3]\noutput %z: float32[3]\n"
    text += "kernel %y = exp@1(%x)\nkernel %z = sum@1(%x; 1, 0)\nreturn %y, %z\n"
    native = open_native(file_bytes(text))
    y, z = native(np.ones((0, 3), np.float32))
    assert y.shape == (0, 3)
    assert z.tolist() == [0, 0, 0]
    y, z = native(torch.ones(0, 3))
    assert tuple(y.shape) == (0, 3)


def test_indices_out_of_range():
    text = "program @p\ninput %i: int64[2]\nconstant %t: float32[3, 2]\noutput %y: float32[2, 2]\n"
    text += "kernel %y = take@1(%t, %i; 0)\nreturn %y\n"
    run = Loaded(open_native(file_bytes(text, {"t": floats(*range(6))})))
    assert run(np.array([2, 0])).tolist() == [[4, 5], [0, 1]]
    for bad in ([3, 0], [0, -1], [2**62, 0]):
        with pytest.raises(errors.IndexOutOfRange, match="out of range for a dimension of size 3"):
            run(np.array(bad))
        with pytest.raises(IndexError):
            run(np.array(bad))


def test_sizes_that_do_not_fit():
    text = "program @p\nsymbol s0 = %x[0] in 0..9223372036854775807\ninput %x: float32[s0, 0]\n"
    text += "output %y: float32[{0}]\nkernel %y = sum@1(%x; 3, 0)\nreturn %y\n"
    for size, problem in [
        ("s0 * 4611686018427387904", errors.SizeError),
        ("4 // (s0 - 3)", errors.SizeError),
        ("s0 - 4", errors.GuardFailed),
        ("s0 * 1000000000000000", errors.DovetailError),
    ]:
        native = open_native(file_bytes(text.replace("{0}", size)))
        with pytest.raises(problem):
            native(np.ones((3, 0), np.float32))


def test_plain_buffers_and_our_own_tensors():
    import array

    text = "program @p\ninput %x: float32[4]\noutput %y: float32[4]\n"
    native = open_native(file_bytes(text + "kernel %y = neg@1(%x)\nreturn %y\n"))
    (y,) = native(memoryview(array.array("f", [1, 2, 3, 4])))
    assert list(y) == [-1, -2, -3, -4]
    from dovetail import _native

    source = "program @p\nconstant %c: float32[2]\noutput %y: float32[2]\ncopy %y = %c\nreturn %y\n"
    empty = open_native(file_bytes(source, {"c": floats(5, 6)}))
    (own,) = empty()
    assert isinstance(own, _native.Tensor)
    assert own.shape == (2,)
    assert torch.from_dlpack(own).tolist() == [5, 6]
    assert np.from_dlpack(own).tolist() == [5, 6]
    assert memoryview(own).tolist() == [5, 6]
    with pytest.raises(TypeError):
        _native.Tensor()
    again = open_native(file_bytes(text.replace("4", "2") + "kernel %y = neg@1(%x)\nreturn %y\n"))
    assert list(memoryview(again(own)[0])) == [-5, -6]


def ask_for_buffer(tensor, flags):
    """As a consumer in C does; an exception is raised where it gets none."""
    view = (ctypes.c_byte * 256)()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(tensor), view, flags)
    ctypes.pythonapi.PyBuffer_Release(view)


def test_a_consumer_that_wants_contiguous_memory():
    """One that does not look at strides would read memory behind the tensor."""
    c_order, f_order, any_order, strided = 0x38, 0x58, 0x98, 0x18
    source = "program @p\nconstant %c: float32[2, 3]\noutput %y: float32[2, 3]{0}\ncopy %y = %c\n"
    source += "return %y\n"
    fits = {
        "": {c_order, any_order, strided},
        " strides [1, 2]": {f_order, any_order, strided},
        " strides [4, 1]": {strided},
    }
    for layout, wanted in fits.items():
        made = open_native(file_bytes(source.format(layout), {"c": floats(*range(6))}))()[0]
        assert np.asarray(made).tolist() == [[0, 1, 2], [3, 4, 5]]
        for flags in (c_order, f_order, any_order, strided):
            if flags in wanted:
                ask_for_buffer(made, flags)
            else:
                with pytest.raises(BufferError, match="not contiguous"):
                    ask_for_buffer(made, flags)


@pytest.mark.parametrize("layout", ["", " strides [1, 2]", " strides [4, 1]"])
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_consumer_that_wants_a_copy(layout, version):
    source = f"program @p\nconstant %c: float32[2, 3]\noutput %y: float32[2, 3]{layout}\n"
    source += "copy %y = %c\nreturn %y\n"
    made = open_native(file_bytes(source, {"c": floats(*range(6))}))()[0]
    copy, shared = (
        torch.utils.dlpack.from_dlpack(made.__dlpack__(max_version=version, copy=wanted))
        for wanted in (True, False)
    )
    assert copy.tolist() == shared.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert copy.is_contiguous()
    copy.fill_(7)
    shared[0, 0] = 5
    assert np.asarray(made).tolist() == [[5, 1, 2], [3, 4, 5]]
    del made, shared
    assert copy.tolist() == [[7, 7, 7], [7, 7, 7]]


def test_copies_of_little_and_of_nothing():
    for shape, data in (("", floats(3)), ("[0, 4]", b""), ("[1]", floats(3))):
        text = f"program @p\nconstant %c: float32{shape or '[]'}\n"
        text += f"output %y: float32{shape or '[]'}\ncopy %y = %c\nreturn %y\n"
        made = open_native(file_bytes(text, {"c": data}))()[0]
        copy = torch.utils.dlpack.from_dlpack(made.__dlpack__(copy=True))
        assert copy.tolist() == np.asarray(made).tolist()


def test_a_consumer_on_another_device():
    text = "program @p\nconstant %c: float32[1]\noutput %y: float32[1]\ncopy %y = %c\nreturn %y\n"
    made = open_native(file_bytes(text, {"c": floats(3)}))()[0]
    assert made.__dlpack__(dl_device=(1, 0)) is not None
    with pytest.raises(BufferError, match="on the CPU"):
        made.__dlpack__(dl_device=(2, 0))


def test_names_that_are_no_text():
    made, features = encode_program(parse_program(ADD.replace("%bias", "%longname")), {}, {})
    sections = [
        s._replace(pieces=[b"".join(s.pieces).replace(b"longname", b"\xff\xfengname")])
        for s in made
    ]
    native = open_native(b"".join(container.chunks(*container.lay_out(sections, features))))
    assert [name for name, *_ in native.inputs()] == ["x", "\ufffd\ufffdngname"]
    with pytest.raises(errors.GuardFailed, match="\ufffd\ufffdngname"):
        native(torch.ones(2, 3), torch.ones(4))


def test_results_outlive_their_artifact():
    run = Loaded(open_native(file_bytes(ADD)))
    y = run(torch.ones(2, 3), torch.ones(3))
    watched = weakref.ref(run)
    del run
    gc.collect()
    assert watched() is None
    assert y.sum() == 12


def test_arguments_are_not_kept(add):
    x = torch.ones(2, 3)
    watched = weakref.ref(x)
    add(x, torch.ones(3))
    del x
    gc.collect()
    assert watched() is None


def test_state_is_kept_and_private():
    case = cases()["counter"]
    package = package_of("counter", "portable")
    first, second = (Loaded(open_package(package)) for _ in range(2))
    x = torch.ones(3, 4)
    assert first(x).tolist() == [6.0] * 4
    assert first(x).tolist() == [12.0] * 4
    assert second(x).tolist() == [6.0] * 4
    assert case.model.total.tolist() == [0.0] * 4


@pytest.mark.parametrize("name", ["language_dynamic", "counter", "convolutions"])
def test_many_threads_at_once(name):
    case = cases()[name]
    run = Loaded(open_package(package_of(name, "portable")))
    inputs = [case.args, *case.others]
    expected = [run(*args) for args in inputs]
    problems = []

    def work(seed):
        for i in range(12):
            n = (seed + i) % len(inputs)
            got = run(*inputs[n])
            if name != "counter" and not torch.equal(got, expected[n]):
                problems.append((seed, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    if name == "counter":  # 8 threads of 12 calls and the first 3: each added once
        total = run(torch.zeros(3, 4)) / 2
        sums = [args[0].sum(0) for args in inputs]
        turns = [sum((s + i) % 3 == n for s in range(8) for i in range(12)) + 1 for n in range(3)]
        torch.testing.assert_close(total, sum(t * s for t, s in zip(turns, sums, strict=True)))


def test_host_errors_are_those_of_the_operator():
    text = "program @p\ninput %i: int64[2]\nconstant %t: float32[3, 2]\nhost %h: float32[2, 2]\n"
    text += 'output %y: float32[2, 2]\ncall %h = aten.embedding.default [{"buffer": "t"}, '
    text += '{"buffer": "i"}] {}\ncopy %y = %h\nreturn %y\n'
    run = Loaded(open_native(file_bytes(text, {"t": floats(*range(6))})))
    assert run(torch.tensor([1, 0])).tolist() == [[2, 3], [0, 1]]
    with pytest.raises(IndexError):
        run(torch.tensor([7, 0]))
    wrong = text.replace("host %h: float32[2, 2]", "host %h: float32[2, 3]")
    wrong = wrong.replace("output %y: float32[2, 2]", "output %y: float32[2, 3]")
    with pytest.raises((errors.RunFailed, RuntimeError)):
        Loaded(open_native(file_bytes(wrong, {"t": floats(*range(6))})))(torch.tensor([1, 0]))


@pytest.mark.parametrize(
    ("op", "problem"),
    [
        ("aten.nothing.default", "has no operator"),
        ("aten.from_file.default", "may not call"),
        ("aten.relu_.default", "may not call"),
        ("os.system", "has no operator"),
        ("aten.__class__", "has no operator"),
    ],
)
def test_only_functional_operators_may_be_called(op, problem):
    text = "program @p\ninput %x: float32[2]\nhost %h: float32[2]\noutput %y: float32[2]\n"
    text += f'call %h = {op} [{{"buffer": "x"}}] {{}}\ncopy %y = %h\nreturn %y\n'
    with pytest.raises(errors.UnsupportedArtifact, match=problem):
        open_native(file_bytes(text), flags=TRUST)
