"""The URL map: one line per area, in the order in which a newcomer meets them."""

from django.contrib import admin
from django.urls import path

urlpatterns = [
    path("admin/", admin.site.urls),
]
