"""The application that `web_server.py` measures: Django with our middleware, one small request and one that waits."""

from __future__ import annotations

import os
import time

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
os.environ.setdefault("RECOURSE_PROCESS", "web")

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

application = get_wsgi_application()
settings.ROOT_URLCONF = __name__


def small(request: HttpRequest) -> HttpResponse:
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        return JsonResponse({"now": cursor.fetchone()[0]})


def wait(request: HttpRequest) -> HttpResponse:
    time.sleep(float(request.GET["seconds"]))
    return HttpResponse(status=204)


urlpatterns = [path("small", small), path("wait", wait)]
