"""Loaded by `-p tests.environment`: before pytest-django reads the settings, as no conftest is."""

from tests.services import prepare_environment

prepare_environment()
