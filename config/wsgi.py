"""WSGI entry point. Refuses to load when the environment cannot be understood, instead of serving with a guess."""

import os

from django.core.exceptions import ImproperlyConfigured
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
application = get_wsgi_application()

from config.settings import env  # noqa: E402

if env.problems:
    raise ImproperlyConfigured(" ".join(env.problems))
