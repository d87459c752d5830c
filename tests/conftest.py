from tests.services import prepare_environment

# Before pytest-django imports the settings.
prepare_environment()
