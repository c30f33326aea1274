"""`manage.py release_definition`: a pipeline definition from a file as a release."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from pipelines import catalog, material, releases
from pipelines.access import RELEASE, Actor
from pipelines.api.bodies import MIB
from pipelines.definitions import Definition, read_document, with_defaults
from pipelines.management.console_command import ConsoleCommand, member, slug, workspace_of
from pipelines.models import Pipeline


class Command(ConsoleCommand):
    help = (
        "Registers the pipeline definition in FILE (JSON, or TOML when its name ends in .toml) as a release, in the "
        "name of a member who may do that. Creates the pipeline when it is new, and the environment (on top, "
        "unprotected). "
        "The same definition again is the same release."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("file", type=_definition_file, metavar="FILE", help="the definition")
        parser.add_argument("--workspace", required=True, type=slug, metavar="W", help="the workspace's slug")
        parser.add_argument("--environment", required=True, type=slug, metavar="E", help="the environment's slug")
        parser.add_argument("--activate", action="store_true", help="put it in force at once")
        parser.add_argument("--by", required=True, metavar="USER", help="who releases it")

    def handle(self, *_: Any, **options: Any) -> None:
        path: Path = options["file"]
        document = read_document(path.read_bytes(), toml=path.suffix.lower() == ".toml")
        definition = with_defaults(Definition.clean(document))
        workspace = workspace_of(options["workspace"])
        actor = member(workspace, options["by"], RELEASE, "release.register")
        environment, created = catalog.ensure_environment(workspace, options["environment"], actor=actor)
        if created:
            self.note(f"created the environment {environment.slug} on top of the ladder, unprotected")
        release, new = releases.register_release(
            actor=actor,
            pipeline=self._pipeline(actor, definition),
            environment=environment,
            definition=definition,
            activate=options["activate"],
        )
        self.note(f"{'registered' if new else 'found again'}: {definition['slug']} in {environment.slug}")
        for change in release.material_changes or () if release.needs_review else ():
            self.note(f"another person must review: {material.sentence(change)}")
        self.stdout.write(f"{release.id} {release.status} {release.digest}")

    def _pipeline(self, actor: Actor, definition: dict[str, Any]) -> Pipeline:
        known = Pipeline.objects.filter(workspace_id=actor.workspace_id, slug=definition["slug"]).first()
        if known is not None:
            return known
        told = {name: definition[name] for name in ("slug", "name", "description")}
        pipeline, _ = catalog.save_pipeline(actor=actor, **told)
        self.note(f"created the pipeline {pipeline.slug}")
        return pipeline


def _definition_file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    if path.stat().st_size > MIB:
        raise argparse.ArgumentTypeError(f"{text} has more than {MIB} bytes")
    return path
