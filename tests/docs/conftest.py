from tests.ground.conftest import here

__all__ = ["here"]
