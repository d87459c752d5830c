"""How many connections to the database a web process keeps: as many as README says, however many
requests Django answers.
"""

from pathlib import Path

import requests
from django.db import connection

from tests.gateway.conftest import Stack
from tests.gateway.live import Web, wait_for

MOST = 9
NUM_REQUESTS = 60


def num_open(web: Web) -> int:
    """Of the web process and its database process; not the test's own."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return int(cursor.fetchone()[0])
    name = str(connection.settings_dict["NAME"])
    files = Path(f"/proc/{web.process.pid}/fd").iterdir()
    return sum(file.exists() and str(file.readlink()) == name for file in files)


def test_it_works(stack: Stack) -> None:
    """Each request is a thread of its own, and closes what it opened when it ends."""
    acme = stack.make_customer(scopes=("usage",))
    headers = {"authorization": f"Bearer {acme.api_key}"}
    url = f"{stack.web.url}/api/tenants/{acme.tenant.slug}/"
    for _ in range(NUM_REQUESTS):
        answer = requests.get(url, headers=headers, timeout=10)
        assert answer.status_code == 200, answer.text
    wait_for("what is kept", lambda: num_open(stack.web) <= MOST)
