"""Included at /api/. Routes below tenants/<slug:tenant>/ are views that inherit TenantView."""

from django.urls import path

from tenants.api.audit import AuditListView
from tenants.api.keys import KeyListView, KeyRotateView, KeyView
from tenants.api.notices import NoticeListView
from tenants.api.session import SessionView
from tenants.api.tenants import TenantDetailView, TenantListView
from tenants.api.usage import UsageExportView, UsageListView, UsageSummaryView

urlpatterns = [
    path("session", SessionView.as_view()),
    path("tenants/", TenantListView.as_view()),
    path("tenants/<slug:tenant>/", TenantDetailView.as_view()),
    path("tenants/<slug:tenant>/keys/", KeyListView.as_view()),
    path("tenants/<slug:tenant>/keys/<slug:public_id>/", KeyView.as_view()),
    path("tenants/<slug:tenant>/keys/<slug:public_id>/rotate/", KeyRotateView.as_view()),
    path("tenants/<slug:tenant>/usage/", UsageListView.as_view()),
    path("tenants/<slug:tenant>/usage/summary/", UsageSummaryView.as_view()),
    path("tenants/<slug:tenant>/usage/export/", UsageExportView.as_view()),
    path("tenants/<slug:tenant>/notices/", NoticeListView.as_view()),
    path("tenants/<slug:tenant>/audit/", AuditListView.as_view()),
]
