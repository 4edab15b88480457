import pytest

from tests.page.browser import Browser, missing


@pytest.fixture(scope="session")
def browser():
    """One for all tests of a process."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    made = Browser()
    yield made
    made.close()
