"""Compiling while the program runs: right results before, during and after the switch."""

import gc
import os
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

from dovetail import cache, history
from dovetail.backend import Support
from dovetail.backends.aten import AtenBackend
from dovetail.compilers.background import Background, background
from tests.differential import needs_code


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        return self.down(self.norm(nn.functional.gelu(self.up(x))))


class Held(AtenBackend):
    """Compiles when the test says so; until then calls run uncompiled."""

    name = "held"
    gate = threading.Event()
    compiled = 0
    ran = 0
    collects = None

    def supports(self, call):
        return Support.yes()

    def compile(self, segment):
        assert self.gate.wait(60)
        type(self).compiled += 1
        type(self).collects = gc.isenabled()
        return super().compile(segment)

    def load(self, blob):
        run = super().load(blob)

        def counted(inputs):
            type(self).ran += 1
            return run(inputs)

        return counted


@pytest.fixture
def held():
    Held.gate.clear()
    Held.compiled = Held.ran = 0
    yield Held()
    Held.gate.set()
    assert background.wait(60)


def compiled(fn, held, **options):
    chosen = {"backends": [held, "aten"], "background": True, **options}
    return torch.compile(fn, backend="dovetail", options=chosen)


def test_calls_run_uncompiled_until_there_is_code(held):
    x = torch.randn(5)
    call = compiled(lambda x: x.sin() + 1, held)
    torch.testing.assert_close(call(x), x.sin() + 1)
    assert (Held.compiled, Held.ran) == (0, 0)
    held.gate.set()
    assert background.wait(60)
    torch.testing.assert_close(call(x), x.sin() + 1)
    assert (Held.compiled, Held.ran) == (1, 1)
    assert [s.backend for s in history.recent()[-1].graphs[0].segments] == ["held"]


def test_garbage_is_collected_while_it_compiles(held):
    compiled(lambda x: x.sin() + 1, held)(torch.randn(5))
    Held.gate.set()
    assert background.wait(60)
    assert Held.collects


def test_four_threads_while_it_compiles():
    """1,000 calls from four threads; the switch comes somewhere among them."""
    model, x = Block().eval(), torch.randn(3, 8)
    with torch.no_grad():
        expected = model(x)
        call = torch.compile(model, backend="cpu", options={"background": True})
        call(x)  # Dynamo's own trace
    wrong = []

    def run():
        with torch.no_grad():
            results = [call(x) for _ in range(250)]
        wrong.extend(r for r in results if not torch.allclose(r, expected, atol=1e-6))

    threads = [threading.Thread(target=run) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong
    assert background.wait(60)


@pytest.mark.parametrize("options", [{"background": True}, {"progressive": True}], ids=str)
def test_training_goes_through_the_switch(options):
    torch.manual_seed(0)
    model, other = Block(), Block()
    other.load_state_dict(model.state_dict())
    call = torch.compile(model, backend="cpu", options=options)
    x = torch.randn(3, 8)
    for step in range(6):
        for each, fn in ((model, call), (other, other)):
            each.zero_grad()
            fn(x).square().sum().backward()
            with torch.no_grad():
                for p in each.parameters():
                    p -= 0.01 * p.grad
        if step == 2:
            assert background.wait(60)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("options", [{"background": True}, {"progressive": True}], ids=str)
def test_frozen_with_sizes_that_vary(options):
    model = Block().eval()
    with torch.no_grad():
        chosen = {"freeze": True, **options}
        call = torch.compile(model, backend="cpu", dynamic=True, options=chosen)
        for rows in (3, 5):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(call(x), model(x))
        assert background.wait(60)
        for p in model.parameters():
            p.mul_(0.5)
        for rows in (7, 4):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(call(x), model(x))


def test_what_is_compiled_in_the_background_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("DOVETAIL_CACHE", "1")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))
    cache.configure()
    x = torch.randn(5)
    for state in ("miss", "hit"):
        torch.compiler.reset()
        history.clear()
        call = torch.compile(lambda x: x.sin() * 3, backend="cpu", options={"background": True})
        torch.testing.assert_close(call(x), x.sin() * 3)
        assert background.wait(60)
        assert history.recent()[-1].cache[0].state == state
    monkeypatch.setenv("DOVETAIL_CACHE", "0")
    cache.configure()


def test_progressive_code_is_generated_twice(monkeypatch):
    from dovetail.codegen.llvm import module

    efforts = []
    original = module.assemble
    monkeypatch.setattr(
        module,
        "assemble",
        lambda text, target, effort: efforts.append(effort) or original(text, target, effort),
    )
    x = torch.randn(7)
    call = torch.compile(lambda x: x.sin() * 4, backend="cpu", options={"progressive": True})
    torch.testing.assert_close(call(x), x.sin() * 4)
    assert background.wait(60)
    torch.testing.assert_close(call(x), x.sin() * 4)
    assert efforts == [0, 1]


class Broken(Held):
    name = "broken_later"

    def compile(self, segment):
        super().compile(segment)
        raise RuntimeError("no licence")


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.filterwarnings("ignore::dovetail.errors.FallbackWarning")
def test_a_compiler_that_fails_in_the_background(held, strict):
    x = torch.randn(5)
    call = compiled(lambda x: x.cos() + 1, Broken(), strict=strict)
    torch.testing.assert_close(call(x), x.cos() + 1)
    held.gate.set()
    assert background.wait(60)
    if strict:
        with pytest.raises(RuntimeError, match="no licence"):
            call(x)
    else:
        torch.testing.assert_close(call(x), x.cos() + 1)


def test_a_forked_child_goes_on():
    """What was not done when a process was forked is done in the child too."""
    here, gate = Background(), threading.Event()
    done = []
    here.submit(gate.wait)
    here.submit(lambda: done.append(1))
    child = os.fork()
    if child == 0:
        gate.set()
        here.after_fork()
        os._exit(0 if here.wait(30) and done == [1] else 1)
    assert os.waitpid(child, 0)[1] == 0
    gate.set()
    assert here.wait(30)


@needs_code
def test_a_program_that_ends_while_it_compiles():
    """It ends, at once or after the job that runs, and without a word."""
    program = """
import torch
call = torch.compile(lambda x: x.sin() + 1, backend="cpu", options={"background": True})
print(call(torch.zeros(3)).tolist())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert ended.stdout.strip() == "[1.0, 1.0, 1.0]"
    assert not ended.stderr
