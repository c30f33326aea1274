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
from typing import Any

from samples import places

WORKSPACE = "samples"
ENVIRONMENT = "development"
APPLICATIONS = ("fx", "billing")
HANDLERS = (f"samples.fx_daily@{WORKSPACE}/fx",)
RELEASE_MANAGER = "samples"
LADDER = (("development", 1, False), ("staging", 2, False), ("production", 3, True))


def seed(base_url: str) -> None:
    """Make the workspace with its people, the applications' keys and the release of fx-daily; what is there stays.

    Runs are not made here: the applications create their own through the API, as applications do.
    """
    from django.db import transaction

    with transaction.atomic():
        workspace = _workspace()
        _release(workspace)
        keys = {name: _new_key(workspace, name) for name in APPLICATIONS}
    for name, secret in keys.items():
        if secret:
            places.write(places.key_file(name), secret, mode=0o600)


def services(base_url: str) -> list[Any]:
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
        Service(f"samples {name}", [sys.executable, "-m", f"samples.{name}"], environment)
        for name in ("outside", "applications")
    ]


def _workspace() -> Any:
    """The workspace. When it is new, the superusers there are become its admins: else nobody could see it."""
    from django.contrib.auth import get_user_model

    from pipelines.models import Environment, Member, Role, Workspace

    workspace, created = Workspace.objects.get_or_create(slug=WORKSPACE, defaults={"name": "Samples"})
    if created:
        for slug, rank, protected in LADDER:
            Environment.objects.create(workspace=workspace, slug=slug, rank=rank, protected=protected)
        for user in get_user_model().objects.filter(is_superuser=True, is_active=True):
            Member.objects.create(workspace=workspace, user=user, role=Role.ADMIN)
    return workspace


def _release(workspace: Any) -> None:
    """The definition as it is in the file, in force."""
    from django.contrib.auth import get_user_model

    from pipelines.access import Actor
    from pipelines.definitions import with_defaults
    from pipelines.models import Member, Pipeline, Release, Role
    from pipelines.releases import canonical, register_release
    from pipelines.states import ReleaseStatus

    definition = with_defaults(json.loads(Path(__file__).with_name("fx_daily.json").read_text()))
    pipeline, _ = Pipeline.objects.get_or_create(
        workspace=workspace,
        slug=definition["slug"],
        defaults={"name": definition["name"], "description": definition["description"]},
    )
    environment = workspace.environments.get(slug=ENVIRONMENT)
    # Registering is recorded even when it changes nothing, so a start that has nothing new does not ask for it.
    if Release.objects.filter(
        pipeline=pipeline, environment=environment, digest=canonical(definition)[1], status=ReleaseStatus.ACTIVE
    ).exists():
        return
    user, created = get_user_model().objects.get_or_create(username=RELEASE_MANAGER)
    if created:
        user.set_unusable_password()
        user.save(update_fields=["password"])
    member, _ = Member.objects.get_or_create(workspace=workspace, user=user, defaults={"role": Role.RELEASE_MANAGER})
    actor = Actor(RELEASE_MANAGER, workspace.id, "command", user_id=user.pk, role=member.role)
    register_release(actor=actor, pipeline=pipeline, environment=environment, definition=definition, activate=True)


def _new_key(workspace: Any, name: str) -> str | None:
    """A new key of the application, when there is no file with one that this console knows."""
    from pipelines.keys import find_key, issue_key
    from pipelines.models import Application

    application, _ = Application.objects.get_or_create(workspace=workspace, name=name)
    file = places.key_file(name)
    holder = find_key(file.read_text().strip()) if file.exists() else None
    if holder is not None and holder.application_id == application.id:
        return None
    return issue_key(application, workspace.environments.get(slug=ENVIRONMENT))[1]
