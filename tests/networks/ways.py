"""Ways to run a random network, each compared with eager in all that a caller can observe."""

from __future__ import annotations

import copy
import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch

import dovetail
from dovetail import errors
from tests.differential import Outcome, aliasing, clone
from tests.networks.judge import Rounding, problems
from tests.networks.network import Network


def call(fn, network, inputs, buffers=True):
    """What a call gives and leaves behind, with gradients where the network trains."""
    torch.manual_seed(11)
    network.zero_grad()
    with torch.set_grad_enabled(network.trains):
        returned = fn(*inputs)
        wanted = [x for x in returned if x.requires_grad and x.is_floating_point()]
        if wanted:
            sum(_weighed(x) for x in wanted).backward()
    grads = [x.grad for x in inputs] + [p.grad for p in network.parameters()]
    left = [x.detach() for x in inputs]
    results = [*(x.detach() for x in returned), *left, *grads]
    return returned, [*results, *(b.clone() for b in network.buffers() if buffers)]


def _weighed(x):
    weights = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).reshape(x.shape)
    return (x * weights).sum()


def _double(x):
    made = x.detach().double() if x.is_floating_point() else x
    return made.requires_grad_(x.requires_grad)


def compared(network, fn, mine=None, sizes=(0, 0)) -> list[str]:
    """What is wrong with some calls of ``fn``, whose state is that of the network ``mine``.

    Without it ``fn`` is a program of its own: it keeps its state and shares no memory.
    """
    theirs, said, whole = copy.deepcopy(network), [], mine is not None
    strides = whole and not network.ambiguous
    for which in sizes:
        given = [clone(network.inputs(which)) for _ in range(2)]
        near = partial(_exact, copy.deepcopy(theirs), which, whole)
        expected = call(theirs, theirs, given[0], whole)
        found = call(fn, mine if whole else network, given[1], whole)
        said += problems(found[1], expected[1], near(), near, strides)
        if whole and _shared(given[0], expected) != _shared(given[1], found):
            said.append("other results share memory")
        if whole:
            mine.load_state_dict(theirs.state_dict())
    return said


def _exact(network, which, buffers, seed=None):
    """Results in float64, as they are or with roundings on the way."""
    exact = copy.deepcopy(network).double()
    inputs = [_double(x) for x in clone(network.inputs(which))]
    with nullcontext() if seed is None else Rounding(seed):
        return call(exact, exact, inputs, buffers)[1]


def _shared(inputs, called):
    return aliasing(Outcome(called[0], inputs, []))


def compiled(network, sizes=(0, 0), dynamic=False, backend="dovetail", **options):
    mine = copy.deepcopy(network)
    fn = torch.compile(mine, backend=backend, dynamic=dynamic, fullgraph=True, options=options)
    return compared(network, fn, mine, sizes)


def exported(network, save=None):
    """The exported program, and the same from its file."""
    inputs = tuple(clone(network.inputs()))
    with torch.no_grad():
        artifact = dovetail.export(copy.deepcopy(network), inputs)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "network.dvt"
        try:
            artifact.save(file, **(save or {}))
        except errors.CannotSave:
            return compared(network, artifact)
        loaded = dovetail.load(file, trust=True)
        return compared(network, artifact) + compared(network, loaded)


def plain(seed):
    return compiled(Network(seed))


def frozen(seed):
    return compiled(Network(seed), freeze=True)


def trained(seed):
    return compiled(Network(seed, trains=True))


def varied(seed):
    return compiled(Network(seed, varies=True), (0, 1, 0), dynamic=True)


def varied_training(seed):
    return compiled(Network(seed, trains=True, varies=True), (0, 1), dynamic=True)


def saved(seed):
    return exported(Network(seed))


def alone(seed):
    return exported(Network(seed), save={"without_torch": True})


def portable(seed):
    return compiled(Network(seed), backend="portable")


def debugged(seed):
    return compiled(Network(seed, varies=True), (0, 1), dynamic=True, debug=True, strict=True)


WAYS = (plain, trained, frozen, varied, alone, debugged, varied_training, saved, portable)


def check(seed: int, way=None) -> str:
    """What is wrong with one network run in one way; empty when nothing is."""
    way = way or WAYS[seed % len(WAYS)]
    torch._dynamo.reset()
    try:
        said = way(seed)
    except Exception as error:
        said = [f"{type(error).__name__}: {str(error)[:600]}"]
    return f"seed {seed} {way.__name__}: {'; '.join(said)}" if said else ""
