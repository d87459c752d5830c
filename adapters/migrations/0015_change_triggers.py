from django.db import migrations

from tenants.change_triggers import Watched, unwatch, watch

# What adapters.access.resolve reads.
WATCHED = (
    Watched('adapters_adapter', ('tenant_id', 'name', 'retired_at')),
    Watched(
        'adapters_adapterversion',
        ('tenant_id', 'adapter_id', 'number', 'state', 'digest', 'profile', 'superseded_at'),
    ),
    Watched('adapters_modelname', ('tenant_id', 'name', 'adapter_id', 'version_id', 'is_alias')),
    Watched('adapters_canary', ('tenant_id', 'adapter_id', 'version_id', 'percent', 'state')),
)


def watch_all(apps, schema_editor):
    for watched in WATCHED:
        watch(schema_editor, watched)


def unwatch_all(apps, schema_editor):
    for watched in WATCHED:
        unwatch(schema_editor, watched)


class Migration(migrations.Migration):
    # Each table is locked for an instant, never one while another is waited for.
    atomic = False

    dependencies = [
        ('adapters', '0014_replica_announced'),
        ('tenants', '0007_change_triggers'),
    ]

    operations = [
        migrations.RunPython(watch_all, unwatch_all),
    ]
