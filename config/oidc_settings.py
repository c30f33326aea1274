"""Log-in by OpenID Connect as the operator configured it: read from the environment, judged by the system checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

PREFIX = "RECOURSE_OIDC_"
ROLES = (
    "viewer",
    "operator",
    "approver",
    "release_manager",
    "admin",
)  # as `pipelines.models.Role`, not yet loaded here


@dataclass(frozen=True, slots=True)
class Oidc:
    """One issuer. `roles` is what values of `role_claim` give: (value, workspace's slug, role), the first that fits."""

    issuer: str
    client_id: str
    client_secret: str = field(default="", repr=False)
    scopes: str = "openid profile email"
    name_claim: str = "preferred_username"
    makes_users: bool = False
    role_claim: str = ""
    roles: tuple[tuple[str, str, str], ...] = ()

    @property
    def host(self) -> str:
        """How people know the issuer."""
        return urlsplit(self.issuer).hostname or self.issuer

    @property
    def workspaces(self) -> list[str]:
        """The slugs of the workspaces whose roles come from the issuer."""
        return list(dict.fromkeys(workspace for _, workspace, _ in self.roles))


def read(text: Callable[[str], str], makes_users: bool, problems: list[str]) -> Oidc | None:
    """What the variables say; None when no issuer is named. `text` gives a variable by its name."""
    secret = text(f"{PREFIX}CLIENT_SECRET")
    if file := text(f"{PREFIX}CLIENT_SECRET_FILE"):
        if secret:
            problems.append(f"{PREFIX}CLIENT_SECRET and {PREFIX}CLIENT_SECRET_FILE are both set; one is enough.")
        try:
            secret = Path(file).read_text().strip()
        except (OSError, UnicodeDecodeError):
            problems.append(f"{PREFIX}CLIENT_SECRET_FILE names no file that can be read.")
    roles = tuple(_roles(text(f"{PREFIX}ROLES"), problems))
    found = Oidc(
        issuer=text(f"{PREFIX}ISSUER"),
        client_id=text(f"{PREFIX}CLIENT_ID"),
        client_secret=secret,
        scopes=" ".join(text(f"{PREFIX}SCOPES").split()),
        name_claim=text(f"{PREFIX}NAME_CLAIM"),
        makes_users=makes_users,
        role_claim=text(f"{PREFIX}ROLE_CLAIM"),
        roles=roles,
    )
    if found.issuer:
        return found
    if found.client_id or secret or roles or found.role_claim:
        problems.append(f"{PREFIX}ISSUER is empty, but other settings of it are not: log-in by it stays off.")
    return None


def _roles(text: str, problems: list[str]) -> Iterator[tuple[str, str, str]]:
    for entry in (part.strip() for part in text.split(",")):
        match = re.fullmatch(r"([^=]+)=([-a-zA-Z0-9_]+):([a-z_]+)", entry)
        if match and match[3] in ROLES:
            yield match[1].strip(), match[2], match[3]
        elif entry:
            problems.append(
                f"{PREFIX}ROLES holds {entry!r}; it must look like value=workspace:role, the role one of "
                f"{', '.join(ROLES)}."
            )
