"""What `up` needs to know of the samples: which handlers the console runs, what must be there, what runs beside it.

The workspace `samples` has two applications: `fx`, whose handlers the console's own Celery workers run, and `billing`,
which has an HTTP worker of its own. Neither takes a job of anybody else: the first is limited by its entry in
RECOURSE_HANDLERS, the second by its key.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from samples import places

if TYPE_CHECKING:
    # Named only: the supervisor reads this module, and the samples' own processes need no Django.
    from config.supervisor import Service
    from pipelines.access import Actor
    from pipelines.models import Environment

WORKSPACE = "samples"
ENVIRONMENT = "development"
APPLICATIONS = ("fx", "billing")
# The central bank publishes at about 16:00 on the days that it works; the day asked for is that of the tick, in Berlin.
SCHEDULE = {"cron": "15 16 * * mon-fri", "timezone": "Europe/Berlin", "input": {"date": "{{local_date}}"}}
HANDLERS = (f"samples.fx_daily@{WORKSPACE}/fx",)


def seed(base_url: str) -> None:
    """Make the workspace, the applications' keys, the release of fx-daily and its trigger; what is there stays.

    The superusers there are become admins of a new workspace: nobody else could see it. Runs are not made here: the
    applications create their own through the API, as applications do.
    """
    from django.contrib.auth import get_user_model
    from django.db import transaction

    from pipelines import credentials
    from pipelines.models import Role

    with transaction.atomic():
        workspace, actor, created = credentials.shell(WORKSPACE)
        if created:
            for user in get_user_model().objects.filter(is_superuser=True, is_active=True):
                credentials.set_role(actor=actor, user=user, role=Role.ADMIN)
        environment = workspace.environments.get(slug=ENVIRONMENT)
        _release(actor, environment)
        secrets = {name: _new_key(actor, environment, name) for name in APPLICATIONS}
        _trigger(actor, environment)
    if secrets["fx"]:
        # Its runs were another database's.
        places.position_file().unlink(missing_ok=True)
    for name, secret in secrets.items():
        if secret:
            places.write(places.key_file(name), secret, mode=0o600)


def services(base_url: str) -> list[Service]:
    """The outside world of fx-daily, and the applications' process."""
    from django.conf import settings

    from config.supervisor import Service

    paths = [str(settings.BASE_DIR), str(settings.BASE_DIR / "sdk"), os.environ.get("PYTHONPATH", "")]
    environment = {
        "RECOURSE_DATA": str(settings.DATA_DIR),
        "RECOURSE_URL": base_url,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    return [
        Service("samples outside", [sys.executable, "-m", "samples.outside"], environment),
        Service("samples applications", [sys.executable, "-m", "samples.applications"], environment, stop_first=True),
    ]


def _release(actor: Actor, environment: Environment) -> None:
    """The definition as it is in the file, in force."""
    from pipelines import catalog
    from pipelines.definitions import Definition, with_defaults
    from pipelines.models import Release
    from pipelines.releases import canonical, register_release
    from pipelines.states import ReleaseStatus

    document = json.loads(Path(__file__).with_name("fx_daily.json").read_text())
    definition = with_defaults(Definition.clean(document))
    active = Release.objects.filter(environment=environment, status=ReleaseStatus.ACTIVE)
    if active.filter(pipeline__slug=definition["slug"], digest=canonical(definition)[1]).exists():
        return
    pipeline, _ = catalog.save_pipeline(
        actor=actor, slug=definition["slug"], name=definition["name"], description=definition["description"]
    )
    register_release(actor=actor, pipeline=pipeline, environment=environment, definition=definition, activate=True)


def _trigger(actor: Actor, environment: Environment) -> None:
    """The schedule of fx-daily, unless there is one, however somebody has set it since."""
    from pipelines import triggers
    from pipelines.models import Trigger

    if not Trigger.objects.filter(environment=environment, pipeline__slug="fx-daily").exists():
        place = {"pipeline": "fx-daily", "environment": environment.slug, "application": "fx"}
        triggers.create(actor=actor, wanted={**place, **SCHEDULE})


def _new_key(actor: Actor, environment: Environment, name: str) -> str | None:
    """A new key of the application, unless its file has one that this console knows."""
    from pipelines import catalog, credentials, keys

    file = places.key_file(name)
    holder = keys.find_key(file.read_text().strip()) if file.exists() else None
    if holder and (holder.application_name, holder.environment_id) == (name, environment.id):
        return None
    application, _ = catalog.save_application(actor=actor, name=name)
    return credentials.issue_key(actor=actor, application=application, environment=environment)[1]
