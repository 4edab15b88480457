import sys
from pathlib import Path

import pytest

from dovetail.registry import Registry
from tests.ground.environments import Environment


@pytest.fixture(scope="session")
def here() -> Environment:
    """The running environment, in a new process."""
    return Environment(Path(sys.executable))


@pytest.fixture
def registry():
    """A registry of its own; what a test adds is taken back from Dynamo too."""
    made = Registry()
    before = set(made.list_backends(exclude_tags=()))
    yield made
    for entry in made._all():
        if entry.name not in before:
            made._remove(entry, {})
