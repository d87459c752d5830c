"""Loaded by `-p tests.environment`: before pytest-django reads the settings, as no conftest is."""

import pytest

from tests.services import prepare_environment

prepare_environment()

# By which a test meets the database, its own or a web process's.
DATABASE_FIXTURES = {"db", "transactional_db", "running_stack", "engine_stack"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks `database` on what meets one; all else is the same on SQLite and on PostgreSQL."""
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        if names & DATABASE_FIXTURES or item.get_closest_marker("django_db"):
            item.add_marker("database")
