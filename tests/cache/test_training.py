"""A training graph found in the cache before AOTAutograd trains as one that was just compiled.

Each case runs compiled anew, then from the cache, and eagerly; ``test_another_process`` has the
real thing.
"""

import copy
import json
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

from dovetail import cache, errors, history
from dovetail.cache.key import Key
from dovetail.cache.training import MAGIC, TrainingPair, decode_pair, encode_pair
from dovetail.capture import aot

F = nn.functional


@pytest.fixture(autouse=True)
def _from_nothing():
    torch.compiler.reset()
    history.clear()


def said():
    return [(v.graph, v.state) for c in history.recent() for v in c.cache]


MISSED = [("dynamo", "miss"), ("forward", "miss"), ("backward", "miss")]
FOUND = [("forward", "hit"), ("backward", "hit"), ("dynamo", "hit")]


def three_ways(step, fn, *, backend="aten", found=FOUND, **keywords):
    """What ``step`` makes of a function compiled anew, from the cache, and as it is."""
    results = []
    for said_then in (None, found):
        torch.compiler.reset()
        history.clear()
        compiled = torch.compile(fn, backend=backend, **keywords)
        results.append(step(compiled))
        if said_then is not None:
            assert said() == said_then, [v for c in history.recent() for v in c.cache]
    results.append(step(fn))
    return results


def same(results, **tolerance):
    anew, warm, eager = results
    for each, other, expected in zip(anew, warm, eager, strict=True):
        if not isinstance(expected, torch.Tensor):
            assert each == other == expected
            continue
        assert torch.equal(each, other)
        assert each.stride() == other.stride()
        torch.testing.assert_close(each, expected, **tolerance)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(9, 6), nn.LayerNorm(6), nn.Linear(6, 9)

    def forward(self, words):
        x = self.norm(self.words(words))
        return self.head(F.gelu(x)).view(-1, 9)


MODELS = {
    "normed": (Normed, lambda: torch.randn(2, 3, 6, 6, dtype=torch.float64)),
    "words": (Words, lambda: torch.randint(0, 9, (2, 5))),
}


@pytest.mark.parametrize("backend", ["aten", "cpu"])
@pytest.mark.parametrize("name", MODELS)
def test_steps_of_an_optimizer(name, backend):
    make, batch = MODELS[name]
    torch.manual_seed(0)
    original, x = make().double(), batch()
    original.requires_grad_(True)
    model = copy.deepcopy(original)

    def step(call):
        torch.manual_seed(3)  # for what dropout draws
        model.load_state_dict(original.state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = call(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        held = (*model.parameters(), *model.buffers())
        return [*losses, *(t.detach().clone() for t in held)]

    same(three_ways(step, model, backend=backend))


def test_nothing_of_autograd_is_traced(monkeypatch):
    model, x = Words(), torch.randint(0, 9, (2, 5))
    ran = []
    original = aot.Capture.run
    monkeypatch.setattr(aot.Capture, "run", lambda *args: ran.append(1) or original(*args))
    three_ways(lambda call: call(x).sum().backward(), model)
    assert len(ran) == 1


def test_what_is_said_when_nothing_is_stored():
    model, x = Words(), torch.randint(0, 9, (2, 5))
    torch.compile(model, backend="aten")(x).sum().backward()
    assert said() == MISSED


def test_weights_that_do_not_train():
    model = Words().double()
    model.words.weight.requires_grad_(False)
    model.head.bias.requires_grad_(False)
    words = torch.randint(0, 9, (2, 5))

    def step(call):
        model.zero_grad()
        call(words).square().sum().backward()
        return [p.grad for p in model.parameters()]

    same(three_ways(step, model))


def several(x, y):
    kept = (x * y).sin()
    return kept, (x + 1).exp(), x.argmax(), (x.detach() * 2)


@pytest.mark.parametrize("which", [[0], [1], [0, 1]])
def test_gradients_of_some_outputs(which):
    def step(call):
        x, y = (torch.arange(6.0).double().requires_grad_() for _ in range(2))
        results = call(x, y)
        sum(results[n].sum() for n in which).backward()
        flags = [r.requires_grad for r in results]
        # eager leaves what has no path alone, where AOTAutograd gives zeros
        grads = [torch.zeros(6).double() if t.grad is None else t.grad for t in (x, y)]
        return [*flags, *(r.detach() for r in results), *grads]

    same(three_ways(step, several))


def test_an_input_without_a_gradient_is_not_followed():
    def fn(x, y):
        return x * y.detach()

    def step(call):
        x, leaf = (torch.ones(3).double().requires_grad_() for _ in range(2))
        y = leaf.exp()
        y.sum().backward()  # what computed y is gone: nobody may go through it again
        call(x, y).sum().backward()
        return [x.grad, leaf.grad]

    same(three_ways(step, fn))


def test_backward_twice():
    def step(call):
        x = torch.arange(5.0).double().requires_grad_()
        result = call(x)
        result.sum().backward(retain_graph=True)
        result.sum().backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            result.sum().backward()
        return [x.grad]

    same(three_ways(step, lambda x: x.sin() * x))


def test_a_kept_graph_where_nobody_kept_it_when_it_was_stored():
    def fn(x):
        return x.sin().exp() * x

    def once(call):
        x = torch.arange(5.0).double().requires_grad_()
        call(x).sum().backward()
        return [x.grad]

    def twice(call):
        x = torch.arange(5.0).double().requires_grad_()
        result = call(x)
        grads = [torch.autograd.grad(result.sum(), x, retain_graph=True)[0] for _ in range(3)]
        return [*grads, *once(call)]

    same(three_ways(once, fn))
    torch.compiler.reset()
    history.clear()
    for mine, expected in zip(twice(torch.compile(fn, backend="aten")), twice(fn), strict=True):
        torch.testing.assert_close(mine, expected)
    assert said() == FOUND


def test_a_gradient_of_a_gradient_is_refused_alike():
    def step(call):
        x = torch.arange(5.0).requires_grad_()
        try:
            (grad,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
            grad.sum().backward()
        except RuntimeError as error:
            return [str(error)]
        return []

    anew, warm, eager = three_ways(step, lambda x: x.sin() * x)
    assert anew == warm
    assert "does not currently support double backward" in warm[0]
    assert eager == []


@pytest.mark.parametrize("layout", ["expanded", "transposed", "channels_last", "strided"])
def test_gradients_laid_out_otherwise(layout):
    ways = {
        "expanded": lambda t: torch.ones((), dtype=t.dtype).expand(t.shape),
        "transposed": lambda t: torch.randn(t.shape[::-1], dtype=t.dtype).permute(3, 2, 1, 0),
        "channels_last": lambda t: torch.randn_like(t).to(memory_format=torch.channels_last),
        "strided": lambda t: torch.randn(*t.shape, 2, dtype=t.dtype)[..., 0],
    }

    def step(call):
        torch.manual_seed(0)
        x = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
        result = call(x)
        result.backward(ways[layout](result.detach()))
        return [result.detach(), x.grad]

    same(three_ways(step, lambda x: x.sin() * x))


def test_a_saved_tensor_that_is_written_to():
    def step(call):
        x = torch.arange(5.0).requires_grad_()
        y = torch.arange(5.0)
        result = call(x, y)
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()
        return []

    def prepared(call):
        x = torch.arange(5.0).requires_grad_()
        call(x, torch.arange(5.0)).sum().backward()
        return step(call)

    same(three_ways(prepared, lambda x, y: x * y))


def test_hooks_on_saved_tensors_that_come_later():
    packed = []

    def step(call):
        x = torch.arange(5.0).double().requires_grad_()
        call(x).sum().backward()  # compiles
        x.grad = None
        packed.clear()

        def pack(t):
            packed.append(1)
            return t * 1

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            result = call(x)
        result.sum().backward()
        return [x.grad, bool(packed)]

    same(three_ways(step, lambda x: x.sin() * x))


def test_grad_mode():
    model, x = Words().double(), torch.randint(0, 9, (2, 5))

    def step(call):
        model.zero_grad()
        call(x).sum().backward()
        with torch.no_grad():
            without = call(x)
        model.zero_grad()
        result = call(x)
        result.sum().backward()
        grads = [p.grad for p in model.parameters()]
        return [without, without.requires_grad, result.detach(), result.requires_grad, *grads]

    same(three_ways(step, model, found=[*FOUND, ("dynamo", "hit")]))


def test_hooks_on_parameters_and_on_results():
    model, x = Words().double(), torch.randint(0, 9, (2, 5))

    def step(call):
        model.zero_grad()
        seen = []
        handle = model.head.weight.register_post_accumulate_grad_hook(lambda p: seen.append("p"))
        result = call(x)
        result.register_hook(lambda grad: grad * 2)
        result.sum().backward()
        handle.remove()
        return [tuple(seen), *(p.grad for p in model.parameters())]

    same(three_ways(step, model))


def test_threads():
    model, x = Normed().double().eval(), torch.randn(2, 3, 6, 6, dtype=torch.float64)

    def step(call):
        call(x).sum().backward()
        results = [None] * 4

        def work(n):
            given = (x * (n + 1)).requires_grad_()
            for _ in range(5):
                (results[n],) = torch.autograd.grad(call(given).square().sum(), given)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    anew, warm, eager = three_ways(step, model, found=None)
    assert {state for _, state in said()} == {"hit"}  # by as many threads as came first
    for each, other, expected in zip(anew, warm, eager, strict=True):
        torch.testing.assert_close(each, expected)
        torch.testing.assert_close(other, expected)


def view_of_an_input(x):
    return x.view(-1), x * 2


def view_of_what_is_returned(x):
    y = x * 2
    return y, y.view(-1)


def writes_what_trains(x):
    y = x * 1
    y.mul_(2)
    x = x.clone()
    x.mul_(y)
    return x


@pytest.mark.parametrize("fn", [view_of_an_input, view_of_what_is_returned])
def test_aliases_are_left_to_autograd(fn):
    def step(call):
        x = torch.arange(6.0).double().requires_grad_()
        given = (x * 1).reshape(2, 3)
        results = call(given)
        sum(r.sum() for r in results).backward()
        return [x.grad, *(r.detach() for r in results), *(r._is_view() for r in results)]

    results = three_ways(
        step, fn, found=[("dynamo", "miss"), ("forward", "hit"), ("backward", "hit")]
    )
    same(results)


def test_writes_within_the_graph():
    def step(call):
        x = torch.arange(6.0).double().requires_grad_()
        result = call(x)
        result.sum().backward()
        return [x.grad, result.detach()]

    same(three_ways(step, writes_what_trains))


def test_a_write_to_an_input_that_trains_is_left_to_autograd():
    def fn(x):
        x.mul_(2)
        return x.sin()

    def step(call):
        leaf = torch.arange(6.0).double().requires_grad_()
        x = leaf * 1
        result = call(x)
        (result.sum() + x.sum()).backward()
        return [leaf.grad, result.detach(), x.detach()]

    missed = [("dynamo", "miss"), ("forward", "hit"), ("backward", "hit")]
    same(three_ways(step, fn, found=missed))


def varying(x):
    return x.softmax(0) * x, x.shape[0] * 2, x.detach().sum(1)


def varying_pooled(x):
    y = F.avg_pool1d(x[None], 2)[0]
    return F.pad(y, (1, 1)) * x.shape[1], y.flatten().sin()


def varying_weights(x):
    return (x @ WEIGHT).relu() @ WEIGHT.t() + x.mean(0), x.T.exp()


WEIGHT = torch.linspace(-1, 1, 12).double().reshape(4, 3).requires_grad_()


@pytest.mark.parametrize("backend", ["aten", "cpu"])
@pytest.mark.parametrize("fn", [varying, varying_pooled, varying_weights])
def test_sizes_that_vary(fn, backend):
    def step(call):
        found = []
        for rows in (6, 5, 8):
            WEIGHT.grad = None
            x = torch.arange(rows * 4.0).double().view(rows, 4).requires_grad_()
            results = call(x)
            sum(r.sum() for r in results if isinstance(r, torch.Tensor)).backward()
            found += [x.grad, *(r.detach() if isinstance(r, torch.Tensor) else r for r in results)]
            found += [] if WEIGHT.grad is None else [WEIGHT.grad]
        return found

    same(three_ways(step, fn, backend=backend, dynamic=True))


def test_sizes_that_come_to_vary():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh()).double()
    original = copy.deepcopy(model.state_dict())

    def step(call):
        model.load_state_dict(original)
        model.zero_grad()
        for rows in (3, 5, 8):
            call(torch.arange(rows * 4.0).double().view(rows, 4).sin()).sum().backward()
        return [*(p.grad for p in model.parameters()), *model.buffers()]

    same(three_ways(step, model, found=[*FOUND, *FOUND]))


def test_autocast_is_left_to_autograd():
    model, x = nn.Linear(4, 4), torch.randn(2, 4)

    def step(call):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = call(x)
        result.float().sum().backward()
        return [result.detach(), model.weight.grad]

    results = three_ways(step, model, found=[("forward", "hit"), ("backward", "hit")])
    same(results)


def test_compiled_autograd_is_told():
    def fn(x):
        return x.sin() * x

    def step(call):
        x = torch.arange(5.0).double().requires_grad_()
        call(x).sum().backward()
        return [x.grad]

    three_ways(step, fn)
    for early in (True, False):
        torch.compiler.reset()
        history.clear()
        x = torch.arange(5.0).double().requires_grad_()
        call = torch.compile(fn, backend="aten")
        with torch._dynamo.config.patch(compiled_autograd=early):
            call(x)
        assert (("dynamo", "hit") in said()) != early


# ---- what is stored ----


def train_once():
    torch.compiler.reset()
    history.clear()
    x = torch.arange(5.0).double().requires_grad_()
    torch.compile(lambda x: x.sin() * x, backend="aten")(x).sum().backward()
    y = torch.arange(5.0).double().requires_grad_()
    (y.sin() * y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    return said()


@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_a_graph_that_is_gone_is_compiled_again(stage, monkeypatch):
    assert train_once() == MISSED
    (digest,) = [v.key for c in history.recent() for v in c.cache if v.graph == stage]
    original = cache.lookup

    def lookup(key):
        return cache.Miss("gone") if key.digest == digest else original(key)

    monkeypatch.setattr(cache, "lookup", lookup)
    answers = train_once()
    assert ("dynamo", "miss") in answers
    assert (stage, "miss") in answers
    monkeypatch.setattr(cache, "lookup", original)
    assert train_once() == FOUND


def spoilt(change):
    def spoil(pair):
        plan = json.loads(json.dumps(pair.plan))
        change(plan)
        return TrainingPair(plan, pair.forward, pair.backward)

    return spoil


SPOILT = {
    "nothing": spoilt(lambda plan: plan.clear()),
    "an unknown word": spoilt(lambda plan: plan["inputs"][0].append("is_haunted")),
    "another input": spoilt(lambda plan: plan["inputs"].append([])),
    "an alias": spoilt(lambda plan: plan["outputs"].__setitem__(0, ["alias_of_input", True, []])),
    "another output": spoilt(lambda plan: plan["outputs"].append(["non_alias", True, []])),
    "sizes that are not saved": spoilt(lambda plan: plan.update(sizes=7)),
    "an output with half a description": spoilt(lambda plan: plan["outputs"][0].pop()),
    "no list": spoilt(lambda plan: plan.update(inputs=3)),
    "a layout of no kind": spoilt(lambda plan: plan["tangents"].__setitem__(0, "preserve_format")),
    "an input that is none": spoilt(lambda plan: plan["detached"].append(7)),
    "the wrong graph": lambda pair: TrainingPair(pair.plan, pair.backward, pair.forward),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_plan_that_says_nothing_sensible_is_a_miss(name, monkeypatch):
    assert train_once() == MISSED
    (digest,) = [v.key for c in history.recent() for v in c.cache if v.graph == "dynamo"]
    original = cache.lookup

    def lookup(key):
        found = original(key)
        if key.digest != digest:
            return found
        return cache.Hit(encode_pair(SPOILT[name](decode_pair(found.payload))), "local")

    monkeypatch.setattr(cache, "lookup", lookup)
    assert ("dynamo", "miss") in train_once()


def test_bytes_of_a_pair():
    key, other = Key.of({"a": "1"}), Key.of({"b": "2", "c": "line\nbreak"})
    pair = TrainingPair({"inputs": [["is_leaf"]], "detached": []}, key, other)
    assert decode_pair(encode_pair(pair)) == pair
    data = encode_pair(pair)
    for junk in (
        b"",
        data[:-3],
        MAGIC + b"[]",
        MAGIC + b"{}",
        data.replace(b'"version":2', b'"version":9'),
    ):
        with pytest.raises(errors.InvalidCompiledGraph):
            decode_pair(junk)


_PROCESS = """
import torch
from torch import nn
from dovetail import history
from dovetail.capture import aot
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
x, ran, run = torch.ones(3, 8), [], aot.Capture.run
aot.Capture.run = lambda *args: ran.append(1) or run(*args)
torch.compile(model, backend="dovetail")(x).square().sum().backward()
mine = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
model(x).square().sum().backward()
for grad, p in zip(mine, model.parameters(), strict=True):
    torch.testing.assert_close(grad, p.grad)
print([v.state for v in history.recent()[-1].cache], len(ran))
"""


def test_another_process_finds_it(tmp_path):
    command = [sys.executable, "-c", _PROCESS]
    keywords = {"capture_output": True, "text": True, "check": True, "cwd": tmp_path}
    runs = [subprocess.run(command, **keywords).stdout.strip() for _ in range(2)]
    assert runs == ["['miss', 'miss', 'miss'] 1", "['hit', 'hit', 'hit'] 0"]
