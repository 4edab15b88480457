"""Errors that pass through Dynamo, and what it says of a graph's inputs."""

import pytest
import torch

from dovetail import errors
from dovetail.capture._torch.aot_autograd import aot_autograd, boxed, input_label
from dovetail.capture._torch.dynamo import input_names, pass_through_dynamo, static_kind


def test_errors_pass_through_dynamo():
    def backend(gm, inputs):
        raise pass_through_dynamo(errors.GuardFailed("ours"))

    with pytest.raises(errors.GuardFailed, match="ours"):
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))


def test_errors_that_pass_through_dynamo_are_copies_of_one_class():
    error = errors.GuardFailed("ours")
    error.add_note("a note")
    shown = pass_through_dynamo(error)
    assert type(error) is errors.GuardFailed
    assert isinstance(shown, errors.GuardFailed)
    assert (str(shown), shown.__notes__) == (str(error), ["a note"])
    assert type(pass_through_dynamo(errors.GuardFailed("again"))) is type(shown)
    assert pass_through_dynamo(shown) is shown


def test_names_of_parameters():
    found = []

    def backend(gm, inputs):
        found.extend(input_names(gm))

        def compiler(graph, _):
            nodes = graph.graph.find_nodes(op="placeholder")
            found.extend([input_label(node, found) for node in nodes])
            return boxed(lambda values: list(graph.forward(*values)))

        return aot_autograd(fw_compiler=compiler)(gm, inputs)

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).eval()
    with torch.no_grad():
        torch.compile(model, backend=backend)(torch.randn(2, 3))
    of_dynamo, of_aot = found[:7], found[7:]
    assert of_dynamo == of_aot
    assert {"0.weight", "0.bias", "1.running_mean", "1.bias"} < set(of_dynamo)


def test_static_inputs_are_marked_by_dynamo():
    found = []

    def backend(gm, _):
        found.extend(map(static_kind, gm.graph.find_nodes(op="placeholder")))
        return gm.forward

    model = torch.nn.BatchNorm1d(2).eval()
    torch.compile(model, backend=backend)(torch.ones(3, 2))
    assert "" in found
    assert set(found) > {""}
