"""The operator's pages. The house's own rows only; what tenants do to theirs goes through /api.

A change made here is audited at the tenant and told to the caches, as one made there is. Secrets
and salts are on no page.
"""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group
from django.db import models, transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.utils import timezone

from tenants.audit import Actor, record
from tenants.events import publish
from tenants.limits import LIMIT_COLUMNS
from tenants.models import ApiKey, AuditEvent, Member, Plan, Price, Tenant, UsageRecord, User
from tenants.money import plain
from tenants.scope import unscoped
from tenants.sign_in import SignInForm

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
    _UserAdmin = DjangoUserAdmin[User]
else:
    # Generic in the stubs only.
    _ModelAdmin = admin.ModelAdmin
    _UserAdmin = DjangoUserAdmin


admin.site.site_header = admin.site.site_title = "Grafthouse"
admin.site.index_title = "The house"
admin.site.login_form = SignInForm
# What a person may is is_staff, is_superuser and their memberships.
admin.site.unregister(Group)


class UnscopedAdmin(_ModelAdmin):
    """The operator sees all tenants. Pages are rendered before the scope closes again."""

    def changelist_view(self, *args: Any, **kwargs: Any) -> Any:
        with unscoped():
            return rendered(super().changelist_view(*args, **kwargs))

    def changeform_view(self, *args: Any, **kwargs: Any) -> Any:
        with unscoped():
            return rendered(super().changeform_view(*args, **kwargs))

    def delete_view(self, *args: Any, **kwargs: Any) -> Any:
        with unscoped():
            return rendered(super().delete_view(*args, **kwargs))

    def history_view(self, *args: Any, **kwargs: Any) -> Any:
        with unscoped():
            return rendered(super().history_view(*args, **kwargs))


def rendered(response: HttpResponseBase) -> HttpResponseBase:
    if isinstance(response, TemplateResponse) and not response.is_rendered:
        response.render()
    return response


class ReadOnlyAdmin(UnscopedAdmin):
    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False


def tell(request: HttpRequest, tenant_id: int, action: str, target: str, form: Any) -> None:
    """Audit row and cache notice of a change made in the admin."""
    after = {name: str(form.cleaned_data[name]) for name in form.changed_data}
    before = {name: str(form.initial.get(name)) for name in form.changed_data}
    actor = Actor(tenant_id, "operator", user_id=request.user.pk)
    record(actor, action, target, before=before, after=after, request=request)
    publish(tenant_id, action, {})


@admin.register(User)
class UserAdmin(_UserAdmin):
    """People are never deleted, since the books name them: who is not active cannot sign in."""

    list_display = ["username", "email", "is_active", "is_staff", "last_login"]
    list_filter = ["is_active", "is_staff"]
    fieldsets = (
        (None, {"fields": ["username", "password"]}),
        ("Person", {"fields": ["email", "first_name", "last_name"]}),
        (
            "May",
            {
                "fields": ["is_active", "is_staff", "is_superuser"],
                "description": "Active: sign in. Staff: see every tenant, and operate the fleet. "
                "Superuser: change what these pages show. What a person may in a tenant is a "
                "member's role.",
            },
        ),
        ("When", {"fields": ["last_login", "date_joined"]}),
    )

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False


@admin.register(Plan)
class PlanAdmin(_ModelAdmin):
    list_display = [
        "name",
        "price_now",
        *LIMIT_COLUMNS,
        "max_rank",
        "weight",
    ]
    prepopulated_fields = {"slug": ["name"]}
    fieldsets = (
        (None, {"fields": ["name", "slug"]}),
        (
            "Limits of each of its tenants",
            {
                "fields": LIMIT_COLUMNS,
                "description": "Empty: none. Days and months are UTC; money is in the currency of "
                "the prices.",
            },
        ),
        (
            "Adapters",
            {
                "fields": [
                    "max_rank",
                    "max_adapters",
                    "max_versions",
                    "max_upload_bytes",
                    "max_upload_parts",
                    "max_open_uploads",
                    "max_stored_bytes",
                ]
            },
        ),
        ("Engine", {"fields": ["weight"]}),
    )

    @admin.display(description="price now (prompt, cached, completion)")
    def price_now(self, plan: Plan) -> str:
        """A plan without one costs nothing, and reaches no budget: that must be seen."""
        price = Price.objects.filter(plan=plan, effective_from__lte=timezone.now()).first()
        if price is None:
            return "none: free"
        per_million = (
            price.prompt_per_million,
            price.cached_per_million,
            price.completion_per_million,
        )
        return ", ".join(map(plain, per_million))

    def save_model(self, request: HttpRequest, obj: Plan, form: Any, change: bool) -> None:
        with transaction.atomic():
            super().save_model(request, obj, form, change)
            for tenant in obj.tenant_set.all():
                tell(request, tenant.id, "plan.changed", obj.slug, form)


@admin.register(Price)
class PriceAdmin(_ModelAdmin):
    """Prices are added, never changed: usage rows point at what they were charged."""

    list_display = [
        "plan",
        "effective_from",
        "prompt_per_million",
        "cached_per_million",
        "completion_per_million",
    ]
    list_select_related = ["plan"]

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Price, form: Any, change: bool) -> None:
        with transaction.atomic():
            super().save_model(request, obj, form, change)
            for tenant in obj.plan.tenant_set.all():
                tell(request, tenant.id, "price.changed", str(obj), form)


@admin.register(Tenant)
class TenantAdmin(UnscopedAdmin):
    list_display = ["slug", "name", "plan", "is_active", "created_at"]
    list_select_related = ["plan"]
    list_filter = ["is_active", "plan"]
    search_fields = ["slug", "name"]
    prepopulated_fields = {"slug": ["name"]}
    fieldsets = (
        (
            None,
            {
                "fields": ["name", "slug", "plan", "is_active"],
                "description": "One that is not active is suspended at once: its keys get a 401, "
                "its members a 403; nothing of it is lost.",
            },
        ),
        (
            "Limits of its own",
            {
                "fields": LIMIT_COLUMNS,
                "description": "They tighten the plan's. Empty: those alone.",
            },
        ),
    )

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        # The slug is in clients' addresses.
        return ["slug"] if obj else []

    def get_prepopulated_fields(self, request: HttpRequest, obj: Any = None) -> dict[str, Any]:
        return {} if obj else {"slug": ["name"]}

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Tenant, form: Any, change: bool) -> None:
        with transaction.atomic():
            super().save_model(request, obj, form, change)
            tell(request, obj.id, "tenant.changed", obj.slug, form)


@admin.register(Member)
class MemberAdmin(UnscopedAdmin):
    list_display = ["tenant", "user", "role"]
    list_select_related = ["tenant", "user"]
    list_filter = ["role"]
    search_fields = ["tenant__slug", "user__username"]
    autocomplete_fields = ["tenant", "user"]

    def save_model(self, request: HttpRequest, obj: Member, form: Any, change: bool) -> None:
        with transaction.atomic():
            super().save_model(request, obj, form, change)
            tell(request, obj.tenant_id, "member.changed", obj.user.get_username(), form)

    def delete_model(self, request: HttpRequest, obj: Member) -> None:
        with transaction.atomic():
            name, tenant_id = obj.user.get_username(), obj.tenant_id
            super().delete_model(request, obj)
            actor = Actor(tenant_id, "operator", user_id=request.user.pk)
            record(actor, "member.removed", name, before={"role": obj.role}, request=request)
            publish(tenant_id, "member.changed", {})

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        # Deleting many at once would go past delete_model.
        return {}


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    list_display = ["tenant", "name", "public_id", "scopes", "last_used_at", "revoked_at"]
    list_select_related = ["tenant"]
    search_fields = ["public_id", "name", "tenant__slug"]
    exclude = ["secret_sha256"]


@admin.register(UsageRecord)
class UsageRecordAdmin(ReadOnlyAdmin):
    list_display = ["started_at", "tenant", "model", "status", "prompt_tokens", "completion_tokens"]
    list_select_related = ["tenant"]
    list_filter = ["status"]
    search_fields = ["request_id", "tenant__slug"]
    show_full_result_count = False


@admin.register(AuditEvent)
class AuditEventAdmin(ReadOnlyAdmin):
    list_display = ["at", "tenant", "actor", "role", "action", "target"]
    list_select_related = ["tenant"]
    list_filter = ["action"]
    search_fields = ["actor", "target", "tenant__slug"]
    show_full_result_count = False
