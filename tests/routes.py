"""Every route of the console, as Django resolves it."""

from __future__ import annotations

from collections.abc import Iterator

from django.urls import URLPattern, URLResolver, get_resolver


def every_route() -> Iterator[tuple[str, URLPattern]]:
    """Each route with its pattern, those of included maps too."""
    waiting: list[tuple[str, URLPattern | URLResolver]] = [("", one) for one in get_resolver().url_patterns]
    while waiting:
        prefix, one = waiting.pop()
        route = prefix + str(one.pattern)
        if isinstance(one, URLResolver):
            waiting += [(route, inner) for inner in one.url_patterns]
        else:
            yield route, one
