"""Run by test_worker in its own process: one upload, as the web process makes it.

Prints its last state and digest. Arguments: the folder with the two files, seconds to wait.
"""

import sys
import time
from pathlib import Path

import django


def main(folder: Path, timeout_s: float) -> None:
    from adapters.models import AdapterVersion
    from adapters.publish import upload
    from tenants.auth import principal_for_member
    from tenants.scope import tenant_scope
    from tests import factories
    from tests.adapters.conftest import both_files, put_in_quarantine

    principal = principal_for_member(factories.make_alice().id, "acme")
    with tenant_scope(principal.tenant_id):
        version = upload(principal, "support-bot", put_in_quarantine(both_files(folder)))
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            version = AdapterVersion.objects.get(id=version.id)
            if version.state not in ("uploaded", "validating"):
                break
            time.sleep(0.1)
        print(version.state, version.digest)


if __name__ == "__main__":
    django.setup()
    main(Path(sys.argv[1]), float(sys.argv[2]))
