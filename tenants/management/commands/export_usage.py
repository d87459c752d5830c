"""`manage.py export_usage 2026-11 bills/`: the ledger of a month, a file for each tenant."""

from argparse import ArgumentParser
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from tenants.billing.exports import FORMATS, as_record, read_chunk
from tenants.billing.periods import Period
from tenants.billing.summary import rows_of
from tenants.models import Tenant, UsageStatus
from tenants.money import plain
from tenants.scope import tenant_scope


class Command(BaseCommand):
    help = "Write every tenant's usage of a month to a folder, as the API exports it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("month", help="of UTC, as 2026-11")
        parser.add_argument("folder", type=Path, help="made if it is not there")
        parser.add_argument("--format", choices=FORMATS, default="csv")

    def handle(self, *, month: str, folder: Path, format: str, **options: Any) -> None:
        try:
            period = Period.of_month(month)
        except ValueError as error:
            raise CommandError(f"month: expected one as 2026-11, got {month!r}") from error
        folder.mkdir(parents=True, exist_ok=True)
        for tenant in Tenant.objects.all():
            path = folder / f"{tenant.slug}-{month}.{format}"
            num_rows, cost = write(tenant.id, period, path, format)
            self.stdout.write(f"{path}: {num_rows} requests, {plain(cost)}")
            self._warn(tenant, period)

    def _warn(self, tenant: Tenant, period: Period) -> None:
        """Of what makes these files not the last word."""
        with tenant_scope(tenant.id):
            num_open = rows_of(period).filter(status=UsageStatus.OPEN).count()
        if num_open:
            self.stderr.write(f"{tenant.slug}: {num_open} requests still run and are left out")
        if period.end > timezone.now():
            self.stderr.write(f"{tenant.slug}: the month is not over")


def write(tenant_id: int, period: Period, path: Path, format_name: str) -> tuple[int, Decimal]:
    """How many rows the file has, and what they cost together."""
    _, header, lines_of = FORMATS[format_name]
    num_rows, cost = 0, Decimal(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(header)
        for records in chunks(tenant_id, period):
            file.write(lines_of(records))
            num_rows += len(records)
            cost += sum(Decimal(record["cost"]) for record in records)
    return num_rows, cost


def chunks(tenant_id: int, period: Period) -> Iterator[list[dict[str, Any]]]:
    last = None
    while rows := read_chunk(tenant_id, period, last):
        yield [as_record(row) for row in rows]
        last = rows[-1]
