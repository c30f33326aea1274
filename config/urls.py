"""The URL map: one line per area, in the order in which a newcomer meets them."""

from django.contrib import admin
from django.urls import path

from config import health

urlpatterns = [
    path("admin/", admin.site.urls),
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("metrics", health.metrics_text),
]
