import pytest

from tenants.store import store


@pytest.fixture
def no_guesses() -> None:
    """No failures to sign in of other tests."""
    for key in store().keys("guessing:*"):
        store().delete(key)
