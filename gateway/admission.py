"""The one pipeline of SSE, JSON and WebSocket: authenticate → resolve → reserve → route → open, and
settle.

Nothing here asks the database in the steady state: keys, models and prices come from caches that
changes are pushed to, and that the change log proves. Whatever ends a request, what was reserved is
settled exactly once; who leaves meanwhile stops nothing of it.
"""

import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from django.conf import settings
from django.utils import timezone

from adapters.access import Resolved, resolve
from adapters.share import pick
from gateway import metrics
from gateway.admitted import Admission
from gateway.generation import Generation
from gateway.openai.http import ClientGone
from gateway.openai.profile import fill_in
from gateway.openai.schema import Ask, bad_request
from gateway.runtime import Runtime
from tenants.auth import (
    Principal,
    authenticate_key,
    principal_for_member,
    require_scope,
    require_unexpired,
)
from tenants.errors import ApiError
from tenants.models import KeyScope
from tenants.prices import PriceBook, price_for

MAX_KEY_CHARS = 200


def bearer(header: str | None) -> str:
    """The key of an Authorization header; 401 when there is none.

    The scheme's case does not matter.
    """
    scheme, _, raw = (header or "").strip().partition(" ")
    raw = raw.strip()
    if scheme.lower() != "bearer" or not raw or len(raw) > MAX_KEY_CHARS:
        raise ApiError(
            code="invalid_api_key",
            status=401,
            message="Provide your API key in an Authorization header: Bearer gh-….",
            headers={"www-authenticate": "Bearer"},
        )
    return raw


async def authenticate(runtime: Runtime, raw: str) -> Principal:
    """The key's holder, as of CACHE_TTL_S ago at most. The key itself is not kept in memory."""
    name = hashlib.sha256(raw.encode()).digest()
    principal = await runtime.lookups.principals.get(name, authenticate_key, raw)
    require_unexpired(principal)
    return principal


async def authenticate_member(runtime: Runtime, user_id: int, tenant_slug: str) -> Principal:
    name = ("member", user_id, tenant_slug)
    return await runtime.lookups.principals.get(name, principal_for_member, user_id, tenant_slug)


async def resolve_model(runtime: Runtime, principal: Principal, name: str) -> Resolved:
    key = (principal.tenant_id, name, principal.allowed_models)
    return await runtime.lookups.models.get(key, resolve, principal, name)


async def resolve_ask(runtime: Runtime, principal: Principal, ask: Ask) -> Resolved:
    """model, or the adapter that lora_path names beside the base; both, when they name the same
    version.
    """
    if ask.lora_path is None:
        return await resolve_model(runtime, principal, ask.model)
    by_path = await resolve_model(runtime, principal, ask.lora_path)
    if ask.model == settings.BASE_MODEL_NAME:
        return by_path
    resolved = await resolve_model(runtime, principal, ask.model)
    if resolved.digest != by_path.digest:
        raise bad_request("model and lora_path name different adapters; send one.", "lora_path")
    return by_path


def end_user(ask: Ask, principal: Principal) -> str:
    """Whose version a canary never changes from one request to the next, of this tenant."""
    for name in ("safety_identifier", "user"):
        value = ask.body.get(name)
        # What is no text is the engine's to refuse.
        if isinstance(value, str) and value:
            return f"user {value}"
    if principal.key_id is not None:
        return f"key {principal.key_id}"
    return f"member {principal.user_id}"


async def current_prices(runtime: Runtime, tenant_id: int) -> PriceBook:
    return await runtime.lookups.prices.get(tenant_id, price_for, tenant_id, timezone.now())


@asynccontextmanager
async def admit(
    runtime: Runtime, principal: Principal, ask: Ask, request_id: str
) -> AsyncIterator[Generation]:
    """An admitted request, settled when the block is left.

    Raises ApiError; a refused request costs nothing.
    """
    with counted_refusals():
        admission = await reserve(runtime, principal, ask, request_id)
    generation = Generation(runtime, admission)
    try:
        await generation.route()
        generation.open()
        yield generation
    except ApiError as error:
        generation.fail(error.code)
        # Also when no replica could be found, before the answer had them.
        error.headers = generation.headers | error.headers
        raise
    except ClientGone:
        raise
    except Exception:
        generation.fail("internal_error")
        raise
    finally:
        generation.settle()


@contextmanager
def counted_refusals() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        metrics.REFUSED.labels(error.code, error.type).inc()
        raise


async def reserve(runtime: Runtime, principal: Principal, ask: Ask, request_id: str) -> Admission:
    require_scope(principal, KeyScope.INFERENCE)
    started_at = timezone.now()
    named = await resolve_ask(runtime, principal, ask)
    resolved = pick(named, end_user(ask, principal))
    ask = fill_in(ask, resolved.profile)
    prices = await current_prices(runtime, principal.tenant_id)
    max_tokens = default_max_tokens(ask, resolved) if ask.max_tokens is None else ask.max_tokens
    prompt, completion = bounds(ask, max_tokens, runtime.replicas.max_model_len())
    cost_nanos = prices.cost_nanos(prompt, 0, completion)
    # Cancelled here, the quota releases by itself what it was about to hold.
    reservation = await runtime.quota.reserve(
        principal, request_id, prompt + completion, cost_nanos
    )
    return Admission(
        request_id, principal, ask, resolved, prices, reservation, max_tokens, started_at
    )


def default_max_tokens(ask: Ask, resolved: Resolved) -> int:
    """The version's; else OpenAI's own of completions, and DEFAULT_MAX_TOKENS for chat, which has
    none there.
    """
    if resolved.profile and resolved.profile.max_tokens is not None:
        return resolved.profile.max_tokens
    return settings.DEFAULT_MAX_TOKENS if ask.endpoint == "chat.completions" else 16


def bounds(ask: Ask, max_tokens: int, max_model_len: int | None) -> tuple[int, int]:
    """(prompt, completion) tokens that the request can cost at most; the context limits both, for
    each sequence.
    """
    prompt, completion = ask.num_prompt_tokens_bound, max_tokens
    if max_model_len is not None:
        completion = min(completion, max_model_len)
        prompt = min(prompt, max_model_len * ask.num_sequences)
    return prompt, completion * ask.num_sequences
