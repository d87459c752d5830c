"""The browser application's page, and what /api answers for paths that do not exist."""

from django.conf import settings
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseNotAllowed,
    JsonResponse,
)
from django.utils.cache import add_never_cache_headers
from django.views.decorators.csrf import csrf_exempt

NOT_BUILT = (
    "The web interface is not built yet. Build it with `make ui`, or start everything with\n"
    "`make run`.\n"
    "The OpenAI-compatible API is at /v1, the admin API at /api, its schema at /api/schema/.\n"
)


@csrf_exempt
def page(request: HttpRequest) -> HttpResponseBase:
    """index.html for every path of the client-side router; a missing asset stays a 404.

    Only what is below /assets/ is a file: a name in a path may have dots (an adapter's does).
    """
    if request.method not in {"GET", "HEAD"}:
        return HttpResponseNotAllowed(["GET", "HEAD"])
    if not request.accepts("text/html") or request.path.startswith("/assets/"):
        return HttpResponse("Not found.\n", status=404, content_type="text/plain")
    index = settings.FRONTEND_DIR / "index.html"
    if not index.is_file():
        return HttpResponse(NOT_BUILT, status=503, content_type="text/plain; charset=utf-8")
    response = HttpResponse(index.read_bytes(), content_type="text/html; charset=utf-8")
    # It names the current assets: kept, it would ask for those of the last release.
    add_never_cache_headers(response)
    return response


# A client of another API (Ollama's /api/chat) is told that there is none, not of cookies.
@csrf_exempt
def api_not_found(request: HttpRequest, rest: str = "") -> JsonResponse:
    return api_error(404, "not_found", f"Unknown path: {request.method} {request.path[:200]}.")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if request.path.startswith("/api/"):
        return api_not_found(request)
    return HttpResponse("Not found.\n", status=404, content_type="text/plain")


def server_error(request: HttpRequest) -> HttpResponse:
    if request.path.startswith("/api/"):
        return api_error(500, "internal_error", "The server had an error. It has been logged.")
    return HttpResponse("The server had an error.\n", status=500, content_type="text/plain")


def api_error(status: int, code: str, message: str) -> JsonResponse:
    return JsonResponse({"error": {"code": code, "message": message, "details": []}}, status=status)
