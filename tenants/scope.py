"""Which tenant's rows may be touched here and now, held where SQL is made.

A model that belongs to a tenant inherits ScopedModel. Its managers see only the rows of the tenant
whose scope is open; with no scope open every statement raises ScopeError instead of being compiled.
unscoped() is the exception, and easy to grep for. What this does not cover is in tenants/README.md.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Any, NoReturn, TypeVar

from django.db import models
from django.db.models import sql
from django.db.models.sql.compiler import SQLCompiler


class ScopeError(RuntimeError):
    """A tenant's rows were touched outside its scope: a mistake of ours, never a client's."""


class Unscoped(Enum):
    ALL = "all tenants"


# None: no scope is open. A context variable follows await and sync_to_async, but not bare threads
# and not the generator of a streaming response: it is None there, so forgetting it fails closed.
_scope: ContextVar[int | Unscoped | None] = ContextVar("tenant_scope", default=None)

M = TypeVar("M", bound=models.Model)


@contextmanager
def tenant_scope(tenant_id: int) -> Iterator[None]:
    """Managers of tenant-owned models see this tenant's rows only. Inner scopes win."""
    token = _scope.set(tenant_id)
    try:
        yield
    finally:
        _scope.reset(token)


@contextmanager
def unscoped() -> Iterator[None]:
    """All tenants' rows: the key look-up, sweepers, the operator. Say why at the call."""
    token = _scope.set(Unscoped.ALL)
    try:
        yield
    finally:
        _scope.reset(token)


def current_tenant_id() -> int | None:
    """The tenant whose scope is open, None outside of one and in unscoped()."""
    scope = _scope.get()
    return scope if isinstance(scope, int) else None


class ScopedQuery(sql.Query):
    """Remembers the scope in which it was built; built outside of any, it never becomes SQL."""

    tenant_scope: int | Unscoped | None = None

    def get_compiler(self, *args: Any, **kwargs: Any) -> SQLCompiler:
        self.require_scope()
        compiler: SQLCompiler = super().get_compiler(*args, **kwargs)
        return compiler

    def chain(self, klass: type[sql.Query] | None = None) -> Any:
        # UPDATE leaves this class by chain(UpdateQuery), so that is a door too.
        if klass is not None:
            self.require_scope()
        return super().chain(klass)

    def combine(self, rhs: sql.Query, connector: str) -> None:
        # `|` would widen this query by the rows of the other one's scope.
        if getattr(rhs, "tenant_scope", None) != self.tenant_scope:
            raise ScopeError(f"querysets of two scopes were combined: {self.model}")
        super().combine(rhs, connector)

    def require_scope(self) -> None:
        # none() asks no database; generic views call it at import.
        if self.tenant_scope is None and not self.is_empty():
            refuse(self.model)


def refuse(model: type[models.Model] | None) -> NoReturn:
    raise ScopeError(f"used outside of tenant_scope(): {model}")


class ScopedQuerySet(models.QuerySet[M]):
    def _raw_delete(self, using: str | None) -> int:
        # Django swaps the query's class here without chain().
        if isinstance(self.query, ScopedQuery):
            self.query.require_scope()
        count: int = super()._raw_delete(using)
        return count

    def bulk_create(self, objs: Iterable[M], *args: Any, **kwargs: Any) -> list[M]:
        rows = list(objs)
        for row in rows:
            require_own(row)
        return super().bulk_create(rows, *args, **kwargs)

    def raw(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ScopeError(f"{self.model.__name__}: raw SQL cannot be scoped")


class ScopedManager(models.Manager[M]):
    def get_queryset(self) -> ScopedQuerySet[M]:
        scope = _scope.get()
        query = ScopedQuery(self.model)
        query.tenant_scope = scope
        rows: ScopedQuerySet[M] = ScopedQuerySet(self.model, query=query, using=self._db)
        return rows.filter(tenant_id=scope) if isinstance(scope, int) else rows

    def raw(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ScopeError(f"{self.model.__name__}: raw SQL cannot be scoped")


def require_own(row: models.Model) -> None:
    """Raises ScopeError unless the row is of the tenant whose scope is open."""
    scope = _scope.get()
    tenant_id = getattr(row, "tenant_id", None)
    if scope is None:
        refuse(type(row))
    if scope is not Unscoped.ALL and tenant_id != scope:
        raise ScopeError(f"{type(row).__name__} of tenant {tenant_id} was written in scope {scope}")


class ScopedModel(models.Model):
    """A row that belongs to one tenant."""

    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.PROTECT)

    objects = ScopedManager["ScopedModel"]()

    class Meta:
        abstract = True
        # Django then also follows foreign keys, refreshes and saves through the scope.
        base_manager_name = "objects"

    def save(self, *args: Any, **kwargs: Any) -> None:
        require_own(self)
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        require_own(self)
        return super().delete(*args, **kwargs)
