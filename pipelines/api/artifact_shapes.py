"""Fields of requests that carry artifacts: names, media types, digests, and bytes in JSON."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from pipelines.api.shapes import Check, Text, Wrong
from pipelines.artifacts import LONGEST_NAME, LONGEST_TYPE, name_problem, type_problem

_DIGEST = re.compile(r"[0-9a-f]{64}")


class ArtifactName(Text):
    """What an artifact is called: one line, and no path."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=LONGEST_NAME, **kwargs)

    def checker(self) -> Check:
        def check(value: Any) -> Any:
            problem = name_problem(value) if type(value) is str else "must be a string"
            return Wrong.at_value(problem) if problem else value

        return check


class MediaType(Text):
    """What the bytes are, such as application/pdf; none: nobody said."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(blank=True, max_length=LONGEST_TYPE, **kwargs)

    def checker(self) -> Check:
        def check(value: Any) -> Any:
            problem = type_problem(value) if type(value) is str else "must be a string"
            return Wrong.at_value(problem) if problem else value

        return check


class Digest(Text):
    """A SHA-256 in lowercase hex."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(min_length=64, max_length=64, **kwargs)

    def checker(self) -> Check:
        def check(value: Any) -> Any:
            if type(value) is not str or not _DIGEST.fullmatch(value):
                return Wrong.at_value("must be a SHA-256 in 64 lowercase hex digits")
            return value

        return check


class Base64(Text):
    """Bytes in base64, which may be none; read out of a form they are bytes already."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(blank=True, **kwargs)

    def checker(self) -> Check:
        def check(value: Any) -> Any:
            if type(value) is bytes:
                return value
            if type(value) is not str:
                return Wrong.at_value("must be a string")
            try:
                return base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError):
                return Wrong.at_value(
                    "must be base64: letters, digits, + and /, filled up with = to a multiple of four"
                )

        return check
