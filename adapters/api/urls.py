from django.urls import path

from adapters.api import canary, evaluations, imports, upload_parts, views
from adapters.api.aliases import AliasesView, AliasView
from adapters.api.fleet import (
    AnnounceView,
    DrainView,
    FleetEventsView,
    FleetView,
    KeepView,
    ResumeView,
)
from adapters.api.profile import ProfileView

ADAPTERS = "tenants/<slug:tenant>/adapters/"
VERSIONS = ADAPTERS + "<str:name>/versions/"
EVALUATIONS = VERSIONS + "<int:number>/evaluations/"
IMPORTS = ADAPTERS + "<str:name>/imports/"
ALIASES = "tenants/<slug:tenant>/aliases/"
UPLOADS = "tenants/<slug:tenant>/uploads/"
UPLOAD = UPLOADS + "<str:upload_id>/"

urlpatterns = [
    path("fleet/", FleetView.as_view(), name="fleet"),
    path("fleet/events/", FleetEventsView.as_view(), name="fleet-events"),
    path("fleet/announce/", AnnounceView.as_view(), name="fleet-announce"),
    path("fleet/keep/<slug:tenant>/<str:name>/", KeepView.as_view(), name="keep"),
    path("fleet/<int:replica_id>/drain/", DrainView.as_view(), name="fleet-drain"),
    path("fleet/<int:replica_id>/resume/", ResumeView.as_view(), name="fleet-resume"),
    path(ADAPTERS, views.AdaptersView.as_view(), name="adapters"),
    path(ADAPTERS + "<str:name>/", views.AdapterView.as_view(), name="adapter"),
    path(ADAPTERS + "<str:name>/canary/", canary.CanaryView.as_view(), name="canary"),
    path(VERSIONS, views.VersionsView.as_view(), name="versions"),
    path(VERSIONS + "<int:number>/", views.VersionView.as_view(), name="version"),
    path(VERSIONS + "<int:number>/activate/", views.ActivateView.as_view(), name="activate"),
    path(VERSIONS + "<int:number>/retire/", views.RetireView.as_view(), name="retire"),
    path(ADAPTERS + "<str:name>/retire/", views.AdapterRetireView.as_view(), name="retire-adapter"),
    path(VERSIONS + "<int:number>/retry/", views.RetryView.as_view(), name="retry"),
    path(VERSIONS + "<int:number>/profile/", ProfileView.as_view(), name="profile"),
    path(ALIASES, AliasesView.as_view(), name="aliases"),
    path(ALIASES + "<str:alias>/", AliasView.as_view(), name="alias"),
    path(EVALUATIONS, evaluations.EvaluationsView.as_view(), name="evaluations"),
    path(
        EVALUATIONS + "<str:evaluation_id>/",
        evaluations.EvaluationView.as_view(),
        name="evaluation",
    ),
    path(ADAPTERS + "<str:name>/gate/", evaluations.GateView.as_view(), name="gate"),
    path(ADAPTERS + "<str:name>/eval-set/", evaluations.EvalSetView.as_view(), name="eval-set"),
    path(IMPORTS, imports.ImportsView.as_view(), name="imports"),
    path(IMPORTS + "<str:import_id>/", imports.ImportView.as_view(), name="import"),
    path(UPLOADS, upload_parts.UploadsView.as_view(), name="uploads"),
    path(UPLOAD, upload_parts.UploadView.as_view(), name="upload"),
    path(UPLOAD + "parts/", upload_parts.UploadPartsView.as_view(), name="upload-parts"),
    path(UPLOAD + "complete/", upload_parts.UploadCompleteView.as_view(), name="upload-complete"),
    path(UPLOAD + "cancel/", upload_parts.UploadCancelView.as_view(), name="upload-cancel"),
]
