"""The ASGI entry: `uvicorn gateway.asgi:application`.

Django is set up before anything of ours is imported.
"""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django.setup(set_prefix=False)

from gateway.front import application  # noqa: E402

__all__ = ["application"]
