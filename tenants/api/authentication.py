"""How a request to /api says who it is: a key (here), or a session cookie with CSRF (DRF's)."""

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from tenants.auth import Principal, authenticate_key


class KeyUser:
    """What DRF calls the user when a key is calling: authenticated, nobody, no operator."""

    is_authenticated = True
    is_active = True
    is_staff = False
    pk = id = None


class KeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer gh-…`; the scheme in any case. request.auth is then a Principal."""

    def authenticate(self, request: Request) -> tuple[KeyUser, Principal] | None:
        scheme, _, raw = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        return KeyUser(), authenticate_key(raw.strip())

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = KeyAuthentication
    name = "apiKey"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "gh-<public id>-<secret>"}
