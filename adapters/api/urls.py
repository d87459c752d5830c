from django.urls import path

from adapters.api import views
from adapters.api.fleet import FleetView

ADAPTERS = "tenants/<slug:tenant>/adapters/"
VERSIONS = ADAPTERS + "<str:name>/versions/"

urlpatterns = [
    path("fleet/", FleetView.as_view(), name="fleet"),
    path(ADAPTERS, views.AdaptersView.as_view(), name="adapters"),
    path(ADAPTERS + "<str:name>/", views.AdapterView.as_view(), name="adapter"),
    path(VERSIONS, views.VersionsView.as_view(), name="versions"),
    path(VERSIONS + "<int:number>/", views.VersionView.as_view(), name="version"),
    path(VERSIONS + "<int:number>/activate/", views.ActivateView.as_view(), name="activate"),
    path(VERSIONS + "<int:number>/retry/", views.RetryView.as_view(), name="retry"),
]
