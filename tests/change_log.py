"""For the tests of the change log: every column of a table changed in turn, and who was told of."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import product
from typing import Any

from django.db import IntegrityError, models, transaction
from django.db.models import Field, ForeignKey
from django.utils import timezone

from tenants.changes import changes_since
from tenants.errors import ApiError
from tenants.scope import unscoped

TenantIds = frozenset[int | None]
Lookup = Callable[[], object]


def told_by(act: Callable[[], object]) -> TenantIds:
    """Whose rows the log says that act() changed."""
    position = changes_since(changes_since(None).position).position
    act()
    return changes_since(position).tenant_ids


def answer(lookup: Lookup) -> object:
    try:
        return lookup()
    except ApiError as error:
        return error.code


def another(field: "Field[Any, Any]", row: models.Model) -> object:
    """A value that the column may have instead of its own."""
    value = getattr(row, field.attname)
    if isinstance(field, ForeignKey):
        with unscoped():
            rows = field.related_model._base_manager.exclude(pk=value)
            return rows.values_list("pk", flat=True).first()
    if field.choices:
        return next(one for one, _ in field.choices if one != value)
    if isinstance(field, models.BooleanField):
        return not value
    if isinstance(field, models.DateTimeField):
        return timezone.now()
    if isinstance(field, models.JSONField):
        return ["other"] if isinstance(value, list) else {"max_tokens": 7}
    if isinstance(value, str):
        return f"{value[:-1]}z"
    return 1 if value is None else value + 20


def told_columns(rows: Sequence[models.Model], lookups: list[Lookup]) -> dict[str, TenantIds]:
    """By column: whom the log named when it changed, in one row of them alone. Columns that it
    named nobody for must leave every look-up's answer as it was.
    """
    columns = {one.attname: one for one in rows[0]._meta.concrete_fields if not one.primary_key}
    told, tried = {}, set()
    before = [answer(lookup) for lookup in lookups]
    for name, row in product(columns, rows):
        # What the database refuses cannot happen, in that row.
        with suppress(IntegrityError), transaction.atomic(), unscoped():
            own = type(row)._base_manager.filter(pk=row.pk)
            values = {name: another(columns[name], row)}
            found = told_by(lambda own=own, values=values: own.update(**values))  # type: ignore[misc]
            if found:
                told[name] = found
            else:
                assert [answer(lookup) for lookup in lookups] == before, name
            tried.add(name)
            transaction.set_rollback(True)
    assert tried == columns.keys()
    return told
