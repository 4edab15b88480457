"""AOTAutograd, its partitioner, and what it says of the graph being compiled."""

import pytest
import torch

from dovetail.capture._torch.aot_autograd import (
    aot_autograd,
    boxed,
    inference_is_plain,
    inputs_written_later,
    keep_random_draws,
    static_input_positions,
    without_grad,
)
from dovetail.capture._torch.partition import min_cut_partition


def test_aot_autograd_and_partition():
    seen = []

    def note(kind):
        def compiler(gm, inputs):
            seen.append(kind)
            return boxed(lambda args: gm(*args))

        return compiler

    def partition(joint, inputs, **kwargs):
        seen.append("partition")
        return min_cut_partition(joint, inputs, **kwargs)

    aot = aot_autograd(
        fw_compiler=note("forward"),
        bw_compiler=note("backward"),
        inference_compiler=note("inference"),
        partition_fn=partition,
        decompositions={},
    )
    run = torch.compile(lambda x: (x.sin() * 2).sum(), backend=aot)
    run(torch.ones(3, requires_grad=True)).backward()
    run(torch.ones(3))
    assert seen == ["partition", "forward", "backward", "inference"]


def plain_answers(fn, *args):
    """What ``inference_is_plain`` says while a function is compiled."""
    answers = []

    def compiler(gm, inputs):
        answers.append(inference_is_plain())
        return boxed(lambda args: gm(*args))

    aot = aot_autograd(fw_compiler=compiler, inference_compiler=compiler)
    with torch.no_grad():
        torch.compile(fn, backend=aot)(*args)
    return answers


def test_plain_inference_is_told_from_the_rest():
    x = torch.ones(4)
    assert not inference_is_plain()
    assert plain_answers(lambda x: x + 1, x) == [True]
    assert plain_answers(lambda x: x.add_(1) * 2, x) == [False]
    assert plain_answers(lambda x: (x + 1, x[1:]), x) == [False]
    assert plain_answers(lambda x: x.view(2, 2), x) == [False]


def test_grad_mode_is_off_inside_and_as_before_after():
    run = without_grad(lambda args: [torch.is_grad_enabled(), *args])
    assert run(1, 2) == [False, 1, 2]
    assert torch.is_grad_enabled()

    def fail(args):
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        without_grad(fail)()
    assert torch.is_grad_enabled()


def test_random_draws_are_kept_by_configuration():
    from torch._inductor import config

    before = config.fallback_random
    with keep_random_draws():
        assert config.fallback_random
    assert config.fallback_random == before


def test_positions_of_parameters_are_known_while_a_graph_is_compiled():
    found = []

    def compiler(gm, inputs):
        found.append(static_input_positions())
        return boxed(lambda args: gm(*args))

    with torch.no_grad():
        backend = aot_autograd(fw_compiler=compiler)
        torch.compile(torch.nn.Linear(3, 3), backend=backend)(torch.randn(2, 3))
    assert [len(positions) for positions in found] == [2]
    assert static_input_positions() == frozenset()


def test_inputs_that_autograd_writes_to_later():
    found = []

    def forward(gm, inputs):
        found.append([node.name for node in inputs_written_later(gm)])
        return boxed(lambda values: list(gm.forward(*values)))

    def fn(x, y, z):
        z.add_(1)  # within the graph: nothing of it trains
        x.mul_(y)
        return x.sin()

    torch.compiler.reset()
    backend = aot_autograd(fw_compiler=forward, bw_compiler=forward)
    y = torch.ones(3, requires_grad=True)
    torch.compile(fn, backend=backend)(y * 1, y, torch.ones(3))
    assert [len(names) for names in found] == [1]
