"""Training steps that do odd things with autograd, for ``test_training_processes``.

``python -m tests.cache.training_cases`` runs each compiled and as it is, and writes what a caller
can see of both as JSON to the standard output; with ``switch``, those that then differ.
"""

import json
import sys
import warnings

import torch

from dovetail import history
from tests.cache import (  # noqa: F401  # each registers its cases
    training_and_gradients,
    training_and_memory,
    training_in_modes,
    training_of_models,
)
from tests.cache.training_steps import CASES, SWITCHING, seen, switched


def verdicts():
    return [f"{v.graph} {v.state}" for c in history.recent() for v in c.cache]


def run(name, backend):
    """A case compiled and as it is: what both show, and what the cache said."""
    torch.compiler.reset()
    history.clear()

    def compiled(fn, **keywords):
        return torch.compile(fn, backend=backend, **keywords)

    found = {}
    for way, wrap in (("compiled", compiled), ("eager", lambda fn, **_: fn)):
        try:
            found[way] = seen(CASES[name](wrap))
        except Exception as error:
            found[way] = f"{type(error).__name__}: {error}"
    found["cache"] = verdicts()
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    chosen = SWITCHING if switched() else CASES
    json.dump({name: run(name, sys.argv[1]) for name in chosen}, sys.stdout)
