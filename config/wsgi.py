"""WSGI entry point. Refuses to load when the environment cannot be understood, instead of serving with a guess."""

import os

from django.core.exceptions import ImproperlyConfigured
from django.core.wsgi import get_wsgi_application
from django.urls import get_resolver

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
application = get_wsgi_application()
# Load all views before the processes are forked: they share them, and nobody's first request waits for it.
get_resolver().url_patterns  # noqa: B018

from config.settings import env  # noqa: E402

if env.problems:
    raise ImproperlyConfigured(" ".join(env.problems))
