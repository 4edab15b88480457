"""Kernels as Triton's text: under its interpreter against the oracle, and compiled for a GPU."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dovetail.backends.cuda.backend import program_of
from dovetail.errors import CannotSave, InvalidSchedule
from dovetail.file.kernel_encode import encode_kernel
from dovetail.ir.kernel_text import parse_kernel, print_kernel
from dovetail.ir.target import TARGETS
from dovetail.schedule.gpu.blocks import BlockSchedule
from dovetail.schedule.gpu.strategy import make_schedule
from dovetail.schedule.text import parse_schedule, print_schedule
from dovetail.schedule.verify_schedule import verify_schedule
from tests.codegen.triton_interpreter import SOFTMAX, _sized

GPU = TARGETS["sm_90"]
# Beside the environment, not in it: Dynamo imports Triton wherever it finds it.
BESIDE = Path(sys.prefix) / "triton"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and not BESIDE.is_dir(),
    reason="needs Triton, in the environment or in triton/ of its folder (make test)",
)


def python(*arguments, **variables):
    """A process of its own that finds Triton."""
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(BESIDE)]))
    given = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables}
    done = subprocess.run([sys.executable, *arguments], env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]


def softmax(rows, columns, dtype="bfloat16"):
    return _sized(SOFTMAX, dtype, rows, columns)


@needs_triton
def test_under_the_interpreter():
    """Every operation, element type, reduction and strategy, with odd sizes: half a minute."""
    python("-m", "tests.codegen.triton_interpreter", TRITON_INTERPRET="1")


@needs_triton
def test_code_for_a_gpu_is_made_without_one(tmp_path):
    program = """
from tests.codegen.test_triton import GPU, make_schedule, softmax, walked
from dovetail.codegen.triton.compile import compile_kernel
made = compile_kernel(softmax(8, 4096), make_schedule(softmax(8, 4096), GPU), GPU)
assert made.name == "softmax" and made.code[:4] == b"\\x7fELF", made
made = compile_kernel(walked(), make_schedule(walked(), GPU), GPU)
assert made.code[:4] == b"\\x7fELF", made
"""
    python("-c", program, TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")


@needs_triton
def test_a_segment_compiled_here_is_read_without_triton(tmp_path, monkeypatch):
    program = """
import sys
from pathlib import Path
from dovetail.backends.cuda import backend
from tests.backends.test_cuda import GPU, perceptron
backend._target_for = lambda _: GPU
Path(sys.argv[1]).write_bytes(backend.CudaBackend().compile(perceptron()).data)
"""
    path, caches = tmp_path / "segment", {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    python("-c", program, str(path), TRITON_INTERPRET="0", **caches)
    monkeypatch.setattr("dovetail.backends.cuda.backend._target_for", lambda _: GPU)
    found = program_of(path.read_bytes())
    assert [cubin.code[:4] for cubin in found.code.values()] == [b"\x7fELF"]
    assert "triton" not in sys.modules


@pytest.mark.parametrize(
    ("columns", "dtype", "persistent"),
    [
        (257, "bfloat16", True),
        (16384, "bfloat16", True),
        (32768, "bfloat16", False),  # two blocks at a time, each of which reads it twice, take less
        (65536, "bfloat16", False),
        (32768, "float32", True),
        (65536, "float32", False),
    ],
)
def test_rows_that_registers_hold_are_read_once(columns, dtype, persistent):
    found = make_schedule(softmax(1024, columns, dtype), GPU)
    assert found.persistent == persistent
    assert found.columns >= columns or not persistent
    assert found.online != persistent


def test_short_rows_share_a_block():
    assert make_schedule(softmax(100000, 100), GPU).rows > 1
    assert make_schedule(softmax(8, 100), GPU).rows == 1  # so that there are eight blocks


def test_the_cost_is_that_of_the_bytes_moved():
    kernel = softmax(16384, 4096)
    once = make_schedule(kernel, GPU)
    moved = 2 * 2 * 16384 * 4096
    floor = moved / GPU.bytes_per_second * 1e12
    assert floor < once.cost < 1.3 * floor


def test_texts_parse_back():
    for schedule in (
        make_schedule(softmax(8, 4096), GPU),
        make_schedule(softmax(8, 1 << 17), GPU),
        BlockSchedule("sm_90", 512, warps=8, wide=True, short=True, cost=7),
        BlockSchedule("sm_90", 64, 64, 8, along=("j", "k")),
        BlockSchedule("sm_90", 4, 1024, 8, persistent=True, walked=("r",)),
    ):
        assert parse_schedule(print_schedule(schedule)) == schedule


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"rows": 3}, "no power of two"),
        ({"columns": 0}, "columns of nothing"),
        ({"columns": 128}, "registers do not hold"),
        ({"online": True}, "no sum of powers in one loop"),
        ({"warps": 64}, "64 warps"),
        ({"along": ("i",)}, "of loops and of parallel axes"),
        ({"target": "opencl"}, "made for opencl"),
    ],
    ids=str,
)
def test_schedules_that_do_not_fit_are_refused(change, problem):
    kernel = softmax(8, 4096)
    ours = make_schedule(kernel, GPU)
    verify_schedule(kernel, ours, GPU)
    with pytest.raises(InvalidSchedule, match=problem):
        verify_schedule(kernel, replace(ours, **change), GPU)


def walked(rows=8):
    text = """kernel k(in x: bfloat16, out y: bfloat16, out s: float32) over [p: 264, r: ROWS] {
      loop [c: 100] {
        a: float32 = load x[0 | p * (EACH) | r * (100) | c * (1)]
        store y[0 | p * (EACH) | r * (100) | c * (1)] = a
        store s[0 | p * (100) | c * (1)] += a
      }
    }"""
    return parse_kernel(text.replace("ROWS", str(rows)).replace("EACH", str(100 * rows)))


def test_a_kernel_that_adds_to_memory_reads_back():
    kernel = walked()
    assert parse_kernel(print_kernel(kernel)) == kernel


def test_files_hold_no_kernel_that_adds_to_memory():
    with pytest.raises(CannotSave, match="blocks of a GPU alone"):
        encode_kernel(walked())


def test_rows_are_walked_as_many_at_a_time_as_divide_them():
    for rows, at_once in ((8, 8), (6, 2), (7, 1), (64, 32)):
        found = make_schedule(walked(rows), GPU)
        assert (found.rows, found.walked, found.units(walked(rows))) == (at_once, ("r",), 264)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"walked": ()}, "without axes that a block walks"),
        ({"walked": ("p",)}, "other axes than the last"),
        ({"rows": 16}, "cut in the middle"),
        ({"columns": 64}, "rows that are not whole"),
        ({"persistent": False}, "other axes than the last"),
    ],
    ids=str,
)
def test_walks_that_lose_sums_are_refused(change, problem):
    kernel = walked()
    ours = make_schedule(kernel, GPU)
    verify_schedule(kernel, ours, GPU)
    with pytest.raises(InvalidSchedule, match=problem):
        verify_schedule(kernel, replace(ours, **change), GPU)


def test_sums_that_blocks_share_are_refused():
    text = print_kernel(walked())
    for place in ("s[0 | c * (1)]", "s[0 | p * (100) | r * (1) | c * (1)]"):
        kernel = parse_kernel(text.replace("s[0 | p * (100) | c * (1)]", place))
        with pytest.raises(InvalidSchedule, match=r"several blocks|moves along"):
            verify_schedule(kernel, make_schedule(kernel, GPU), GPU)


def test_functions_are_short_where_all_results_are():
    assert make_schedule(softmax(8, 4096), GPU).short
    kernel = softmax(8, 4096, "float32")
    ours = make_schedule(kernel, GPU)
    assert not ours.short
    with pytest.raises(InvalidSchedule, match="16 bits"):
        verify_schedule(kernel, replace(ours, short=True), GPU)


def test_rows_of_float32_are_kept_in_parts():
    kernel = parse_kernel("""kernel k(in x: float32, out y: float32) over [i: 512] {
      loop [j: 40960] {
        a: float32 = load x[0 | i * (40960) | j * (1)]
        r: float32 = reduce sum(a)
      }
      loop [j: 40960] {
        b: float32 = load x[0 | i * (40960) | j * (1)]
        c: float32 = sub(b, r)
        store y[0 | i * (40960) | j * (1)] = c
      }
    }""")
    found = make_schedule(kernel, GPU)
    assert found.persistent
    assert found.columns == 8192
    apart = parse_kernel(
        print_kernel(kernel)
        .replace("[j: 40960]", "[k: 10, j: 4096]")
        .replace("| j * (1)]", "| k * (4096) | j * (1)]")
    )
    assert make_schedule(apart, GPU).columns == 4096  # along the last axis alone


def test_long_rows_take_steps_of_as_many_bytes():
    for dtype, columns in (("bfloat16", 16384), ("float32", 8192)):
        found = make_schedule(softmax(1024, 131072, dtype), GPU)
        assert (found.rows, found.columns, found.warps, found.online) == (1, columns, 32, True)
    assert make_schedule(softmax(1024, 32768), GPU).columns == 4096  # near when it is read again


def test_far_places_need_64_bits():
    kernel = softmax(1 << 20, 4096)
    ours = make_schedule(kernel, GPU)
    assert ours.wide
    with pytest.raises(InvalidSchedule, match="32 bits"):
        verify_schedule(kernel, replace(ours, wide=False), GPU)


def test_a_kernel_that_reads_what_it_writes_has_no_blocks():
    kernel = parse_kernel("""kernel k(inout x: float32) over [i: 8] {
      loop [] {
        a: float32 = load x[0 | i * (1)]
        store x[0 | i * (1)] = a
      }
    }""")
    with pytest.raises(InvalidSchedule, match="reads what it writes"):
        verify_schedule(kernel, make_schedule(kernel, GPU), GPU)
