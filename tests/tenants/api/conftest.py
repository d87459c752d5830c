from typing import Any

import pytest


@pytest.fixture(autouse=True)
def cheap_passwords(settings: Any) -> None:
    """PBKDF2 is slow on purpose; dozens of wrong passwords are tried here."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
