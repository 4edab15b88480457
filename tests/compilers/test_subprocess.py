"""Compiling in worker processes: the same code, and no trouble of a compiler reaches the parent."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import dovetail
from dovetail.backend import Blob
from dovetail.capture.from_fx import segment_of
from dovetail.compilers import pool, process
from dovetail.errors import CompileFailed, VerificationFailed
from dovetail.ir.verify import verifying
from tests.compilers.conftest import children, is_running, wait_until
from tests.compilers.trouble import Trouble, maker, segment_of_one

PLAIN = segment_of_one()


def mlp_segment():
    def mlp(x, w, b):
        return torch.softmax(torch.nn.functional.gelu(torch.addmm(b, x, w)), dim=-1)

    arguments = torch.randn(8, 16), torch.randn(16, 32), torch.randn(32)
    return segment_of(make_fx(mlp)(*arguments), "mlp")


@pytest.mark.parametrize("name", ["cpu", "aten", "reference", "portable"])
def test_a_worker_makes_the_same_code(workers, name):
    backend = dovetail.get_backend(name)
    (blob,) = workers().compile(backend, [mlp_segment()])
    assert blob == backend.compile(mlp_segment())


def test_a_worker_compiles_for_cpu_without_pytorch(workers):
    (blob,) = workers().compile(dovetail.get_backend("cpu"), [mlp_segment()])
    assert blob.data
    (worker,) = process.every_worker
    loaded = Path(f"/proc/{worker.process.pid}/maps").read_text()
    assert "libllvmlite" in loaded
    assert "libtorch" not in loaded


def test_a_worker_follows_the_environment_of_its_parent(workers, monkeypatch, tmp_path):
    backend, compile_with = dovetail.get_backend("cpu"), workers().compile
    (here,) = compile_with(backend, [mlp_segment()])
    monkeypatch.setenv("DOVETAIL_PROCESSOR", "x86-64-v3")
    monkeypatch.chdir(tmp_path)
    (held,) = compile_with(backend, [mlp_segment()])
    assert held == backend.compile(mlp_segment())
    monkeypatch.delenv("DOVETAIL_PROCESSOR")
    (again,) = compile_with(backend, [mlp_segment()])
    assert again == here
    assert len(process.every_worker) == 1


def test_a_worker_is_used_again(workers, trouble):
    first, second = (workers().compile(trouble(), [PLAIN])[0] for _ in range(2))
    assert maker(first) == maker(second) != os.getpid()


def test_segments_are_compiled_side_by_side(workers, trouble):
    segments = [segment_of_one(size=n) for n in range(1, 9)]
    blobs = workers(workers=2).compile(trouble(), segments)
    assert len({maker(blob) for blob in blobs}) == 2
    assert [trouble().load(b)([torch.ones(n)])[0].numel() for n, b in enumerate(blobs, 1)] == [
        *range(1, 9)
    ]


def test_identical_segments_are_compiled_once(workers, trouble):
    backend = trouble()
    twins = [segment_of_one(names=("a", "b")), segment_of_one(), segment_of_one(size=5)]
    first, second, other = workers().compile(backend, twins)
    assert first is second
    assert first != other


# ---- a compiler in trouble -----------------------------------------------------------------

TROUBLES = {
    "segfault": r"crashed \(SIGSEGV\)",
    "abort": r"crashed \(SIGABRT\), having printed 'assertion failed: tiles > 0'",
    "leave": r"ended its process \(status 3\)",
    "exit_by_exception": "SystemExit: no licence",
    "refuse": "ValueError: no tile fits 3 rows",
    "hang": r"longer than 1 s \(compile_timeout\)",
    "hang_in_c": r"longer than 1 s \(compile_timeout\)",
    "hang_in_child": r"longer than 1 s \(compile_timeout\)",
    "flood": r"longer than 1 s \(compile_timeout\)",
    "eat": r"more than 400 MB \(compile_memory\)",
    "eat_in_child": r"more than 400 MB \(compile_memory\)",
    "fork_and_crash": r"crashed \(SIGSEGV\)",
    "scribble": "wrote to its worker's pipe",
    "close_everything": "ended its process",
}


@pytest.mark.parametrize("how", TROUBLES)
def test_trouble_costs_its_segment(workers, trouble, how):
    seconds = 1.0 if "timeout" in TROUBLES[how] else 60.0
    limited = workers(seconds, 400 << 20)
    (outcome,) = limited.compile(trouble(how=how), [PLAIN])
    assert isinstance(outcome, CompileFailed)
    assert outcome.args[0]
    with pytest.raises(CompileFailed, match=TROUBLES[how]):
        raise outcome
    (blob,) = workers().compile(trouble(), [PLAIN])
    assert isinstance(blob, Blob)
    assert not limited.notes


@pytest.mark.parametrize("how", ["chat", "fork_and_return", "fork_and_stay", "nothing"])
def test_what_a_compiler_may_do(workers, trouble, how):
    compile_with = workers().compile
    makers = [maker(compile_with(trouble(how=how), [PLAIN])[0]) for _ in range(3)]
    assert len({*makers}) == 1


def test_the_others_keep_their_results(workers, trouble):
    kinds = {"aten.neg.default": "blob", "aten.exp.default": "crashed", "aten.tanh.default": "took"}
    operators = [*kinds, "aten.neg.default", "aten.exp.default", "aten.neg.default"]
    segments = [segment_of_one(op, size) for size, op in enumerate(operators, 1)]
    outcomes = workers(4.0).compile(trouble(), segments)
    found = [str(o).split()[2] if isinstance(o, CompileFailed) else "blob" for o in outcomes]
    assert found == [kinds[op] for op in operators]


def test_a_result_that_is_no_blob(workers, trouble):
    (outcome,) = workers().compile(trouble(blob="none"), [PLAIN])
    assert str(outcome) == "compile() returned 3"


def test_an_interrupted_parent_leaves_no_worker_behind(workers, trouble):
    before = set(children(os.getpid()))  # servers that other tests of this process started
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 2)
    with pytest.raises(KeyboardInterrupt):
        workers().compile(trouble(how="hang"), [PLAIN])
    assert before.issuperset(children(os.getpid()))
    (blob,) = workers(workers=1).compile(trouble(), [PLAIN])
    assert isinstance(blob, Blob)


# ---- what only this process has ------------------------------------------------------------


def compiled_here(limited, backend, reason):
    blob, other = limited.compile(backend, [PLAIN, segment_of_one(size=9)])
    (note,) = limited.notes
    assert reason in note
    made = [(b.live or b.data).split()[0] for b in (blob, other)]
    assert made == [str(os.getpid()).encode()] * 2


def test_options_that_are_no_plain_values(workers, trouble):
    compiled_here(workers(), trouble(how=()), "its options are not all plain values")


def test_an_object_that_nobody_named(workers):
    compiled_here(workers(), Trouble(), "it was passed as an object, not by its name")


def test_a_class_that_no_other_process_can_import(workers):
    class Local(Trouble):
        name = "local"

    with dovetail.registered_backend(Local):
        compiled_here(workers(), dovetail.get_backend("local"), "cannot be imported by another")


def test_code_that_lives_in_one_process(workers, trouble):
    compiled_here(workers(), trouble(blob="live"), "its code lives in the process that made it")


def test_a_worker_that_does_not_start(workers, trouble, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    compiled_here(workers(), trouble(), "a worker does not start: /nowhere/python does not start")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    compiled_here(workers(), trouble(), "a worker does not start: ")


def test_a_backend_that_fails_here_too(workers):
    (outcome,) = workers().compile(Trouble(how="refuse"), [PLAIN])
    assert str(outcome) == "ValueError: no tile fits 3 rows"
    assert isinstance(outcome.__cause__, ValueError)


# ---- threads, forks, ends ------------------------------------------------------------------


def test_four_threads_share_the_workers(workers, trouble, threads):
    backend = trouble()

    def compile_some(seed):
        limited = workers(workers=2)
        for n in range(10):
            sizes = [100 * seed + 10 * n + k for k in range(1, 4)]
            segments = [segment_of_one(size=size) for size in sizes]
            segments.append(segment_of_one("aten.exp.default") if n % 5 == 4 else PLAIN)
            *blobs, last = limited.compile(backend, segments)
            found = [backend.load(b)([torch.ones(s)])[0] for b, s in zip(blobs, sizes, strict=True)]
            assert [f.numel() for f in found] == sizes
            assert isinstance(last, CompileFailed if n % 5 == 4 else Blob)
        return True

    assert threads(*(lambda seed=seed: compile_some(seed) for seed in range(4))) == [True] * 4
    assert len(process.every_worker) <= 2


def test_a_forked_child_has_workers_of_its_own(workers, trouble):
    backend = trouble()
    (before,) = workers().compile(backend, [PLAIN])
    pid = os.fork()
    if pid == 0:
        (inside,) = workers().compile(backend, [segment_of_one(size=7)])
        ok = maker(inside) != maker(before) and is_running(maker(before))
        process.end_all()
        os._exit(0 if ok and is_running(maker(before)) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    (after,) = workers().compile(backend, [PLAIN])
    assert maker(after) == maker(before)


def test_a_fork_while_another_thread_compiles(workers, trouble):
    backend, stop = trouble(), threading.Event()

    def keep_compiling():
        while not stop.is_set():
            workers().compile(backend, [PLAIN])

    thread = threading.Thread(target=keep_compiling)
    thread.start()
    statuses = []
    for _ in range(10):
        pid = os.fork()
        if pid == 0:
            os._exit(len(process.every_worker))
        statuses.append(os.waitpid(pid, 0)[1])
    stop.set()
    thread.join()
    assert statuses == [0] * 10


PARENT = """
import os, sys, threading, time
import dovetail
from dovetail.compilers import process
from dovetail.compilers.remote import Subprocess
from tests.compilers.trouble import Trouble, segment_of_one

dovetail.register_backend(Trouble)
backend = dovetail.get_backend("trouble", how=sys.argv[1])
def compile():
    Subprocess().compile(backend, [segment_of_one()])
thread = threading.Thread(target=compile, daemon=True)
thread.start()
if sys.argv[1] == "nothing":
    thread.join()
while not process.every_worker or not all(w.ready for w in process.every_worker):
    time.sleep(0.01)
if sys.argv[2] == "late" and os.fork() == 0:
    time.sleep(600)
time.sleep(0.5)
print(*(w.process.pid for w in process.every_worker), flush=True)
if sys.argv[2] == "exit":
    sys.exit()
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("how", "then"),
    [
        ("hang_in_c", "die"),
        ("hang_in_child", "die"),
        ("nothing", "die"),
        ("hang_in_c", "late"),
        ("hang", "exit"),
        ("nothing", "exit"),
    ],
)
def test_a_worker_does_not_outlive_its_parent(how, then):
    import subprocess

    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", PARENT, how, then]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as parent:
        worker = int(parent.stdout.readline())
        below = children(worker)
        forked = [pid for pid in children(parent.pid) if pid != worker]
        assert len(below) == (how == "hang_in_child")
        assert len(forked) == (then == "late")
        if then != "exit":
            assert is_running(worker)
            parent.kill()
        parent.wait()
        try:
            for pid in [worker, *below]:
                wait_until(lambda pid=pid: not is_running(pid))
        finally:
            for pid in forked:
                os.kill(pid, signal.SIGKILL)


def test_an_idle_worker_is_ended(workers, trouble, monkeypatch):
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.4)
    (blob,) = workers().compile(trouble(), [PLAIN])
    wait_until(lambda: not process.every_worker)
    assert not Path(f"/proc/{maker(blob)}").exists()
    wait_until(lambda: "dovetail-idle-workers" not in [t.name for t in threading.enumerate()])


def test_a_worker_that_died_while_idle_is_replaced(workers, trouble):
    (blob,) = workers().compile(trouble(), [PLAIN])
    os.kill(maker(blob), signal.SIGKILL)
    wait_until(lambda: not is_running(maker(blob)))
    (again,) = workers().compile(trouble(), [PLAIN])
    assert maker(again) != maker(blob)


def test_a_worker_is_started_ahead(workers, trouble):
    limited = workers()
    for _ in range(2):
        limited.prepare([trouble()])
    (worker,) = process.every_worker
    (blob,) = limited.compile(trouble(), [PLAIN])
    assert maker(blob) == worker.process.pid


def test_a_worker_loads_the_code_generator_ahead(workers):
    workers().prepare([dovetail.get_backend("cpu")])
    (worker,) = process.every_worker
    maps = Path(f"/proc/{worker.process.pid}/maps")
    wait_until(lambda: "libllvmlite" in maps.read_text())


def test_trouble_ahead_is_told_when_it_matters(workers, trouble):
    limited = workers()
    backends = [trouble(ahead="refuse"), trouble(ahead="segfault")]
    limited.prepare(backends[:1])
    (blob,) = limited.compile(backends[0], [PLAIN])
    assert isinstance(blob, Blob)
    process.end_all()
    limited.prepare(backends)
    wait_until(lambda: not children(os.getpid()) or all(w.exited() for w in process.every_worker))
    (blob,) = limited.compile(backends[1], [PLAIN])
    assert isinstance(blob, Blob)


@pytest.mark.parametrize("debug", [True, False])
def test_a_worker_verifies_where_its_parent_does(workers, trouble, debug):
    with verifying(debug):
        (outcome,) = workers().compile(trouble(how="refuse_to_verify"), [PLAIN])
    assert str(outcome) == f"ValueError: {'to verify' if debug else 'not to verify'}"


def test_what_verification_finds_in_a_worker(workers, trouble):
    backend = trouble(how="go_wrong")
    with verifying():
        (outcome,) = workers().compile(backend, [PLAIN])
        with pytest.raises(VerificationFailed) as here:
            backend.compile(PLAIN)
    assert isinstance(outcome, VerificationFailed)
    assert str(outcome) == str(here.value)
    assert outcome.stage == "schedule"
    assert process.every_worker
