"""The change log: written by the database for whatever a look-up reads, read without a gap."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from random import Random

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F
from django.utils import timezone

from tenants import changes
from tenants.audit import system
from tenants.auth import authenticate_key, principal_for_member
from tenants.changes import Change, Position, changes_since, forget_before
from tenants.keys import NewKey, create_key
from tenants.models import ApiKey, Member, Plan, Price, Tenant, User
from tenants.prices import price_for
from tenants.scope import tenant_scope, unscoped
from tests.change_log import told_by, told_columns
from tests.factories import add_member, get_acme, get_initech, make_alice, make_carol, make_oscar

pytestmark = pytest.mark.django_db

EVERYBODY, NOBODY = frozenset({None}), frozenset[int | None]()


def on_postgresql() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer, and no roles")


def make_key(tenant: Tenant) -> NewKey:
    return create_key(system(tenant.id), "k", ["inference"])


def make_price(plan: Plan) -> Price:
    costs = dict.fromkeys(
        ("prompt_per_million", "cached_per_million", "completion_per_million"), Decimal(1)
    )
    return Price.objects.create(plan=plan, **costs)


def test_it_works() -> None:
    acme = get_acme()
    assert told_by(lambda: make_key(acme)) == {acme.id}
    assert told_by(lambda: None) == NOBODY


def test_every_column_that_a_look_up_reads_is_watched() -> None:
    """Each column of each table is changed, past every hook; what none was told of is read by none.
    So is a column that a later migration adds.
    """
    acme, initech = get_acme(), get_initech()
    alice, oscar = make_alice(), make_oscar()
    make_carol()
    key, other = make_key(acme), make_key(initech)
    price = make_price(acme.plan)
    other_plan = Plan.objects.create(slug="other", name="Other", requests_per_minute=1)
    make_price(other_plan)
    lookups = [
        lambda: authenticate_key(key.raw),
        lambda: authenticate_key(other.raw),
        lambda: principal_for_member(alice.id, "acme"),
        lambda: principal_for_member(oscar.id, "acme"),
        lambda: price_for(acme.id, timezone.now()),
    ]
    with unscoped():
        member = Member.objects.get(user=alice)
    rows = (acme.plan, acme, alice, oscar, member, key.row, price)
    told = {type(row): told_columns([row], lookups) for row in rows}
    assert set(told[User]) == {"is_active", "is_staff"}
    assert set(told[Plan].values()) == set(told[User].values()) == {EVERYBODY}
    assert set(told[Price].values()) == {EVERYBODY}
    for model in (Tenant, ApiKey, Member):
        # What moves to another tenant is both tenants'.
        whose = {name: ids for name, ids in told[model].items() if name != "tenant_id"}
        assert set(whose.values()) == {frozenset({acme.id})}, model
    assert told[ApiKey]["tenant_id"] == told[Member]["tenant_id"] == EVERYBODY
    unread = {ApiKey: ("last_used_at", "created_by_id"), Tenant: ("name",), Plan: ("max_adapters",)}
    for model, names in unread.items():
        assert not set(names) & set(told[model])


def test_what_changes_nothing_is_not_told() -> None:
    acme, alice = get_acme(), make_alice()
    key = make_key(acme).row
    with tenant_scope(acme.id):
        for row in (acme, acme.plan, alice, key):
            assert told_by(row.save) == NOBODY
        assert told_by(lambda: ApiKey.objects.update(name=F("name"))) == NOBODY
    # Nobody is on it, and nobody was let in.
    assert told_by(lambda: Plan.objects.create(slug="new", name="New")) == NOBODY
    assert told_by(lambda: User.objects.create(username="new")) == NOBODY


def test_what_comes_and_goes_is_told() -> None:
    acme, alice = get_acme(), make_alice()
    price = make_price(acme.plan)
    with tenant_scope(acme.id):
        key = make_key(acme).row
        assert told_by(Member.objects.all().delete) == {acme.id}
        assert told_by(lambda: add_member(acme, alice, "viewer")) == {acme.id}
        assert told_by(lambda: ApiKey.objects.filter(id=key.id).delete()) == {acme.id}
    with unscoped():
        assert told_by(price.delete) == EVERYBODY
        assert told_by(lambda: make_price(acme.plan)) == EVERYBODY
        assert told_by(alice.delete) == {acme.id, None}


def revoke_by_hand(tenant: Tenant) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE tenants_apikey SET revoked_at = %s WHERE tenant_id = %s",
            [timezone.now(), tenant.id],
        )


def test_who_cannot_go_on_begins_anew() -> None:
    make_key(get_acme())
    position = changes_since(None).position
    assert changes_since(None).tenant_ids == EVERYBODY
    assert changes_since(position).tenant_ids != EVERYBODY
    late = replace(position, taken_at=position.taken_at - changes.MAX_POSITION_AGE_S - 1)
    assert changes_since(late).tenant_ids == EVERYBODY
    # The database is another one than it was: of a backup, or a stand-by that lagged.
    assert (
        changes_since(replace(position, horizon=position.horizon + 10**6)).tenant_ids == EVERYBODY
    )


Connect = Callable[[], BaseDatabaseWrapper]


@pytest.fixture
def connect(transactional_db: None) -> Iterator[Connect]:
    """Another connection to this database."""
    made: list[BaseDatabaseWrapper] = []

    def connect() -> BaseDatabaseWrapper:
        made.append(connection.copy())
        made[-1].set_autocommit(False)
        return made[-1]

    yield connect
    for one in made:
        one.close()


def rename_keys(one: BaseDatabaseWrapper, tenant: Tenant, name: str) -> None:
    with one.cursor() as cursor:
        cursor.execute(
            "UPDATE tenants_apikey SET name = %s WHERE tenant_id = %s", [name, tenant.id]
        )


@pytest.mark.django_db(transaction=True)
def test_what_commits_late_is_told_and_nothing_twice(connect: Connect) -> None:
    on_postgresql()
    acme, initech = get_acme(), get_initech()
    for tenant in (acme, initech):
        make_key(tenant)
    first, second = connect(), connect()
    position = changes_since(changes_since(None).position).position
    rename_keys(first, acme, "early")
    rename_keys(second, initech, "late")
    second.commit()
    found = changes_since(position)
    assert found.tenant_ids == {initech.id}
    # Its row came after one that nobody can see yet.
    assert changes_since(found.position).tenant_ids == NOBODY
    first.commit()
    with connection.cursor() as cursor:
        cursor.execute("SELECT tenant_id FROM tenants_change ORDER BY id DESC LIMIT 2")
        assert [row[0] for row in cursor.fetchall()] == [initech.id, acme.id]
    found = changes_since(found.position)
    assert found.tenant_ids == {acme.id}
    assert changes_since(found.position).tenant_ids == NOBODY


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("seed", range(3))
def test_whatever_order_they_commit_in(connect: Connect, seed: int) -> None:
    """Each change is told by the first poll after its commit, by that one only, and none that was
    rolled back; others forget what was read meanwhile.
    """
    on_postgresql()
    chance = Random(seed)
    writers = [
        (connect(), Tenant.objects.create(slug=f"t{n}", name=str(n), plan=get_acme().plan))
        for n in range(4)
    ]
    for _, tenant in writers:
        make_key(tenant)
    position = changes_since(changes_since(None).position).position
    pending, committed = set[int](), set[int]()
    for number in range(300):
        one, tenant = chance.choice(writers)
        act = chance.choice(("write", "write", "commit", "roll back", "poll", "forget"))
        if act == "write":
            rename_keys(one, tenant, str(number))
            pending.add(tenant.id)
        elif act == "commit":
            one.commit()
            committed |= pending & {tenant.id}
            pending.discard(tenant.id)
        elif act == "roll back":
            one.rollback()
            pending.discard(tenant.id)
        elif act == "forget":
            forget_before(position)
        else:
            found = changes_since(position)
            assert found.tenant_ids == committed
            position, committed = found.position, set()


@pytest.mark.django_db(transaction=True)
def test_unrelated_changes_wait_for_nobody(connect: Connect) -> None:
    """Two transactions that change two tenants each, crosswise: no lock is shared, so none ends in
    a deadlock.
    """
    on_postgresql()
    tenants = [get_acme(), get_initech()]
    for tenant in tenants:
        make_key(tenant)
    first, second = connect(), connect()
    for one, tenant in ((first, tenants[0]), (second, tenants[1])):
        with one.cursor() as cursor:
            cursor.execute("SET lock_timeout = '1s'")
        rename_keys(one, tenant, "changed")
    with first.cursor() as cursor:
        cursor.execute("UPDATE tenants_plan SET weight = 2")
    with second.cursor() as cursor:
        cursor.execute("UPDATE tenants_user SET is_active = false")
    second.commit()
    first.commit()


def test_what_was_read_is_forgotten_and_the_rest_is_not() -> None:
    acme = get_acme()
    make_key(acme)
    here = changes_since(None).position
    num_before = Change.objects.count()
    assert num_before
    revoke_by_hand(acme)
    # All of one transaction of PostgreSQL here, which still runs: nothing is below its horizon.
    forget_before(here)
    assert changes_since(here).tenant_ids == {acme.id}
    forget_before(Position(2**62, frozenset(), 0.0))
    assert not Change.objects.exists()


def test_the_log_is_forgotten_by_none_but_the_house_and_written_for_all() -> None:
    """A clerk who may change a key's name needs no right to the log, and has none; a search path
    or a temporary table of the same name leads the trigger nowhere else.
    """
    on_postgresql()
    acme = get_acme()
    make_key(acme)

    def rename() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("CREATE ROLE clerk")
            cursor.execute("GRANT SELECT, UPDATE (name) ON tenants_apikey TO clerk")
            cursor.execute("SET LOCAL ROLE clerk")
            cursor.execute("CREATE TEMPORARY TABLE tenants_change (tenant_id bigint, xact bigint)")
            cursor.execute("SET LOCAL search_path = pg_temp, public")
            cursor.execute("UPDATE public.tenants_apikey SET name = 'renamed'")
            cursor.execute("SELECT count(*) FROM pg_temp.tenants_change")
            assert cursor.fetchone() == (0,)
            for statement in (
                "SELECT * FROM public.tenants_change",
                "CREATE TEMPORARY TABLE bait (tenant_id bigint); CREATE TRIGGER t AFTER INSERT "
                "ON bait EXECUTE FUNCTION public.tenants_note_change()",
            ):
                with pytest.raises(DatabaseError, match="permission denied"), transaction.atomic():
                    cursor.execute(statement)
            cursor.execute("RESET ROLE; RESET search_path; DROP TABLE pg_temp.tenants_change")
            cursor.execute("DROP OWNED BY clerk; DROP ROLE clerk")

    assert told_by(rename) == {acme.id}


def test_an_emptied_table_is_told() -> None:
    on_postgresql()

    def empty() -> None:
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE tenants_member")

    assert told_by(empty) == EVERYBODY


def test_prices_say_until_when() -> None:
    acme = get_acme()
    assert price_for(acme.id, timezone.now()).until is None
    now = timezone.now()
    price = make_price(acme.plan)
    moments = [now + timedelta(days=days) for days in (2, 1)]
    for price.effective_from in moments:
        price.id = None
        price.save()
    assert price_for(acme.id, timezone.now()).until == moments[1]
    assert price_for(acme.id, moments[1]).until == moments[0]
    assert price_for(acme.id, moments[0]).until is None
