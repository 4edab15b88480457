"""Files that run on the simulator: state that stays on the device from call to call."""

import random
import struct

import pytest
import torch

import dovetail
from dovetail import errors
from dovetail.ir.program_text import parse_program
from dovetail.runtime.loaded import open_native
from dovetail.testing.program_reference import run_program
from tests.artifact.files import file_bytes, floats
from tests.plugin.test_sim import Decoder

pytestmark = pytest.mark.e2e


@pytest.fixture
def decoder(sim, sim_path, tmp_path):
    """A model, its file as it is loaded anew, and tokens."""
    torch.manual_seed(0)
    model, tokens = Decoder(), torch.randint(0, 32, (6, 1, 1))
    path = tmp_path / "decoder.dvt"
    with torch.no_grad():
        dovetail.export(model, (tokens[0],), backend=sim.name).save(path)
    return model, dovetail.load(path, plugins=[sim_path]), tokens


def expect(model, run, token):
    with torch.no_grad():
        torch.testing.assert_close(run(token), model(token))


def test_a_decode_step_of_a_file_copies_its_token_and_its_logits_alone(sim, decoder):
    model, run, tokens = decoder
    for n, token in enumerate(tokens):
        sim.reset()
        expect(model, run, token)
        if n > 0:  # weights, and the state as it begins, are sent with the first
            assert sim.moved == (token.nbytes, 32 * 4)
            assert sim.counted("bytes.between") == 0
    keys = torch.from_dlpack(run.state["b_keys"])
    sim.reset()
    torch.testing.assert_close(keys, model.keys)
    expect(model, run, tokens[0])  # a look at it leaves it where it is
    assert sim.moved == (token.nbytes, 32 * 4)


def test_state_of_a_file_is_written_reset_and_copied(sim, decoder):
    model, run, tokens = decoder
    for token in tokens[:3]:
        expect(model, run, token)
    other = run.__copy__()
    run.state["b_place"] = torch.zeros(1)
    with torch.no_grad():
        before = {name: value.clone() for name, value in model.named_buffers()}
        model.place.zero_()
    expect(model, run, tokens[3])
    run.state.reset()
    for buffer in (model.keys, model.values, model.place):
        buffer.zero_()
    expect(model, run, tokens[0])
    expect(model, run, tokens[1])
    model.load_state_dict({**model.state_dict(), **before})
    expect(model, other, tokens[3])


def test_state_of_a_file_that_is_lost_is_said_to_be(sim, decoder):
    model, run, tokens = decoder
    expect(model, run, tokens[0])
    sim.native.set("kill", 1)
    with pytest.raises(errors.DeviceLost):
        run(tokens[1])
    with pytest.raises(errors.DeviceLost, match="reset it, or write it"):
        run(tokens[1])
    with pytest.raises(errors.DeviceLost):
        run.state["b_keys"]
    run.state.reset()
    for buffer in (model.keys, model.values, model.place):
        buffer.zero_()
    expect(model, run, tokens[0])


def test_a_step_that_fails_leaves_the_state_as_it_was(sim, decoder):
    model, run, tokens = decoder
    expect(model, run, tokens[0])
    for where, at in [("copy_in", 1), ("copy_in", 3), ("execute", 9), ("kernel_fails", 20)]:
        for name in run.state if where == "copy_in" else ():  # it is sent again
            run.state[name] = torch.from_dlpack(run.state[name]).clone()
        sim.native.set_graphs(where != "execute")  # what is replayed is not executed one by one
        sim.native.set(f"fault.{where}", at)
        with pytest.raises(errors.PluginFailed):
            run(tokens[1])
        sim.native.set_graphs(True)
        sim.native.set(f"fault.{where}", 0)
        expect(model, run, tokens[1])


# ---- programs of any order of reads and writes -------------------------------------------------

DEVICE = 'device accel_sim {"version": "1.0", "abi": "1.0", "needs": {}}'
SHAPE = "float32[4]"


def random_program(seed):
    """A program that reads and writes two pieces of state on the device, in an order that seed
    chooses, and hands out what it computed last."""
    draw = random.Random(seed)
    head = [f"program @p{seed}", DEVICE, f"input %x: {SHAPE}", f"output %y: {SHAPE}"]
    head += [f"state %s{n}: {SHAPE}" for n in range(2)]
    body, values = ["copy %t0 = %x"], ["t0"]
    head.append(f"temporary %t0: {SHAPE} on accel_sim")
    for _ in range(draw.randint(2, 9)):
        name, what = f"t{len(values)}", draw.random()
        if what < 0.35:
            body.append(f"copy %{name} = %s{draw.randrange(2)}")
        elif what < 0.7 or not values:
            a, b = draw.choice(values), draw.choice(values)
            body.append(
                f'launch %{name} = accel_sim:binary@1 aten.sub.Tensor(%{a}, %{b}) {{"alpha": 2}}'
            )
        elif what < 0.8:  # over what is there already
            a, b = draw.choice(values), draw.choice(values)
            body.append(f"launch %{b} = accel_sim:unary@1 aten.sin.default(%{a}) {{}}")
            continue
        else:
            body.append(f"copy %s{draw.randrange(2)} = %{draw.choice(values)}")
            continue
        head.append(f"temporary %{name}: {SHAPE} on accel_sim")
        values.append(name)
    return "\n".join([*head, *body, f"copy %y = %{draw.choice(values)}", "return %y"]) + "\n"


def test_state_means_the_same_wherever_it_is(sim, sim_path):
    generator = torch.Generator().manual_seed(0)
    stayed = 0
    for seed in range(100):
        text = random_program(seed)
        contents = {f"s{n}": floats(n + 1, 2, -3, 0.5) for n in range(2)}
        held = {n: torch.tensor(struct.unpack("<4f", data)) for n, data in contents.items()}
        program = parse_program(text)
        native = open_native(file_bytes(text, contents), plugins=[sim_path])
        copies = native.clone()
        for call in range(3):
            x = torch.randn(4, generator=generator)
            (expected,) = run_program(program, [x], held)
            sim.reset()
            (found,) = native(x)
            torch.testing.assert_close(torch.from_dlpack(found), expected, msg=text)
            stayed += call > 0 and "= %s" in text and sim.moved == (16, 16)
            if call == 1:
                for n in range(2):
                    torch.testing.assert_close(
                        torch.from_dlpack(native.read_state(n)), held[f"s{n}"], msg=text
                    )
        start = {n: torch.tensor(struct.unpack("<4f", data)) for n, data in contents.items()}
        x = torch.randn(4, generator=generator)
        (expected,) = run_program(program, [x], start)
        torch.testing.assert_close(torch.from_dlpack(copies(x)[0]), expected, msg=text)
    assert stayed > 100
