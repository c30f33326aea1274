"""The URL map: one line per area, in the order in which a newcomer meets them."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from config import health, openapi

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="console:runs", query_string=True)),
    path("console/", include("config.console_urls")),
    path("admin/", admin.site.urls),
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("metrics", health.metrics_text),
    *openapi.APPLICATION,
    *openapi.OPERATIONS,
    path("v1/schema", openapi.schema),
    path("v1/application-schema", openapi.application),
    path("v1/docs", openapi.docs),
]

handler400 = "config.api.bad_request"
handler403 = "config.api.forbidden"
handler404 = "config.api.not_found"
handler500 = "config.api.server_error"
