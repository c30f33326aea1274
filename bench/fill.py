"""Makes COUNT runs of three no-op stages in the console's database and prints a key of their application."""

import os
import sys

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django


def main() -> None:
    django.setup()
    # models can be imported only now
    from pipelines.creation import Intent, Place, create_run
    from pipelines.keys import issue_key
    from pipelines.models import Application, Environment, Workspace

    workspace = Workspace.objects.create(slug="bench")
    environment = Environment.objects.create(workspace=workspace, slug="development", rank=1)
    application = Application.objects.create(workspace=workspace, name="bench")
    place = Place(workspace.id, application.id, environment.id, environment.slug)
    intent = Intent(name="bench", stages=[{"name": name, "handler": "bench.noop"} for name in ("one", "two", "three")])
    for number in range(int(sys.argv[1])):
        create_run(place, intent, key=f"bench-{number}", actor="bench")
    print(issue_key(application, environment)[1])


if __name__ == "__main__":
    main()
