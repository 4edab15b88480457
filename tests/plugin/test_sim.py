"""examples/accel_sim: a device in another process, what stays on it, and what is copied."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dovetail
from tests.plugin.sim import simulator

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


class Block(nn.Module):
    """A transformer's, with attention written out."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def split(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.first(x)).split(c, 2)
        return (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))

    def finish(self, x, mixed):
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.second(x))))

    def forward(self, x, mask):
        q, k, v = self.split(x)
        scores = (q @ k.transpose(-2, -1)) * (q.shape[-1] ** -0.5)
        return self.finish(x, torch.softmax(scores + mask, -1) @ v)


class GPT(nn.Module):
    def __init__(self, vocabulary=32, length=8, width=16):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(2)])
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", torch.full((length, length), -1e9).triu(1))
        self.register_buffer("range", torch.arange(length))

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(self.range)
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(x)


def test_a_model_trains_on_it(sim):
    eager, tokens = GPT(), torch.randint(0, 32, (2, 8))
    model = GPT()
    model.load_state_dict(eager.state_dict())
    compiled = torch.compile(model, backend=sim.name)
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (eager, model)]
    for _ in range(3):
        losses = []
        for run, optimiser in zip((eager, compiled), optimisers, strict=True):
            optimiser.zero_grad()
            loss = F.cross_entropy(run(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses)
    for a, b in zip(eager.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(b, a)
    assert sim.counted("launched") > 100


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.one = nn.Sequential(nn.Conv2d(4, 4, 3, 1, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.two = nn.Sequential(nn.Conv2d(4, 4, 3, 1, 1, groups=2), nn.BatchNorm2d(4))
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        x = self.pool(self.stem(x))
        x = F.relu(x + self.two(self.one(x)))
        return self.head(x.mean((2, 3)))


def test_an_image_model(sim):
    model, x = ResNet().eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        compiled = torch.compile(model, backend=sim.name, options={"freeze": True})
        torch.testing.assert_close(compiled(x), model(x))
        sim.reset()
        compiled(x)
    assert sim.moved == (x.nbytes, 2 * 5 * 4)
    assert sim.counted("launched") > 8


# ---- what stays on the device ------------------------------------------------------------------


class Decoder(nn.Module):
    """One token at a time, with a cache of keys and values that it writes to."""

    def __init__(self, vocabulary=32, length=8, width=16, heads=2):
        super().__init__()
        self.tokens, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.block, self.length = Block(width, heads), length
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, heads, length, width // heads))
        self.register_buffer("range", torch.arange(length).float())
        self.register_buffer("place", torch.zeros(1))

    def forward(self, token):
        x = self.tokens(token)
        q, k, v = self.block.split(x)
        here = (self.range == self.place).view(1, 1, self.length, 1)
        self.keys.copy_(torch.where(here, k, self.keys))
        self.values.copy_(torch.where(here, v, self.values))
        unseen = torch.where(self.range > self.place, -1e9, 0.0)
        scores = (q @ self.keys.transpose(-2, -1)) * (q.shape[-1] ** -0.5) + unseen
        self.place.copy_(self.place + 1)
        return self.head(self.block.finish(x, torch.softmax(scores, -1) @ self.values))


def test_a_decode_step_copies_its_token_and_its_logits_alone(sim):
    model, tokens = Decoder(), torch.randint(0, 32, (6, 1, 1))
    with torch.no_grad():
        exported = dovetail.export(model, (tokens[0],), backend=sim.name)
        for n, token in enumerate(tokens):
            sim.reset()
            logits = exported(token)
            torch.testing.assert_close(logits, model(token))
            if n > 0:  # weights, and the state as it begins, are sent with the first
                assert sim.moved == (token.nbytes, logits.nbytes)
    torch.testing.assert_close(exported.state["keys"], model.keys)
    assert exported.state["place"].item() == len(tokens)
    exported.state["place"].zero_()  # the host's from now on
    model.place.zero_()
    with torch.no_grad():
        torch.testing.assert_close(exported(tokens[0]), model(tokens[0]))


def test_state_that_is_lost_with_its_device_is_said_to_be(sim):
    from dovetail import errors

    model, token = Decoder(), torch.zeros(1, 1, dtype=torch.int64)
    with torch.no_grad():
        exported = dovetail.export(model, (token,), backend=sim.name)
        exported(token)
        sim.native.set("kill", 1)
        with pytest.raises(errors.DeviceLost):
            exported(token)
        with pytest.raises(errors.DeviceLost, match="is lost"):
            exported(token)
        with pytest.raises(errors.DeviceLost, match="is lost"):
            exported.state  # noqa: B018
        assert exported.state["place"].item() == 0
        torch.testing.assert_close(exported(token), model(token))


def test_values_between_two_segments_stay_there(sim):
    """The host's part needs x alone, and gives h alone: y and z never leave the device."""

    def fn(x, w):
        y = torch.relu(x @ w)
        h = torch.cumsum(torch.tanh(x), 0)  # the simulator has no kernel for cumsum
        z = y * h
        g = torch.cumsum(h, 1)
        return torch.tanh(z) + g, z.sum()

    x, w = torch.randn(4, 4), torch.randn(4, 4)
    compiled = torch.compile(fn, backend=sim.name)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, w), fn(x, w))
        sim.reset()
        torch.testing.assert_close(compiled(x, w), fn(x, w))
    (graph,) = dovetail.history.recent()[-1].graphs
    assert [s.backend for s in graph.segments].count(sim.name) >= 2
    tensor = x.nbytes
    assert sim.moved == (4 * tensor, 2 * tensor + 4)  # x, w, h, g in; tanh(x), two results out


def test_a_value_that_both_sides_read_is_fetched_for_the_host(sim):
    def fn(x):
        y = torch.relu(x)
        return torch.tanh(y) + torch.relu(torch.cumsum(y, 0)), y

    x = torch.randn(4, 4)
    torch.testing.assert_close(torch.compile(fn, backend=sim.name)(x), fn(x))


def test_two_devices_copy_directly(sim, sim_path):
    with simulator(sim_path, 1) as second:
        assert (sim.name, second.name) == ("accel_sim", "accel_sim.1")
        assert second.counted("index") == 1
        described = second.native.describe()
        assert (described["devices"], described["name"]) == (2, "simulator 1")
        x, found = torch.randn(1000), torch.empty(1000)
        sim.reset()
        first = sim.native.upload(x.data_ptr(), x.nbytes)
        second.reset()
        there = first.to(second.native)
        there.fetch(found.data_ptr(), 0, x.nbytes)
        assert torch.equal(found, x)
        assert (sim.moved, second.moved) == ((x.nbytes, 0), (0, x.nbytes))
        assert second.counted("bytes.between") == x.nbytes
        assert second.native.counters()["peer_bytes"] >= x.nbytes
        assert first.to(sim.native) is None  # the same device


def test_what_it_says_is_logged_and_its_spans_are_in_profiles(sim, caplog):
    x = torch.randn(4)
    compiled = torch.compile(torch.relu, backend=sim.name)
    sim.library.close()
    with caplog.at_level("DEBUG", "dovetail.plugin"):
        compiled(x)
    assert f"device 0 is process {sim.counted('process')}" in caplog.messages
    with torch.profiler.profile() as profile:
        compiled(x)
    names = [event.key for event in profile.key_averages()]
    assert "accel_sim: waiting for a stream" in names


# ---- constants in the device's own layout, types, and memory -----------------------------------


def test_constant_matrices_are_laid_out_by_the_plugin(sim):
    layer, x = nn.Linear(20, 33), torch.randn(3, 20)
    exported = dovetail.export(layer, (x,), backend=sim.name)
    for _ in range(3):
        torch.testing.assert_close(exported(x), layer(x).detach())
    assert sim.counted("prepared") == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats(sim, dtype):
    kind = getattr(torch, dtype)

    def fn(x):
        return torch.relu(x).to(kind), (x * 0.5).to(kind).to(torch.float32)

    special = [0.0, -0.0, 1e-9, 447.0, 464.0, 465.0, 5e4, 61440.0, 1e30, float("inf"), float("nan")]
    if dtype == "float8_e4m3fn":  # what is too large is NaN or 448, by PyTorch's version
        special = [*special[:4], float("nan")]
    x = torch.cat([torch.randn(500) * 30, torch.tensor(special), -torch.tensor(special)])
    found, expected = torch.compile(fn, backend=sim.name)(x), fn(x)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a.float(), b.float(), rtol=0, atol=0, equal_nan=True)
    (graph,) = dovetail.history.recent()[-1].graphs
    assert {segment.backend for segment in graph.segments} == {sim.name}


def test_memory_that_runs_out_and_comes_back(sim):
    from dovetail import errors

    layer, x = nn.Linear(64, 64), torch.randn(2, 64)
    compiled = torch.compile(layer, backend=sim.name)
    with torch.no_grad():
        sim.native.set("memory.limit", 8 << 10)
        with pytest.raises(errors.OutOfMemory, match="no room for"):
            compiled(x)
        sim.native.set("memory.limit", 8 << 20)
        torch.testing.assert_close(compiled(x), layer(x))


def test_attributes_come_in_the_schemas_order_with_their_types():
    from dovetail.backends.plugin.call import describe
    from dovetail.ir import Attr, OpCall, Ref, TensorDesc

    x = Ref("x", TensorDesc("float32", (2,), (1,), "cpu"))
    call = OpCall("y", "aten._to_copy.default", (x,), {"dtype": Attr("dtype", "bfloat16")})
    _, _, _, attributes, *_ = describe(call)
    assert [(name, kind) for name, _, kind in attributes] == [
        ("dtype", 2),
        ("layout", 4),
        ("device", 3),
        ("pin_memory", 1),
        ("non_blocking", 1),
        ("memory_format", 5),
    ]
    assert attributes[0][1] == "bfloat16"
