"""How a request to /api says who it is: a key (here), or a session cookie with CSRF (DRF's)."""

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
