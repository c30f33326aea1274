"""An artifact's bytes as an answer: to be saved, never to be shown or run in the console's name."""

from __future__ import annotations

from urllib.parse import quote

from django.http import HttpResponse

from pipelines.models import Artifact

SEALED = "default-src 'none'; sandbox"


def download(artifact: Artifact, data: bytes) -> HttpResponse:
    """The bytes that `artifacts.load` found whole, with their digest as ETag."""
    return HttpResponse(
        data,
        content_type=artifact.media_type or "application/octet-stream",
        headers={
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(artifact.name, safe='')}",
            "Content-Length": str(len(data)),
            "Content-Security-Policy": SEALED,
            "ETag": f'"{artifact.digest}"',
            "X-Content-Type-Options": "nosniff",
        },
    )
