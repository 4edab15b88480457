"""Strands: groups of instructions that have nothing to do with each other, each one thread's work.

Programs are drawn as chains of small kernels, some in place, some through views, with a few links
between them; what they compute on several threads is what they compute on one, bit by bit.
"""

import random

import pytest
import torch

from dovetail.runtime.loaded import open_native
from tests.artifact.files import file_bytes

SHAPE = (64, 256)
OPERATIONS = ("add", "sub", "mul", "maximum")


@pytest.fixture
def threads():
    """Sets their number, and back in the end."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def chains(seed, count, steps, links, in_turns):
    """Text of a program of chains whose kernels follow each other in turns, or chain by chain."""
    draw = random.Random(seed)
    lines, text = [f"input %x: float32{[*SHAPE]}"], []
    made = {chain: ["x"] for chain in range(count)}
    order = [chain for chain in range(count) for _ in range(steps)]
    if in_turns:
        order = [chain for _ in range(steps) for chain in range(count)]
    for number, chain in enumerate(order):
        left, right = made[chain][-1], draw.choice(made[chain][-3:])
        if draw.random() < links:
            right = draw.choice(made[draw.randrange(count)])
        name = f"t{number}"
        lines.append(f"temporary %{name}: float32{[*SHAPE]}")
        if draw.random() < 0.2:
            half = [SHAPE[0] // 2, SHAPE[1]]
            for part in (0, 1):
                at = part * half[0] * half[1]
                lines += [
                    f"view %{name}_{part}: float32{half} of %{name} at {at}",
                    f"view %{name}_from_{part}: float32{half} of %{left} at {at}",
                ]
                text.append(f"copy %{name}_{part} = %{name}_from_{part}")
            text.append(f"kernel %{name} = add@1(%{name}, %{right})")
        else:
            text.append(f"kernel %{name} = {draw.choice(OPERATIONS)}@1(%{left}, %{right})")
            text.append(f"kernel %{name} = tanh@1(%{name})")
        made[chain].append(name)
    lines += [f"output %y{chain}: float32{[*SHAPE]}" for chain in made]
    text += [f"kernel %y{chain} = neg@1(%{names[-1]})" for chain, names in made.items()]
    results = ", ".join(f"%y{chain}" for chain in made)
    return "\n".join(["program @chains", *lines, *text, f"return {results}"]) + "\n"


def run_twice(path, x):
    """The first run makes the frame, the second knows which instructions were shared."""
    native = open_native(str(path))
    first, second = native.run(x), native.run(x)
    assert all(
        torch.equal(torch.from_dlpack(a), torch.from_dlpack(b))
        for a, b in zip(first, second, strict=True)
    )
    return [torch.from_dlpack(result) for result in second], native.memory()[0]


@pytest.mark.parametrize("seed", range(24))
def test_strands_compute_what_one_thread_does(tmp_path, threads, seed):
    path = tmp_path / "chains.dvt"
    count, links, in_turns = 2 + seed % 3, (0.0, 0.02, 0.2)[seed // 3 % 3], seed % 2 == 1
    path.write_bytes(file_bytes(chains(seed, count, 40, links, in_turns)))
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))
    found = []
    for number in (1, 2, 3):
        threads(number)
        found.append(run_twice(path, x))
    for results, _ in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results, found[0][0], strict=True))
    if links == 0 and not in_turns:  # each strand has memory of its own: there are some
        assert found[1][1] > found[0][1]


FAILS = """\
program @fails
input %x: float32[64, 256]
input %i: int64[2]
input %j: int64[2]
temporary %a: float32[64, 256]
temporary %b: float32[64, 256]
temporary %c: float32[2, 256]
output %y: float32[2, 256]
output %z: float32[2, 256]
output %w: float32[64, 256]
"""


def test_the_failure_that_is_told_is_the_first_of_the_program(tmp_path, threads):
    """Two chains fail: the first of the program at its end, the second at once."""
    first = ["kernel %a = neg@1(%x)"] + [
        f"kernel %a = {op}@1(%a, %x)" for op in ("add", "sub") * 40
    ]
    second = [line.replace("%a", "%b") for line in first]
    takes = ["kernel %y = take@1(%a, %i; 0)", "kernel %c = take@1(%x, %j; 0)"]
    end = ["kernel %z = neg@1(%c)", "kernel %w = neg@1(%b)", "return %y, %z, %w"]
    text = FAILS + "\n".join([*first, *takes, *second, *end]) + "\n"
    (path := tmp_path / "fails.dvt").write_bytes(file_bytes(text))
    x, wrong, fine = torch.ones(64, 256), torch.tensor([1, 99]), torch.tensor([0, 1])
    for number in (1, 2):
        threads(number)
        native = open_native(str(path))
        for _ in range(2):
            with pytest.raises(IndexError, match="element 1 of"):
                native.run(x, wrong, wrong.flip(0))
            with pytest.raises(IndexError, match="element 0 of"):
                native.run(x, fine, wrong.flip(0))
            y, z, w = map(torch.from_dlpack, native.run(x, fine, fine))
            assert all((result == -1).all() for result in (y, z, -w))
