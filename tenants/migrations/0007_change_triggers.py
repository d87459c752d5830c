from django.db import migrations

from tenants.change_triggers import Watched, drop_function, make_function, unwatch, watch

LIMITS = (
    'requests_per_minute',
    'tokens_per_minute',
    'max_concurrency',
    'tokens_per_day',
    'tokens_per_month',
    'daily_budget',
    'monthly_budget',
)
KEY = ('public_id', 'secret_sha256', 'name', 'scopes', 'allowed_models', 'family_id', 'expires_at', 'revoked_at')
PRICES = ('prompt_per_million', 'cached_per_million', 'completion_per_million')
# What tenants.auth and tenants.prices read. Nobody is on a new plan yet, nor let in as a new user:
# what lets them in is a row of its own.
WATCHED = (
    Watched('tenants_plan', ('weight', *LIMITS), tenant=None, is_new_read=False),
    Watched('tenants_tenant', ('slug', 'plan_id', 'is_active', 'cache_salt', *LIMITS), tenant='id'),
    Watched('tenants_user', ('is_active', 'is_staff'), tenant=None, is_new_read=False),
    Watched('tenants_member', ('tenant_id', 'user_id', 'role')),
    Watched('tenants_apikey', ('tenant_id', *KEY, *LIMITS)),
    Watched('tenants_price', ('plan_id', *PRICES, 'effective_from'), tenant=None),
)


def watch_all(apps, schema_editor):
    make_function(schema_editor)
    for watched in WATCHED:
        watch(schema_editor, watched)


def unwatch_all(apps, schema_editor):
    for watched in WATCHED:
        unwatch(schema_editor, watched)
    drop_function(schema_editor)


class Migration(migrations.Migration):
    # Each table is locked for an instant, never one while another is waited for.
    atomic = False

    dependencies = [
        ('tenants', '0006_change'),
    ]

    operations = [
        migrations.RunPython(watch_all, unwatch_all),
    ]
