import sys
from pathlib import Path

import pytest

from tests.ground.environments import Environment


@pytest.fixture(scope="session")
def here() -> Environment:
    """The running environment, in a new process."""
    return Environment(Path(sys.executable))
