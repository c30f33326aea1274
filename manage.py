#!/usr/bin/env python
"""Entry point of every management command."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from config.command_line import prepare

    arguments = prepare(sys.argv)
    from django.core.management import execute_from_command_line

    execute_from_command_line(arguments)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        # Ctrl-C is no fault: the exit code of a command that a signal ended, and no traceback.
        sys.exit(130)
