"""Django's share of the paths: the admin API, its schema, Django's own admin, and the browser
application.
"""

from django.contrib import admin
from django.urls import include, path, re_path
from drf_spectacular.views import SpectacularAPIView

from gateway import spa
from gateway.openai import uploads

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/", include("tenants.api.urls")),
    path("api/", include("adapters.api.urls")),
    path("v1/", include(uploads.urlpatterns)),
    re_path(r"^api(?:/.*)?$", spa.api_not_found),
    re_path(r"^(?!static/).*$", spa.page),
]
handler404 = spa.not_found
handler500 = spa.server_error
