"""Kernel IR that is damaged or means harm: a typed error, whatever it is; never a crash."""

import dataclasses

import numpy as np
import pytest
import torch

from dovetail import errors
from dovetail.file import container, kernel_codes, kernel_encode
from dovetail.file.kernel_decode import decode_kernels
from dovetail.file.kernel_encode import encode_kernels
from dovetail.ir.kernel import (
    Apply,
    Axis,
    Const,
    Index,
    Kernel,
    KernelBuffer,
    Load,
    Loop,
    Position,
    Reduce,
    Scan,
    Store,
)
from dovetail.ir.kernel_text import parse_kernel
from dovetail.ir.ops import OPERATIONS, OPERATIONS_BY_NUMBER, Operation, Reducer
from dovetail.runtime.loaded import INSPECT, open_native
from tests.artifact.files import file_bytes
from tests.native.interpret import interpret, kernel_file, kernel_program, run_file
from tests.native.seeds import INTERPRETED, KERNELS
from tests.native.test_kernel_ir import at, copy_kernel, fold_kernel, gathered

pytestmark = pytest.mark.filterwarnings("ignore::dovetail.errors.FallbackWarning")


def seed_section():
    texts = [f"kernel {text}" for text in KERNELS.split("kernel ")[1:]]
    return encode_kernels([parse_kernel(text) for text in texts])


def open_seed(data, **options):
    return open_native(
        file_bytes(
            INTERPRETED,
            {"w": bytes(10)},
            generated={f"{name}@1": name for name in ("softmax", "places", "rows", "steps")},
            sections=[container.section(container.KERNEL_IR, data)],
        ),
        **options,
    )


def try_section(data):
    """Open and run; whether that worked. Anything but one of our errors is a failure."""
    try:
        run = open_seed(data)
        run(torch.zeros(2, 5), torch.ones(3, dtype=torch.bool))
    except errors.DovetailError:
        return False
    return True


def work_of(kernels):
    """The points of all kernels, with s0 at 2; None where that cannot be said."""
    total = 0
    for kernel in kernels:
        for loop in kernel.loops:
            points = 1
            for axis in (*kernel.axes, *loop.axes):
                points *= axis.extent if isinstance(axis.extent, int) else 2
            total += abs(points)
    return total


def test_every_truncation_is_an_error():
    data = seed_section()
    for end in range(len(data)):
        with pytest.raises(errors.InvalidArtifact):
            open_seed(data[:end])
        with pytest.raises(errors.InvalidArtifact):
            decode_kernels(data[:end])
    with pytest.raises(errors.InvalidArtifact, match="left over"):
        open_seed(data + b"\0")


@pytest.mark.parametrize(
    ("number", "problem"),
    [
        (b"\xff" * 9 + b"\x02", "more than 64 bits"),
        (b"\xff" * 10 + b"\x01", "more than 64 bits"),
        (b"\x84\x00", "needless bytes"),
    ],
)
def test_numbers_that_are_none_are_errors(number, problem):
    data = seed_section()
    data = data[:1] + number + data[2:]  # in the place of the number of kernels
    with pytest.raises(errors.InvalidArtifact, match=problem):
        open_seed(data)
    with pytest.raises(errors.InvalidArtifact):
        decode_kernels(data)


def test_every_flipped_bit_is_an_error_or_another_kernel():
    data = seed_section()
    ran = 0
    for at_byte in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at_byte] ^= 1 << bit
            try:
                kernels = decode_kernels(bytes(changed))
            except errors.DovetailError:
                kernels = ()
            if work_of(kernels) < 1 << 20:  # an immense loop is no crash, but takes its time
                ran += try_section(bytes(changed))
    assert ran > 100  # names, constants, operations: some changes leave a kernel that runs


def is_accepted(read, data):
    try:
        read(data)
    except errors.DovetailError:
        return False
    return True


@pytest.mark.parametrize("change", [0x01, 0x41, 0x80])
def test_both_readers_accept_the_same(change):
    data = seed_section()
    refused = 0
    for at_byte in range(1, len(data)):  # the first says that there are no names
        changed = bytearray(data)
        changed[at_byte] ^= change
        in_c = is_accepted(lambda d: open_seed(d, flags=INSPECT), bytes(changed))
        assert in_c == is_accepted(decode_kernels, bytes(changed)), at_byte
        refused += not in_c
    assert refused > 100


# ---- sections that the encoder would not write -------------------------------------------------


def forged(monkeypatch, kernel):
    """The bytes of a kernel that breaks the rules."""
    monkeypatch.setattr(kernel_encode, "verify_kernel", lambda kernel: kernel)
    for cls in (Operation, Reducer):
        monkeypatch.setattr(cls, "admits", lambda *_: True)
    return encode_kernels([kernel])


def open_kernel(kernel, data, length=8):
    text = str(kernel_program(kernel, {b.name: length for b in kernel.buffers}))
    return open_native(
        file_bytes(
            text,
            generated={f"{kernel.name}@1": kernel.name},
            sections=[container.section(container.KERNEL_IR, data)],
        )
    )


def body_of(*instructions, axes=(), buffers=None):
    buffers = buffers or (KernelBuffer("x", "float32"), KernelBuffer("out", "float32", "out"))
    return Kernel("k", buffers, (Axis("i", 8),), (Loop(axes, instructions),))


LOAD = Load("a", "float32", "x", at(1))
STORE = Store("out", at(1), "a")
FORGED = {
    "operands do not fit": [
        body_of(LOAD, Apply("b", "int64", "add", ("a", "a")), STORE),
        body_of(LOAD, Apply("b", "float32", "and", ("a", "a")), STORE),
        body_of(LOAD, Apply("b", "bool", "exp", ("a",)), STORE),
        body_of(LOAD, Apply("b", "float32", "where", ("a", "a", "a")), STORE),
        body_of(LOAD, Apply("b", "int64", "check", ("a", "a", "a")), STORE),
        body_of(LOAD, Reduce("b", "bool", "sum", ("a",)), STORE, axes=(Axis("j", 3),)),
        body_of(LOAD, Scan("b", "bool", "prod", ("a",)), STORE, axes=(Axis("j", 3),)),
        body_of(LOAD, Scan("b", "float32", "any", ("a",)), STORE, axes=(Axis("j", 3),)),
        body_of(LOAD, Reduce("b", "int64", "argmax", ("a", "a")), STORE, axes=(Axis("j", 3),)),
    ],
    "other than one axis": [
        body_of(LOAD, Scan("b", "float32", "sum", ("a",)), STORE, axes=axes)
        for axes in ((), (Axis("j", 2), Axis("k", 2)))
    ],
    "more than one value": [
        body_of(
            LOAD,
            Position("p", at(1)),
            Scan("b", "int64", "argmax", ("a", "p")),
            STORE,
            axes=(Axis("j", 3),),
        )
    ],
    "an axis twice": [
        body_of(dataclasses.replace(LOAD, index=Index(0, (("i", 1), ("i", -1)))), STORE),
        body_of(LOAD, dataclasses.replace(STORE, index=Index(0, (("i", 1), ("i", -1))))),
    ],
    "without axes": [body_of(LOAD, Reduce("b", "float32", "sum", ("a",)), STORE)],
    "against its role": [
        body_of(Load("a", "float32", "out", at(1)), STORE),
        body_of(LOAD, Store("x", at(1), "a")),
    ],
    "another type": [body_of(Load("a", "int64", "x", at(1)), STORE)],
    "not int64": [body_of(LOAD, Load("b", "float32", "x", Index(0, (), (("a", 1),))), STORE)],
    "no bool": [body_of(LOAD, Load("b", "float32", "x", at(1), "a"), STORE)],
    "is the kernel's": [body_of(LOAD, STORE, axes=(Axis("i", 8),))],
    "there twice": [body_of(LOAD, STORE, axes=(Axis("j", 2), Axis("j", 2)))],
    "cannot be seen": [
        dataclasses.replace(
            body_of(LOAD, STORE),
            loops=(Loop((Axis("j", 3),), (LOAD,)), Loop((), (STORE,))),
        )
    ],
}


@pytest.mark.parametrize(
    ("problem", "kernel"), [(problem, k) for problem, group in FORGED.items() for k in group]
)
def test_what_breaks_the_rules_is_refused(monkeypatch, problem, kernel):
    with pytest.raises((errors.InvalidArtifact, errors.CannotSave), match=problem):
        open_kernel(kernel, forged(monkeypatch, kernel))


def test_a_kernel_called_with_other_buffers_is_refused():
    kernel = copy_kernel("float32", "float32")
    longer = dataclasses.replace(kernel, buffers=(*kernel.buffers, KernelBuffer("y", "float32")))
    with pytest.raises(errors.InvalidArtifact, match="other operands"):
        open_kernel(kernel, encode_kernels([longer]))(
            torch.zeros(8, dtype=torch.bool), torch.zeros(8)
        )
    other = dataclasses.replace(
        copy_kernel("int32", "float32"), buffers=(KernelBuffer("a", "int32"), kernel.buffers[1])
    )
    with pytest.raises(errors.InvalidArtifact, match="another dtype"):
        open_kernel(kernel, encode_kernels([other]))(
            torch.zeros(8, dtype=torch.bool), torch.zeros(8)
        )


def test_two_kernels_of_one_name_are_refused():
    kernel = copy_kernel("float32", "float32")
    with pytest.raises(errors.CannotSave, match="one name"):
        encode_kernels([kernel, kernel])
    second = dataclasses.replace(kernel, name="j")
    data = encode_kernels([kernel, second])
    at_name = data.index(b"\x01j") + 1
    forged_name = data[:at_name] + b"k" + data[at_name + 1 :]
    with pytest.raises(errors.InvalidArtifact, match="one name"):
        open_kernel(kernel, forged_name)


# ---- memory ------------------------------------------------------------------------------------


OUTSIDE = [
    Index(1, (("i", 1),)),
    Index(-1, (("i", 1),)),
    Index(0, (("i", 2),)),
    Index(8, ()),
    Index(7, (("i", -2),)),
    Index(0, (("i", 2**62),)),
    Index(2**63 - 1, (("i", 1),)),
    Index(-(2**63), (("i", -1),)),
]


@pytest.mark.parametrize("index", OUTSIDE, ids=str)
@pytest.mark.parametrize("where", ["load", "store"])
def test_nothing_outside_a_buffer_is_touched(index, where):
    load = dataclasses.replace(LOAD, index=index) if where == "load" else LOAD
    store = dataclasses.replace(STORE, index=index) if where == "store" else STORE
    x = np.zeros(8, "float32")
    with pytest.raises(errors.InvalidArtifact, match="outside buffer"):
        interpret(body_of(load, store), {"x": x, "out": x})


@pytest.mark.parametrize("place", [8, -1, 2**62, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("stride", [1, 3, -1, 2**61])
def test_no_gather_reaches_outside(place, stride):
    """Indices that no check has been at, read from memory or the same for a whole strip."""
    for index in (at(1), Index()):
        kernel = body_of(
            Load("k", "int64", "x", index),
            Load("a", "float32", "y", Index(0, (), (("k", stride),))),
            STORE,
            buffers=(
                KernelBuffer("x", "int64"),
                KernelBuffer("y", "float32"),
                KernelBuffer("out", "float32", "out"),
            ),
        )
        x, y = np.full(8, place), np.arange(8, dtype="float32")
        reached = (place * stride + 2**63) % 2**64 - 2**63  # as 64 bits have it
        if 0 <= reached < 8:
            assert interpret(kernel, {"x": x, "y": y, "out": y})["out"].tolist() == [reached] * 8
            continue
        with pytest.raises(errors.InvalidArtifact, match="outside a buffer"):
            interpret(kernel, {"x": x, "y": y, "out": y})


def test_no_scatter_reaches_outside():
    kernel = body_of(
        Load("k", "int64", "x", at(1)),
        Const("a", "float32", 1.0),
        Store("out", Index(0, (), (("k", 1),)), "a"),
        buffers=(KernelBuffer("x", "int64"), KernelBuffer("out", "float32", "out")),
    )
    out = np.zeros(8, "float32")
    good = np.arange(8)[::-1].copy()
    assert interpret(kernel, {"x": good, "out": out})["out"].tolist() == [1.0] * 8
    for bad in (8, -1, 2**63 - 1):
        with pytest.raises(errors.InvalidArtifact, match="outside a buffer"):
            interpret(kernel, {"x": np.where(good == 3, bad, good), "out": out})


def test_a_mask_that_is_true_outside_is_an_error():
    kernel = body_of(
        Const("yes", "bool", value=True),
        Position("p", at(1)),
        Const("three", "int64", 3),
        Apply("some", "bool", "ge", ("p", "three")),
        Apply("mask", "bool", "and", ("some", "yes")),
        Load("a", "float32", "x", at(1, offset=1), "mask"),
        STORE,
    )
    x = np.zeros(8, "float32")
    with pytest.raises(errors.InvalidArtifact, match="outside a buffer"):
        interpret(kernel, {"x": x, "out": x})


@pytest.mark.parametrize("extents", [(2**40, 2**40), (2**62, 4), (-1, 1), (2**63 - 1, 1)])
def test_immense_and_negative_spaces_are_errors(extents):
    axes = tuple(Axis(name, extent) for name, extent in zip("ij", extents, strict=True))
    load, store = (dataclasses.replace(i, index=Index()) for i in (LOAD, STORE))
    kernel = dataclasses.replace(body_of(load, store), axes=axes)
    x = np.zeros(8, "float32")
    with pytest.raises((errors.SizeError, errors.GuardFailed)):
        interpret(kernel, {"x": x, "out": x})


def test_sizes_that_do_not_fit_the_buffers_are_errors():
    kernel = fold_kernel("sum", "float32", "float32", rows=True)
    buffers = {"x": np.zeros(12, "float32"), "out": np.zeros(3, "float32")}
    for n, m in ((4, 4), (3, 5), (13, 1)):
        with pytest.raises(errors.InvalidArtifact, match="outside buffer"):
            interpret(kernel, buffers, {"n": n, "m": m})


def test_gathers_of_an_empty_buffer():
    sizes = {"n": 2, "m": 0, "w": 3}
    buffers = {"x": np.zeros(0, "float32"), "index": np.zeros(2, "int64")}
    with pytest.raises(errors.IndexOutOfRange):
        interpret(gathered("check"), buffers | {"out": np.zeros(6, "float32")}, sizes)


PARTIAL = {
    "half": body_of(LOAD, STORE),
    "every_other": body_of(
        dataclasses.replace(LOAD, index=at(2)), dataclasses.replace(STORE, index=at(2))
    ),
    "never": body_of(LOAD),
}


@pytest.mark.parametrize("name", PARTIAL)
def test_what_is_not_written_shows_nothing_of_what_lay_there(name):
    """Memory of earlier calls, or of anyone else, is not for a file to hand out."""
    kernel = dataclasses.replace(PARTIAL[name], axes=(Axis("i", 4),))
    data = kernel_file(kernel, {"x": 8, "out": 20})
    for _ in range(20):
        rubbish = [torch.full((20,), 7.0) for _ in range(8)]
        del rubbish  # so that new memory is not zero
        out = run_file(data, kernel, {"x": torch.ones(8)})["out"]
        written = {"every_other": [0, 2, 4, 6], "never": []}
        places = written.get(name, [0, 1, 2, 3])
        assert out.nonzero().flatten().tolist() == places


def test_nothing_is_read_before_it_is_written():
    """An "inout" buffer starts as zeros, unless each element is written first."""
    body = (
        Load("a", "float32", "out", Index(7, (("i", -1),))),
        Load("b", "float32", "x", at(1)),
        Apply("c", "float32", "add", ("a", "b")),
        Store("y", at(1), "c"),
        Store("out", at(1), "b"),
    )
    buffers = (KernelBuffer("x", "float32"), KernelBuffer("out", "float32", "inout"))
    kernel = body_of(*body, buffers=(*buffers, KernelBuffer("y", "float32", "out")))
    x = torch.arange(1.0, 9.0)
    for _ in range(20):
        rubbish = [torch.full((8,), 7.0) for _ in range(8)]
        del rubbish
        got = interpret(kernel, {"x": x, "out": x, "y": x})
        assert torch.equal(got["out"], x)
        assert torch.equal(got["y"], x)


# ---- what the format does not know -------------------------------------------------------------


def test_an_operation_without_a_number_cannot_be_saved(monkeypatch):
    monkeypatch.setitem(OPERATIONS, "frobnicate", Operation("frobnicate", 1, "float"))
    kernel = body_of(LOAD, Apply("b", "float32", "frobnicate", ("a",)), STORE)
    with pytest.raises(errors.CannotSave, match=r"frobnicate.*ir/ops.py"):
        encode_kernels([kernel])
    with pytest.raises(errors.CannotSave, match="is not valid"):
        encode_kernels([body_of(LOAD, Apply("b", "float32", "nonsense", ("a",)), STORE)])


@pytest.mark.parametrize("code", [len(OPERATIONS_BY_NUMBER), 255])
def test_an_unknown_operation_is_named(monkeypatch, code):
    monkeypatch.setitem(OPERATIONS, "exp", OPERATIONS["exp"]._replace(number=code))
    kernel = body_of(LOAD, Apply("b", "float32", "exp", ("a",)), STORE)
    data = encode_kernels([kernel])
    with pytest.raises(errors.UnsupportedArtifact, match=rf"operation {code}.*upgrade"):
        open_kernel(kernel, data)
    with pytest.raises(errors.InvalidArtifact):
        decode_kernels(data)


def test_types_the_format_does_not_know_cannot_be_saved():
    kernel = body_of(LOAD, Apply("b", "float32", "floor", ("a",)), STORE)
    changed = dataclasses.replace(
        kernel, loops=(Loop((), (LOAD, Apply("b", "int64", "isnan", ("a",)), STORE)),)
    )
    assert encode_kernels([kernel])
    with pytest.raises(errors.CannotSave, match="isnan of float32 as int64"):
        encode_kernels([changed])
    with pytest.raises(errors.CannotSave, match="64 bits"):
        encode_kernels([body_of(Const("a", "int64", 2**63), STORE)])


def test_too_much_cannot_be_saved():
    many = tuple(Const(f"v{n}", "int64", n) for n in range(kernel_codes.MAX_VALUES + 1))
    with pytest.raises(errors.CannotSave, match="values"):
        encode_kernels([body_of(*many)])
    axes = tuple(Axis(f"a{n}", 1) for n in range(kernel_codes.MAX_AXES))
    with pytest.raises(errors.CannotSave, match="axes"):
        encode_kernels([body_of(LOAD, STORE, axes=axes)])
