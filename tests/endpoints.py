"""Every endpoint of the house, from its route tables, and how each is asked for another's things.

What cannot be read off a table is entered here: what stands for a captured part of a path, and the
body that a method needs to get as far as its look-up. A route that has no entry raises KeyError,
and so fails the tests that walk the tables (tests/tenants/test_wall.py,
tests/gateway/test_isolation.py).
"""

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone

from adapters.models import (
    Adapter,
    AdapterVersion,
    Canary,
    EvalSet,
    Evaluation,
    Import,
    ModelName,
    Upload,
    UploadPart,
)
from tenants.audit import system
from tenants.keys import create_key
from tenants.models import Tenant
from tenants.scope import tenant_scope

METHODS = ("get", "head", "options", "post", "put", "patch", "delete")
PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")


@dataclass(frozen=True)
class Names:
    """What one tenant's things are called in paths and bodies."""

    tenant: str
    name: str
    number: int
    alias: str
    public_id: str
    upload_id: str
    part_id: str
    evaluation_id: str
    import_id: str
    digest: str

    def secrets(self) -> list[str]:
        """What an answer to another tenant must not hold."""
        found = dataclasses.asdict(self)
        return [str(value) for field, value in found.items() if field != "number"]


# As long as real ones, and nobody's.
ABSENT = Names(
    tenant="other-none",
    name="other-none",
    number=7002,
    alias="other-nick",
    public_id="0" * 16,
    upload_id="upload_" + "0" * 32,
    part_id="part_" + "0" * 32,
    evaluation_id="eval_" + "0" * 32,
    import_id="import_" + "0" * 32,
    digest="0" * 64,
)


def make_things(tenant: Tenant, name: str, number: int, digest: str) -> Names:
    """One of everything that a tenant can have, and what it is called."""
    now = timezone.now()
    own: dict[str, Any] = {"tenant": tenant}
    with tenant_scope(tenant.id):
        adapter = Adapter.objects.create(**own, name=name, last_number=number)
        made = {"created_by": "test", "digest": digest, "activated_at": now}
        active = {"adapter": adapter, "number": number, "state": "active"}
        version = AdapterVersion.objects.create(**own, **active, **made)
        alias = ModelName.objects.create(
            **own, name=f"{name[:6]}nick", adapter=adapter, version=version, is_alias=True
        )
        Canary.objects.create(**own, adapter=adapter, version=version, percent=5, started_at=now)
        examples = {"examples": [], "num_examples": 1, "num_golden": 0, "size_bytes": 1}
        eval_set = EvalSet.objects.create(
            **own, adapter=adapter, sha256=digest, is_current=True, created_by="test", **examples
        )
        evaluation = Evaluation.objects.create(
            **own,
            version=version,
            eval_set=eval_set,
            eval_set_sha256=digest,
            num_examples=1,
            digest=digest,
            heartbeat_at=now,
            created_by="test",
        )
        source = {"adapter_name": name, "repo_id": "org/bot", "revision": "main"}
        imported = Import.objects.create(**own, **source, heartbeat_at=now, role="owner")
        upload = Upload.objects.create(
            **own,
            adapter_name=name,
            filename="bot.zip",
            purpose="fine-tune",
            num_bytes=3,
            quarantine="none",
            created_by="test",
            expires_at=now.replace(year=now.year + 1),
        )
        part = UploadPart.objects.create(
            **own, upload=upload, number=1, num_bytes=3, sha256="0" * 64
        )
    key = create_key(system(tenant.id), f"key of {name}", ["usage"])
    return Names(
        tenant=tenant.slug,
        name=name,
        number=number,
        alias=alias.name,
        public_id=key.raw.split("-")[1],
        upload_id=upload.public_id,
        part_id=part.public_id,
        evaluation_id=evaluation.public_id,
        import_id=imported.public_id,
        digest=digest,
    )


# What a captured part of a path is the name of. replica_id is the operators', and no tenant's.
CAPTURED: dict[str, Callable[[Names], object]] = {
    "tenant": lambda them: them.tenant,
    "name": lambda them: them.name,
    "number": lambda them: them.number,
    "alias": lambda them: them.alias,
    "public_id": lambda them: them.public_id,
    "upload_id": lambda them: them.upload_id,
    "evaluation_id": lambda them: them.evaluation_id,
    "import_id": lambda them: them.import_id,
    "replica_id": lambda them: them.number,
    "rest": lambda them: f"{them.upload_id}/{them.part_id}",
}

Body = dict[str, Any]


def files(them: Names) -> Body:
    config = SimpleUploadedFile("adapter_config.json", b"{}")
    return {"config": config, "weights": SimpleUploadedFile("adapter_model.safetensors", b"x")}


def part(them: Names) -> Body:
    return {"data": SimpleUploadedFile("x", b"abc")}


def new_upload(them: Names) -> Body:
    return {"filename": "a.zip", "bytes": 3, "purpose": "fine-tune", "adapter": them.name}


# By method and the last segment of the route: what is valid, as far as can be known before the
# look-up, and names everything by what `them` is called.
BODIES: dict[tuple[str, str], Callable[[Names], Body]] = {
    ("post", "keys"): lambda them: {"name": them.name, "scopes": ["usage"]},
    ("patch", "<slug:public_id>"): lambda them: {"scopes": ["usage"]},
    ("post", "rotate"): lambda them: {},
    ("post", "adapters"): lambda them: {"name": them.name},
    ("put", "canary"): lambda them: {"version": them.number, "percent": 10},
    ("post", "versions"): files,
    ("post", "activate"): lambda them: {},
    ("post", "retire"): lambda them: {},
    ("post", "retry"): lambda them: {},
    ("put", "profile"): lambda them: {"max_tokens": 5},
    ("post", "aliases"): lambda them: {"name": "nick", "adapter": them.name, "version": None},
    ("put", "<str:alias>"): lambda them: {"adapter": them.name, "version": them.number},
    ("post", "evaluations"): lambda them: {},
    ("put", "gate"): lambda them: {"gate": "off"},
    ("put", "eval-set"): lambda them: {"content": '{"prompt": "a", "completion": "b"}'},
    ("post", "imports"): lambda them: {"repo_id": "org/bot"},
    ("post", "uploads"): new_upload,
    ("post", "parts"): part,
    ("post", "complete"): lambda them: {"part_ids": [them.part_id]},
    ("post", "cancel"): lambda them: {},
    ("post", "session"): lambda them: {},
    # Of the fleet: the operators' alone.
    ("put", "<str:name>"): lambda them: {"keep": "warm"},
    ("post", "drain"): lambda them: {},
    ("post", "announce"): lambda them: {"url": "http://r:1"},
    ("post", "resume"): lambda them: {},
    # Of /v1/uploads, where nothing is.
    ("post", "<path:rest>"): lambda them: {},
    ("put", "<path:rest>"): lambda them: {},
    ("patch", "<path:rest>"): lambda them: {},
}
MULTIPART = {("post", "versions"), ("post", "parts")}
# A name that another tenant has too is free here: these make, or list, what is the caller's own.
OWN_NAMESPACE = {
    ("post", "keys"),
    ("post", "adapters"),
    ("post", "versions"),
    ("post", "imports"),
    ("get", "imports"),
    ("head", "imports"),
    ("post", "uploads"),
}


@dataclass(frozen=True)
class Ask:
    """One request of the sweep."""

    method: str
    url: str
    body: Body | None
    is_multipart: bool = False


def walk(patterns: list[Any], prefix: str = "") -> Iterator[tuple[str, URLPattern]]:
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from walk(pattern.url_patterns, route)
        else:
            yield route, pattern


def django_routes() -> list[tuple[str, URLPattern]]:
    """Those of ours: not Django's admin, which is the operators', nor the pages of the browser."""
    found = walk(get_resolver().url_patterns)
    return [(route, one) for route, one in found if route.startswith(("api/", "v1/"))]


def methods_of(pattern: URLPattern) -> list[str]:
    """Those that the view has; HEAD and OPTIONS come with every view."""
    view = pattern.callback.view_class  # type: ignore[attr-defined]
    return [one for one in METHODS if one not in ("head", "options") and hasattr(view, one)]


def kind(method: str, route: str) -> tuple[str, str]:
    return method, route.rstrip("/").rsplit("/", 1)[-1]


def pairs(route: str, method: str, own: Names, foreign: Names, is_ours: bool) -> list[list[Ask]]:
    """[asked for the foreign thing, asked for an absent one], for every place of the path, and for
    the body, from which on the names are not the caller's own. is_ours: the view has the method.
    """
    num_places = len(PARAMETER.findall(route))
    found = []
    for place in range(num_places + 1):
        asks = [ask_for(route, method, own, them, place, is_ours) for them in (foreign, ABSENT)]
        if str(asks[0]) != str(asks[1]):
            found.append(asks)
    return found


def ask_for(
    route: str, method: str, own: Names, them: Names, place: int, is_ours: bool = True
) -> Ask:
    """The first parts of the path name the caller's own things, those from place on theirs."""
    names = iter([own] * place + [them] * route.count("<"))
    url = PARAMETER.sub(lambda found: str(CAPTURED[found[1]](next(names))), route)
    body = None
    if is_ours and method in ("post", "put", "patch"):
        body = BODIES[kind(method, route)](them)
    return Ask(method, f"/{url}", body, kind(method, route) in MULTIPART)


def masked(text: str, *tenants: Names) -> str:
    """Without what those who are asked for are called."""
    for them in tenants:
        for value in {str(value) for value in dataclasses.astuple(them)}:
            text = re.sub(rf"\b{re.escape(value)}\b", "…", text, flags=re.IGNORECASE)
    return text


def every_row() -> dict[str, list[str]]:
    """The whole database."""
    rows = {}
    with connection.cursor() as cursor:
        for table in sorted(connection.introspection.table_names(cursor)):
            cursor.execute(f'SELECT * FROM "{table}"')
            rows[table] = sorted(map(repr, cursor.fetchall()))
    return rows
