"""What a file that is not trusted may take, and runs that are stopped."""

import math
import signal
import threading
import time

import pytest
import torch

import dovetail
from dovetail import _native, errors
from dovetail.ir.kernel import Apply, Axis, Index, Kernel, KernelBuffer, Load, Loop, Reduce, Store
from dovetail.ir.kernel_text import parse_kernel
from dovetail.runtime.loaded import TRUST, open_native
from tests.artifact.files import file_bytes
from tests.differential import needs_code
from tests.native.interpret import ir_section

pytestmark = pytest.mark.filterwarnings("ignore::dovetail.errors.InterpretedKernels")


def reduction(rows, columns):
    """A sum over a view that repeats one element."""
    return f"""\
program @sum
input %x: float32[1]
view %v: float32[{rows}, {columns}] strides [0, 0] of %x
output %y: float32[{rows}]
kernel %y = sum@1(%v; 2, 0)
return %y
"""


PRODUCT = f"""\
program @product
input %x: float32[1]
view %a: float32[4096, {2**33}] strides [0, 0] of %x
view %b: float32[{2**33}, 4096] strides [0, 0] of %x
output %y: float32[4096, 4096]
kernel %y = matmul@1(%a, %b)
return %y
"""


def folds(points, extent):
    """A kernel that sums one element ``extent`` times, at each of ``points``."""
    loops = (
        Loop((Axis("r", extent),), (
            Load("a", "float32", "x", Index(0)),
            Reduce("s", "float32", "sum", ("a",)),
        )),
        Loop((), (Store("out", Index(0, (("p", 1),)), "s"),)),
    )  # fmt: skip
    buffers = (KernelBuffer("x", "float32"), KernelBuffer("out", "float32", "out"))
    return Kernel("folds", buffers, (Axis("p", points),), loops)


def fold_file(points, extent):
    text = f"""\
program @folds
input %x: float32[1]
output %y: float32[{points}]
kernel %y = folds@1(%x)
return %y
"""
    section = ir_section([folds(points, extent)])
    return file_bytes(text, generated={"folds@1": "folds"}, sections=[section])


# ---- work --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        file_bytes(reduction(1, 2**50)),
        file_bytes(reduction(2**12, 2**40)),
        file_bytes(PRODUCT),
        fold_file(1, 2**50),
        fold_file(2**20, 2**30),
    ],
    ids=["row", "rows", "product", "fold", "folds"],
)
def test_work_beyond_the_limit_is_refused_before_it_starts(data):
    with pytest.raises(errors.LimitExceeded, match=r"steps.*max_work"):
        open_native(data)(torch.ones(1))


@pytest.mark.parametrize(("indices", "error"), [
    (2**33, errors.LimitExceeded),
    (2**50, errors.InvalidArtifact),  # more than 64 bits count
])  # fmt: skip
def test_places_are_counted_once_for_each_dimension_without_an_index(indices, error):
    """Neither the rows nor the indices are many; each row meets each index."""
    data = file_bytes(f"""\
program @put
input %x: float32[1]
input %i: int64[1]
view %base: float32[16384, 4] strides [0, 0] of %x
view %many: int64[{indices}] strides [0] of %i
output %y: float32[16384, 4]
kernel %y = put@1(%base, %x, %many; 0, 0, 2, 1)
return %y
""")
    with pytest.raises(error, match=r"steps.*max_work|do not fit"):
        open_native(data)(torch.ones(1), torch.zeros(1, dtype=torch.int64))


def test_limits_of_work_can_be_set(tmp_path):
    path = tmp_path / "m.dvt"
    path.write_bytes(file_bytes(reduction(4, 100)))
    assert torch.as_tensor(dovetail.load(path)(torch.ones(1))).tolist() == [100] * 4
    assert torch.as_tensor(dovetail.load(path, max_work=400)(torch.ones(1))).sum() == 400
    for trust in (False, True):
        with pytest.raises(errors.LimitExceeded, match=r"400 steps.*limit of 399"):
            dovetail.load(path, max_work=399, trust=trust)(torch.ones(1))
    for wrong in (0, -1, math.nan, "many"):
        with pytest.raises(errors.InvalidOption, match="max_work"):
            dovetail.load(path, max_work=wrong)


def test_limits_on_the_command_line(tmp_path, capsys):
    from dovetail.cli import main

    path = tmp_path / "m.dvt"
    path.write_bytes(file_bytes(reduction(4, 100)))
    assert main(["run", str(path), "--random", "--repeat", "1", "--max-work", "inf"]) == 0
    assert main(["run", str(path), "--random", "--repeat", "1", "--max-work", "399"]) != 0
    assert "limit of 399 steps" in capsys.readouterr().err


# ---- memory ------------------------------------------------------------------------------------

MUCH = 2**46  # of four bytes: more than a process can address

OUTPUT = f"""\
program @output
input %x: float32[1]
output %y: float32[{MUCH}]
view %v: float32[1] of %y
kernel %v = relu@1(%x)
return %y
"""
TEMPORARY = f"""\
program @temporary
input %x: float32[1]
temporary %t: float32[{MUCH}]
view %v: float32[1] of %t
output %y: float32[1]
kernel %v = relu@1(%x)
kernel %y = relu@1(%v)
return %y
"""
SPREAD = f"""\
program @spread
input %x: float32[2] strides [{MUCH}]
output %y: float32[2]
kernel %y = relu@1(%x)
return %y
"""


@pytest.mark.parametrize(
    ("text", "what"), [(OUTPUT, "outputs"), (TEMPORARY, "temporaries"), (SPREAD, "copies")]
)
def test_memory_beyond_the_limit_is_refused_before_it_is_taken(text, what):
    x = torch.ones(2 if text is SPREAD else 1)
    with pytest.raises(errors.LimitExceeded, match=rf"{what} need.*max_memory"):
        open_native(file_bytes(text))(x)
    if text is not SPREAD:
        with pytest.raises((errors.OutOfMemory, errors.LimitExceeded)):
            open_native(file_bytes(text), flags=TRUST, limits=(0, 2**50))(x)


WITHIN = """\
program @within
input %x: float32[2048]
temporary %t: float32[2048]
view %a: float32[1000, 1000] strides [1, 1] of %t
view %b: float32[1000, 1000] strides [1, 1] of %t at 1
output %y: float32[2048]
kernel %t = relu@1(%x)
copy %a = %b
kernel %y = relu@1(%t)
return %y
"""


def test_a_copy_within_a_buffer_is_counted_by_its_elements():
    """It goes through memory of its own, and elements that overlap are many more than the bytes."""
    x = torch.ones(2048)
    (y,) = open_native(file_bytes(WITHIN), limits=(0, 5_000_000))(x)
    assert torch.equal(y, x)
    with pytest.raises(errors.LimitExceeded, match=r"copies need 4000000.*max_memory"):
        open_native(file_bytes(WITHIN), limits=(0, 4_000_000))(x)


POINTS = 4096 * 64


def chained(values):
    """A kernel that holds ``values`` values at once: all are loaded before any is used."""
    buffers = (KernelBuffer("x", "float64"), KernelBuffer("out", "float64", "out"))
    here = Index(0, (("p", 1),))
    loads = [Load(f"v{n}", "float64", "x", here) for n in range(values)]
    totals = ["v0", *(f"t{n}" for n in range(1, values))]
    adds = [Apply(totals[n], "float64", "add", (totals[n - 1], f"v{n}")) for n in range(1, values)]
    body = (*loads, *adds, Store("out", here, totals[-1]))
    return Kernel("chained", buffers, (Axis("p", POINTS),), (Loop((), body),))


@pytest.mark.parametrize("threads", [1, 3])
def test_what_the_interpreter_holds_is_counted_for_each_thread(threads):
    text = f"""\
program @chained
input %x: float64[{POINTS}]
output %y: float64[{POINTS}]
kernel %y = chained@1(%x)
return %y
"""
    section = ir_section([chained(100)])
    data = file_bytes(text, generated={"chained@1": "chained"}, sections=[section])
    output, held = 8 * POINTS, 100 * 512 * 8
    x = torch.ones(POINTS, dtype=torch.float64)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for limits in ((0, 0), (0, output + 3 * threads * held)):
            assert torch.from_dlpack(open_native(data, limits=limits)(x)[0])[0] == 100
        with pytest.raises(errors.LimitExceeded, match=r"interpreted kernels need.*max_memory"):
            open_native(data, limits=(0, output + threads * held))(x)
    finally:
        torch.set_num_threads(before)


def test_state_that_shares_its_contents_is_counted_each_time():
    lines = [f"state %s{i}: float32[65536]" for i in range(64)]
    text = "program @state\ninput %x: float32[1]\n" + "\n".join(lines)
    text += "\noutput %y: float32[1]\nkernel %y = relu@1(%x)\nreturn %y\n"
    data = file_bytes(text, {f"s{i}": bytes(4 * 65536) for i in range(64)})
    open_native(data)(torch.ones(1))
    with pytest.raises(errors.LimitExceeded, match=r"state.*max_memory"):
        open_native(data, limits=(0, 4 * 65536 * 63))(torch.ones(1))


@pytest.mark.parametrize("count", [16384, 16385])
def test_a_kernel_has_no_more_values_than_the_format_allows(count, monkeypatch):
    monkeypatch.setattr("dovetail.file.kernel_codes.MAX_VALUES", count)  # we write no such file
    first = Load("v0", "float32", "x", Index(0))
    rest = [Apply(f"v{n}", "float32", "neg", (f"v{n - 1}",)) for n in range(1, count)]
    body = (first, *rest, Store("y", Index(0), f"v{count - 1}"))
    buffers = (KernelBuffer("x", "float32"), KernelBuffer("y", "float32", "out"))
    section = ir_section([Kernel("long", buffers, (), (Loop((), body),))])
    text = "program @p\ninput %x: float32[1]\noutput %y: float32[1]\n"
    data = file_bytes(
        text + "kernel %y = long@1(%x)\nreturn %y\n",
        generated={"long@1": "long"},
        sections=[section],
    )
    if count > 16384:
        with pytest.raises(errors.InvalidArtifact, match="too many values"):
            open_native(data)
    else:
        (found,) = open_native(data)(torch.full((1,), 3.0))
        assert torch.from_dlpack(found) == -3


def test_frames_that_are_kept_stay_within_the_limit():
    text = """\
program @sizes
symbol s0 = %x[0] in 1..1000000
input %x: float32[s0]
temporary %t: float32[s0]
output %y: float32[s0]
kernel %t = relu@1(%x)
kernel %y = neg@1(%t)
return %y
"""
    native = open_native(file_bytes(text), limits=(0, 20_000_000))
    for rows in (1_000_000, 999_999, 999_998, 999_997, 1_000_000):
        assert torch.from_dlpack(native(torch.ones(rows))[0]).sum() == -rows


# ---- stopping ----------------------------------------------------------------------------------


class Stopped(Exception):
    pass


@pytest.fixture
def alarm():
    """Raises Stopped in this thread a little later, by a signal."""

    def stop(number, frame):
        raise Stopped

    before = signal.signal(signal.SIGALRM, stop)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.2)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(params=["alone", "own", "shared"])
def threads(request):
    _native.share_threads(request.param == "shared")
    yield request.param
    _native.share_threads(True)


def run_long(native, x, alarm, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(1 if threads == "alone" else 2)
    try:
        alarm()
        with pytest.raises(Stopped):
            native(x)
    finally:
        torch.set_num_threads(before)


def test_a_built_in_kernel_is_stopped(alarm, threads):
    native = open_native(file_bytes(reduction(2**20, 2**24)))
    run_long(native, torch.ones(1), alarm, threads)
    run_long(native, torch.ones(1), alarm, threads)  # it is as usable as before


def test_an_interpreted_kernel_is_stopped(alarm, threads):
    """Also within one point."""
    run_long(open_native(fold_file(1, 2**44)), torch.ones(1), alarm, threads)
    run_long(open_native(fold_file(2**20, 2**24)), torch.ones(1), alarm, threads)


@needs_code
@pytest.mark.parametrize(("points", "extent"), [(1, 2**44), (2**20, 2**24)])
def test_a_compiled_kernel_is_stopped(alarm, tmp_path, points, extent):
    pytest.importorskip("llvmlite")
    path = tmp_path / "k.dvt"
    path.write_bytes(fold_file(points, extent))
    run = dovetail.load(path)
    assert run.native.code() == 1
    run_long(run.native, torch.ones(1), alarm, "own")


SLOW = """\
kernel folds(in x: float32, out y: float32) over [i: 4096] {
  loop [] {
    a: float32 = load x[0]
    p: int64 = position [0 | i * (1)]
    b: float32 = cast(p)
  }
  loop [j: 1073741824] {
    q: int64 = position [0 | j * (1)]
    c: float32 = cast(q)
    d: float32 = pow(b, c)
    e: float32 = atan2(d, a)
    f: float32 = pow(e, d)
    s: float32 = reduce sum(f)
  }
  loop [] {
    store y[0 | i * (1)] = s
  }
}
"""


@needs_code
def test_a_compiled_kernel_of_many_instructions_is_stopped(alarm, tmp_path):
    """A point takes long for them, and many points are walked in one go."""
    pytest.importorskip("llvmlite")
    text = "program @p\ninput %x: float32[1]\noutput %y: float32[4096]\n"
    text += "kernel %y = folds@1(%x)\nreturn %y\n"
    section = ir_section([parse_kernel(SLOW)])
    path = tmp_path / "k.dvt"
    path.write_bytes(file_bytes(text, generated={"folds@1": "folds"}, sections=[section]))
    run = dovetail.load(path)
    assert run.native.code() == 1
    run_long(run.native, torch.ones(1), alarm, "own")


@pytest.fixture
def interrupts():
    """Ctrl-C as Python takes it, also where this process was started to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_stops_a_run_and_nothing_else():
    text = """\
program @long
symbol s0 = %n in 1..16777216
input %n: int64[]
input %x: float32[1]
view %v: float32[65536, s0] strides [0, 0] of %x
output %y: float32[65536]
kernel %y = sum@1(%v; 2, 0)
return %y
"""
    native = open_native(file_bytes(text))
    timer = threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        native(torch.tensor(2**24), torch.ones(1))
    timer.join()
    y = torch.from_dlpack(native(torch.tensor(3), torch.ones(1))[0])
    assert y.unique().tolist() == [3]


def test_other_threads_run_on_while_one_is_stopped(alarm):
    native = open_native(file_bytes(reduction(2**20, 2**24)))
    small = open_native(file_bytes(reduction(1000, 1000)))
    found, done = [], threading.Event()

    def go_on():
        while not done.is_set():
            found.append(torch.from_dlpack(small(torch.ones(1))[0]).eq(1000).all().item())
            time.sleep(0.01)

    thread = threading.Thread(target=go_on)
    thread.start()
    run_long(native, torch.ones(1), alarm, "own")
    done.set()
    thread.join()
    assert found
    assert all(found)
