"""All that one short turn on a GPU can tell: what is right, and where the time goes.

``python benchmarks/gpu_session.py [--seconds 200] [--rehearse]``. Every model, kernel and check is
prepared in a process of its own, all at one time; when they are ready, or time runs short, they
are measured one after the other: models beside Inductor, what their kernels take beside
Inductor's, kernels, and at last random programs against eager for as long as is left. Each line is
printed when it is known; what fails says so by itself and stops nothing else. ``--rehearse`` goes
through the same on a processor, with a small model in the place of each.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODELS = ("resnet18", "gpt", "bert", "resnet18_training", "gpt_training")
PROFILED = ("gpt", "bert", "resnet18", "resnet18_training")
KERNELS = ("layer_norm_backward", "rms_norm_backward", "softmax_131072", "softmax_257")
SCHEDULED = ("layer_norm_backward", "softmax_131072", "softmax_257")  # with other schedules
DTYPES = ("bfloat16", "float32")
RIVALS = ("cuda", "inductor")
PREPARED = 0.45  # of the time, after which what is ready is measured without the rest
ROWS = 16  # kernels of a model that are shown
FOLDER = Path(tempfile.mkdtemp(prefix="gpu_session_"))


@dataclass
class Worker:
    """A process that prepares something, then answers a line of JSON to each line."""

    name: str
    arguments: Sequence[str]
    process: Any = None
    lines: queue.Queue[str] = field(default_factory=queue.Queue)
    ready: dict[str, Any] | None = None
    held: bool = False

    def start(self, env: dict[str, str], nice: int) -> None:
        """Begin to prepare."""
        self.log = (FOLDER / f"{self.name.replace(' ', '_')}.log").open("w")
        command = ["nice", "-n", str(nice), sys.executable, __file__, *self.arguments]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, **env, **_caches(self.name)},
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.put(line)
        self.lines.put("")

    def wait(self, until: float) -> dict[str, Any] | None:
        """The next answer; None where there is none in time, or no more."""
        try:
            line = self.lines.get(timeout=max(until - time.time(), 0.01))
        except queue.Empty:
            return None
        found: dict[str, Any] = json.loads(line) if line else {"failed": self.tail()}
        return found

    def ask(self, text: str, seconds: float) -> dict[str, Any]:
        """The answer to a line."""
        try:
            self.process.stdin.write(f"{text}\n")
            self.process.stdin.flush()
        except OSError:
            return {"failed": self.tail()}
        return self.wait(time.time() + seconds) or {"failed": f"no answer in {seconds:.0f} s"}

    def tail(self) -> str:
        """The end of what it said when it failed."""
        self.log.flush()
        return Path(self.log.name).read_text()[-1500:]

    def hold(self, sign: signal.Signals) -> None:
        """Hold it while others are measured, or let it go on."""
        self.held = sign is signal.SIGSTOP
        os.kill(self.process.pid, sign)

    def stop(self) -> None:
        """End it, whatever it does."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()


def _caches(name: str) -> dict[str, str]:
    kinds = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    kinds["DOVETAIL_CACHE_DIR"] = "dovetail"
    place = name.replace(" ", "_")
    return {variable: str(FOLDER / place / kind) for variable, kind in kinds.items()}


def say(text: str) -> None:
    """A line, with the seconds since the start."""
    print(f"[{time.time() - STARTED:5.0f}] {text}", flush=True)


STARTED = time.time()


# ---- the processes' own part -------------------------------------------------------------------


def answer(**found: Any) -> None:
    """A line of JSON for who started this process."""
    print(json.dumps(found), flush=True)


def case_of(name: str, rehearse: bool) -> tuple[Any, tuple[Any, ...]]:
    """A callable and its inputs."""
    import torch

    from dovetail.bench import gpu_cases

    if not rehearse:
        return gpu_cases.make(name)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
    return model, (torch.randn(16, 64),)


def model_worker(case: str, rival: str, rehearse: bool) -> None:
    """Compile a model, then time it or say what its kernels take."""
    import torch

    from dovetail import registry
    from dovetail.bench import gpu_cases, rivals
    from dovetail.bench.worker import step_of

    registry.list_backends()
    fn, inputs = case_of(case, rehearse)
    trains = gpu_cases.TRAINING in case
    with torch.set_grad_enabled(trains):
        began = time.perf_counter()
        run = rivals.prepare(rival, fn, inputs, 0)
        call = step_of(run, fn) if trains else run
        result = call(*inputs)
        _synchronize()
        answer(
            ready=time.perf_counter() - began, error=_error(result, fn, inputs, trains, rehearse)
        )
        for line in sys.stdin:
            word, _, number = line.strip().partition(" ")
            if word == "time":
                times = sorted(_call_times(call, inputs, float(number)))
                answer(best=times[0], median=times[len(times) // 2], memory=_memory())
            else:
                answer(kernels=_kernels(call, inputs))


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _memory() -> float:
    import torch

    return torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0


def _error(result: Any, fn: Any, inputs: Any, trains: bool, rehearse: bool) -> float | None:
    from dovetail.bench import gpu_worker

    if trains:
        return None
    try:
        found = gpu_worker.error_of(result, fn, inputs, trains) if not rehearse else 0.0
    except Exception as problem:  # without a reference it can be timed all the same
        print(f"no reference: {problem!r:.300}", file=sys.stderr)
        return None
    return found if found == found else None


def _call_times(call: Any, inputs: Any, seconds: float) -> list[float]:
    times = []
    for _ in range(3):
        call(*inputs)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        _synchronize()
        began = time.perf_counter()
        for _ in range(10):
            call(*inputs)
        _synchronize()
        times.append((time.perf_counter() - began) / 10)
    return times


def _kernels(call: Any, inputs: Any) -> list[tuple[str, float, float]]:
    """Kernels with their microseconds and launches a call."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_gpu, calls = torch.cuda.is_available(), 5
    kind = torch.autograd.DeviceType.CUDA if on_gpu else torch.autograd.DeviceType.CPU
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as found:
        for _ in range(calls):
            call(*inputs)
        _synchronize()
    sums: dict[str, tuple[float, float]] = {}
    for event in found.events():
        if event.device_type == kind:
            taken = event.device_time if on_gpu else event.cpu_time
            before, count = sums.get(event.name, (0.0, 0.0))
            sums[event.name] = before + taken / calls, count + 1 / calls
    rows = [(name[:90], *each) for name, each in sums.items()]
    return sorted(rows, key=lambda row: -row[1])


def kernel_worker(case: str, rehearse: bool) -> None:
    """Compile one kernel by ours and by Inductor, then time both on the device."""
    import torch

    from dovetail import registry
    from dovetail.bench import gpu_worker

    registry.list_backends()
    fn, inputs = case_of(case, rehearse)
    runs, errors = [], []
    with torch.no_grad():
        for rival in ("cpu", "aten") if rehearse else RIVALS:
            torch.compiler.reset()
            runs.append(torch.compile(fn, backend=rival, dynamic=False))
            result = runs[-1](*inputs)
            errors.append(_error(result, fn, inputs, False, rehearse))
            del result
        answer(ready=0.0, error=errors)
        timed = _call_times if rehearse else gpu_worker.device_times
        for line in sys.stdin:
            seconds = float(line.split()[1])
            answer(best=[min(timed(run, inputs, seconds)) for run in runs])


# ---- the checks --------------------------------------------------------------------------------


def check_worker(name: str, rehearse: bool) -> None:
    """Run a check; what is wrong with it, a line each."""
    from dovetail import registry

    registry.list_backends()
    problems = []
    for problem in CHECKS[name]("cpu" if rehearse else "cuda"):
        print(problem, file=sys.stderr, flush=True)  # in the log, should it not end in time
        problems.append(problem)
    answer(ready=0.0, problems=problems)


def _compared(what: str, fn: Any, inputs: Sequence[Any], device: str, times: float = 2.0) -> str:
    """What is wrong with ours: further from float64 than so many times eager's error."""
    import torch

    torch.compiler.reset()
    results = {}
    for kind in ("exact", "eager", "ours"):
        own = [x.detach().clone() for x in inputs]
        if kind == "exact":
            own = [x.double() if x.is_floating_point() else x for x in own]
        for x in own:
            x.requires_grad_(x.is_floating_point())
        run = torch.compile(fn, backend=device, dynamic=False) if kind == "ours" else fn
        made = run(*own)
        (made.double().square().sum() / 64).backward()  # float16 holds all sums of it
        results[kind] = [made.detach(), *(x.grad for x in own if x.grad is not None)]
    for number, (exact, eager, ours) in enumerate(zip(*results.values(), strict=True)):
        wanted = exact.double()
        error, allowed = ((each.double() - wanted).norm().item() for each in (ours, eager))
        least = 1e-6 if ours.dtype == torch.float32 else 4e-3
        if not error <= times * allowed + least * wanted.norm().item():
            return f"{what}: result {number} is off by {error:.2e}, eager's by {allowed:.2e}"
    return ""


def check_norm_backward(device: str) -> Iterator[str]:
    """Gradients of layer and RMS norms, odd sizes, all types."""
    import torch
    from torch.nn import functional

    def layer(x: Any, w: Any, b: Any) -> Any:
        return functional.layer_norm(x, w.shape, w, b)

    def rms(x: Any, w: Any, b: Any) -> Any:
        y = x.float() if x.dtype != torch.float64 else x
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w + b

    for rows, columns in (
        (4096, 1024),
        (1000, 769),
        (17, 4096),
        (20000, 257),
        (3, 5),
        (8192, 4096),
    ):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            x = torch.randn(rows, columns, device=device).to(dtype)
            w = torch.randn(columns, device=device).to(dtype)
            for fn in (layer, rms):
                what = f"{fn.__name__} norm backward {rows}x{columns} {dtype}"
                problem = _compared(what, fn, (x, w, w.flip(0)), device)
                yield from [problem] if problem else []


def check_long_softmax(device: str) -> Iterator[str]:
    """Softmax of long and of odd rows, with a mask."""
    import torch

    for rows, columns in ((64, 131072), (8, 131073), (3, 200000), (9000, 257), (1000, 1)):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(rows, columns, device=device).to(dtype)
            mask = torch.rand(rows, columns, device=device) < 0.3

            def fn(x: Any, mask: Any) -> Any:
                return x.masked_fill(mask, float("-inf")).log_softmax(-1).exp()

            what = f"softmax {rows}x{columns} {dtype}"
            problem = _compared(what, fn, (x, mask & (columns > 1)), device)
            yield from [problem] if problem else []


def check_channels_last_training(device: str) -> Iterator[str]:
    """A training step of convolutions, norms and pooling."""
    import torch
    from torch import nn

    # The library rounds factors for some layouts and not for others, where it may.
    torch.backends.cudnn.allow_tf32 = False
    for dtype in (torch.bfloat16, torch.float32):
        torch.manual_seed(0)
        model = nn.Sequential(
            *(nn.Conv2d(16, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(64, 64, 3, stride=2, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
            *(nn.Conv2d(64, 64, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
        ).to(device, dtype)
        x = torch.randn(32, 16, 56, 56, device=device).to(dtype)
        yield from _steps(model, x, device)


def _steps(model: Any, x: Any, device: str) -> Iterator[str]:
    import copy

    import torch

    found = {}
    for kind in ("exact", "eager", "ours"):
        torch.compiler.reset()
        own, given = copy.deepcopy(model), x
        if kind == "exact":
            own, given = own.double(), x.double()
        run = torch.compile(own, backend=device, dynamic=False) if kind == "ours" else own
        for _ in range(2):
            own.zero_grad()
            run(given).double().square().mean().backward()
        found[kind] = {name: p.grad for name, p in own.named_parameters()}
    for name, exact in found["exact"].items():
        error, allowed = ((found[k][name].double() - exact).norm() for k in ("ours", "eager"))
        if not error <= 2 * allowed + 1e-4 * exact.norm():
            off = f"is off by {error:.2e}, eager's by {allowed:.2e}"
            yield f"the gradient of {name} in {x.dtype} {off}"


def check_files(device: str) -> Iterator[str]:
    """A model saved, and run in a process that finds no Triton."""
    import torch

    import dovetail

    model = torch.nn.Sequential(
        torch.nn.LayerNorm(256), torch.nn.Linear(256, 512), torch.nn.GELU()
    ).to(device)
    given = [torch.randn(n, 256, device=device) for n in (64, 100, 3)]
    rows = torch.export.Dim("rows", min=2, max=4096)
    artifact = dovetail.export(model, (given[0],), dynamic_shapes=({0: rows},), backend=device)
    path, tensors = str(FOLDER / "model.dvt"), str(FOLDER / "tensors")
    artifact.save(path)
    torch.save((given, [artifact(x) for x in given]), tensors)
    (FOLDER / "without.py").write_text(WITHOUT_TRITON)
    command = [sys.executable, str(FOLDER / "without.py"), path, tensors]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        yield f"without Triton: {done.stderr[-1200:]}"
    elif device not in done.stdout:
        yield f"without Triton it ran on {done.stdout.strip()}"


CHECKS: dict[str, Callable[[str], Iterator[str]]] = {
    "files": check_files,
    "norm_backward": check_norm_backward,
    "long_softmax": check_long_softmax,
    "channels_last_training": check_channels_last_training,
}
WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch, dovetail
run = dovetail.load(sys.argv[1], trust=True)
for x, y in zip(*torch.load(sys.argv[2])):
    torch.testing.assert_close(run(x), y, rtol=1e-5, atol=1e-5)
linked = getattr(run, "linked", None)
print([each.backend.name for each in linked.parts[-1].segments] if linked else "cpu")
"""


# ---- the parent --------------------------------------------------------------------------------


def start_all(rehearse: bool) -> dict[str, list[Worker]]:
    """Every process, the most wanted first."""
    extra = ["--rehearse"] if rehearse else []
    groups: dict[str, list[Worker]] = {"models": [], "checks": [], "kernels": []}
    rivals = ("cpu", "aten") if rehearse else RIVALS
    for model in MODELS[: 2 if rehearse else None]:
        for rival in rivals:
            arguments = ["--model", f"{model}-bfloat16", rival, *extra]
            groups["models"].append(Worker(f"{model} {rival}", arguments))
    for name in CHECKS:
        groups["checks"].append(Worker(f"check {name}", ["--check", name, *extra]))
    for name in KERNELS[: 1 if rehearse else None]:
        for dtype in DTYPES:
            case = f"{name}-{dtype}"
            groups["kernels"].append(Worker(case, ["--kernel", case, *extra]))
    for (kind, workers), nice in zip(groups.items(), (0, 5, 10), strict=True):
        threads = {"TORCHINDUCTOR_COMPILE_THREADS": "4" if kind == "models" else "1"}
        for worker in workers:
            worker.start({**threads, "OMP_NUM_THREADS": "2"}, nice)
    return groups


def prepare_all(groups: dict[str, list[Worker]], until: float) -> None:
    """Wait for all, and tell of each when it is ready or has failed."""
    for workers in groups.values():
        for worker in workers:
            found = worker.wait(until)
            if found is None:
                say(f"NOT READY {worker.name}: {worker.tail()[-300:]}")
                worker.hold(signal.SIGSTOP)
            elif "failed" in found:
                say(f"FAILED {worker.name}: {found['failed']}")
            else:
                worker.ready = found
    for worker in groups["checks"]:
        report_check(worker)


def finish_checks(workers: Sequence[Worker], until: float) -> None:
    """Let checks go on that were not done before others were measured."""
    late = [worker for worker in workers if worker.held]
    for worker in late:
        worker.hold(signal.SIGCONT)
    for worker in late:
        found = worker.wait(until) or {"failed": f"not done in time: {worker.tail()}"}
        if "failed" in found:
            say(f"FAILED {worker.name}: {found['failed']}")
        else:
            worker.ready = found
            report_check(worker)


def report_check(worker: Worker) -> None:
    """What a check found."""
    if worker.ready is None:
        return
    problems = worker.ready["problems"]
    say(f"{'WRONG' if problems else 'right'} {worker.name}")
    for problem in problems:
        say(f"    {problem}")


def measure_models(workers: Sequence[Worker], until: float) -> None:
    """Each model by both rivals in turns; the least of all turns."""
    for ours, theirs in zip(workers[::2], workers[1::2], strict=True):
        best: dict[str, list[dict[str, Any]]] = {ours.name: [], theirs.name: []}
        for _ in range(2):
            for worker in (ours, theirs):
                if worker.ready is not None and time.time() < until:
                    best[worker.name].append(worker.ask("time 0.5", 20))
        say(_model_line(ours, theirs, best))


def _model_line(ours: Worker, theirs: Worker, found: dict[str, list[dict[str, Any]]]) -> str:
    texts, times = [], []
    for worker in (ours, theirs):
        good = [each for each in found[worker.name] if "best" in each]
        if not good:
            problem = next((e["failed"] for e in found[worker.name] if "failed" in e), "not ready")
            texts.append(f"{worker.name}: {problem[-300:]}")
            continue
        times.append(min(each["best"] for each in good))
        ready = worker.ready or {}
        texts.append(
            f"{worker.name} {times[-1] * 1e3:.3f} ms (first {ready['ready']:.1f} s beside others, "
            f"{good[-1]['memory']:.0f} MB, error {ready['error']})"
        )
    ratio = f"RATIO {times[0] / times[1]:.3f}  " if len(times) == 2 else ""
    return ratio + "; ".join(texts)


def measure_kernels(workers: Sequence[Worker], until: float) -> None:
    """Each kernel by both rivals."""
    for worker in workers:
        if worker.ready is None or time.time() > until:
            continue
        found = worker.ask("time 0.2", 20)
        if "best" in found:
            ours, theirs = found["best"]
            errors = worker.ready["error"]
            say(f"RATIO {ours / theirs:.3f}  {worker.name} {ours * 1e3:.4f} ms, Inductor "
                f"{theirs * 1e3:.4f} ms, errors {errors}")  # fmt: skip
        else:
            say(f"FAILED {worker.name}: {found['failed']}")


def show_profiles(workers: Sequence[Worker], until: float) -> None:
    """Where the time of models goes, ours beside Inductor's."""
    for worker in workers:
        name = worker.name.rpartition(" ")[0]
        if name not in PROFILED or worker.ready is None or time.time() > until:
            continue
        found = worker.ask("profile", 30)
        if "kernels" not in found:
            say(f"FAILED profile of {worker.name}: {found.get('failed')}")
            continue
        rows = found["kernels"]
        total, launches = sum(row[1] for row in rows), sum(row[2] for row in rows)
        say(f"PROFILE {worker.name}: {total:.0f} µs on the device, {launches:.0f} launches a call")
        for kernel, taken, count in rows[:ROWS]:
            print(f"  {taken:9.1f} {count:6.1f}  {kernel}", flush=True)


def try_schedules(seconds: float) -> None:
    """What other schedules of the kernels in question take, as far as there is time."""
    command = [sys.executable, str(Path(__file__).parent / "gpu_schedules.py")]
    command += ["--dtypes", "bfloat16", *SCHEDULED]
    if seconds < 15:
        say("no time is left for other schedules")
        return
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    late = threading.Timer(seconds, process.kill)
    late.start()
    assert process.stdout is not None
    for line in process.stdout:
        say(f"schedules {line.rstrip()[:400]}")
    late.cancel()


def sample_random(seconds: float) -> None:
    """Random programs against eager and float64."""
    if seconds < 20:
        say("no time is left for random programs")
        return
    command = [sys.executable, "-m", "tests.gpu_sweep", "random", "5000", "5400"]
    command += ["--processes", "10", "--seconds", str(round(seconds - 15))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        say(f"{done.stdout[-1500:].strip()} {done.stderr[-500:] if done.returncode else ''}")
    except subprocess.TimeoutExpired as late:
        say(f"random programs: not done in time; so far {str(late.stdout or '')[-500:]}")


def session(seconds: float, rehearse: bool) -> None:
    """All of it."""
    end = STARTED + seconds
    groups = start_all(rehearse)
    try:
        prepare_all(groups, STARTED + PREPARED * seconds)
        say("all that is ready is measured now, one after the other")
        measure_models(groups["models"], end - 60)
        measure_kernels(groups["kernels"], end - 60)
        show_profiles(groups["models"], end - 60)
        finish_checks(groups["checks"], end - 50)
    finally:
        for workers in groups.values():
            for worker in workers:
                worker.stop()
    if not rehearse:
        try_schedules(min(40.0, end - time.time() - 25))
        sample_random(end - time.time())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--model", nargs=2)
    parser.add_argument("--kernel")
    parser.add_argument("--check")
    given = parser.parse_args()
    if given.model:
        model_worker(*given.model, given.rehearse)
    elif given.kernel:
        kernel_worker(given.kernel, given.rehearse)
    elif given.check:
        check_worker(given.check, given.rehearse)
    else:
        session(given.seconds, given.rehearse)


if __name__ == "__main__":
    main()
