"""Keyrings in HashiCorp Vault's KV version 2: one secret for each workspace, changed with check-and-set only.

The secret is `MOUNT/data/PREFIX/WORKSPACE_ID`; what it holds is told in `pipelines/keyring.py`. Private keys in it are
encrypted with the console's own key too: whoever reads Vault alone cannot sign. Every fault is `Unavailable`, with a
sentence that names what to do and never holds the token, an address or anything of a document; its cause is not told
with it, since the library's own errors hold the request.

Limits: the time-out bounds each step of an answer, not all of it; a redirect is refused, since the token would follow.
Serves O34–O36.
"""

from __future__ import annotations

import os
import threading
import uuid
from pathlib import Path
from typing import Any, NoReturn

import hvac
import requests
from django.conf import settings
from hvac import exceptions

from pipelines.keyring import Conflict, Document, Unavailable

NO_CAS = "check-and-set parameter did not match the current version"


class VaultStore:
    """The store that RECOURSE_VAULT_* describe. Threads and processes do not share connections."""

    transactional = False

    def read(self, workspace_id: uuid.UUID) -> tuple[int, Document]:
        try:
            answer = _kv().read_secret_version(
                path=_path(workspace_id), mount_point=settings.RECOURSE_VAULT_MOUNT, raise_on_deleted_version=True
            )
        except exceptions.InvalidPath as error:
            return _absent(error)
        except (exceptions.VaultError, requests.RequestException) as error:
            _raise_fault(error)
        return _version(answer), _document(answer)

    def write(self, workspace_id: uuid.UUID, document: Document, *, version: int, user_id: int | None = None) -> None:
        written = None
        try:
            answer = _kv().create_or_update_secret(
                path=_path(workspace_id), secret=document, cas=version, mount_point=settings.RECOURSE_VAULT_MOUNT
            )
            written = _written_version(answer)
        except exceptions.InvalidRequest as error:
            if any(NO_CAS in str(told) for told in error.errors or ()):
                raise Conflict from None
            _raise_fault(error)
        except (requests.RequestException, exceptions.InternalServerError, exceptions.BadGateway):
            if self.read(workspace_id) != (version + 1, document):  # it may have arrived: Vault alone can tell
                raise Unavailable(
                    "Vault did not confirm the change of the keyring; look at the signing keys before trying again"
                ) from None
            return
        except exceptions.VaultError as error:
            _raise_fault(error)
        if written != version + 1:
            raise Unavailable(f"{_mount()} keeps no versions: it must be a KV secrets engine of version 2")


def _kv() -> Any:
    """hvac's client, with the token as it is now: a token file may be renewed at any time."""
    client = getattr(_local, "client", None)
    configuration = (
        os.getpid(),
        settings.RECOURSE_VAULT_ADDR,
        settings.RECOURSE_VAULT_NAMESPACE,
        settings.RECOURSE_VAULT_CA_FILE,
        settings.RECOURSE_VAULT_TIMEOUT_MS,
    )
    if client is None or _local.configuration != configuration:
        client = hvac.Client(
            url=settings.RECOURSE_VAULT_ADDR,
            token="",  # never from the environment or the home directory; set below
            namespace=settings.RECOURSE_VAULT_NAMESPACE or None,
            verify=settings.RECOURSE_VAULT_CA_FILE or True,
            timeout=settings.RECOURSE_VAULT_TIMEOUT_MS / 1000,
            allow_redirects=False,
        )
        _local.client, _local.configuration = client, configuration
    client.token = _token()
    return client.secrets.kv.v2


def _token() -> str:
    token = settings.RECOURSE_VAULT_TOKEN
    if not token and settings.RECOURSE_VAULT_TOKEN_FILE:
        try:
            token = Path(settings.RECOURSE_VAULT_TOKEN_FILE).read_text().strip()
        except (OSError, UnicodeDecodeError):
            raise Unavailable(
                "the file that RECOURSE_VAULT_TOKEN_FILE names cannot be read by the console", everywhere=True
            ) from None
    if not (token.isascii() and token.isprintable() and token):
        raise Unavailable(
            "there is no usable Vault token: set RECOURSE_VAULT_TOKEN, or RECOURSE_VAULT_TOKEN_FILE to a file that"
            " holds one",
            everywhere=True,
        )
    return str(token)


def _path(workspace_id: uuid.UUID) -> str:
    return f"{settings.RECOURSE_VAULT_PREFIX.strip('/')}/{workspace_id}".lstrip("/")


def _mount() -> str:
    return f"the mount {settings.RECOURSE_VAULT_MOUNT!r} (RECOURSE_VAULT_MOUNT)"


def _absent(error: exceptions.InvalidPath) -> tuple[int, Document]:
    """Nothing was ever there; or it was deleted, which is never taken for nothing."""
    told = error.json if isinstance(error.json, dict) else {}
    if isinstance(told.get("data"), dict):
        raise Unavailable(
            "the keyring's newest version was deleted in Vault; undelete it, or, to begin anew and never again trust"
            " what was signed before, delete the secret's metadata too"
        ) from None
    if told.get("errors") == []:
        return 0, {}
    raise Unavailable(
        f"Vault has no {_mount()[4:]}, or it is no KV secrets engine of version 2", everywhere=True
    ) from None


def _version(answer: Any) -> int:
    try:
        version = answer["data"]["metadata"]["version"]
    except (TypeError, KeyError):
        _raise_not_vault(answer)
    if type(version) is not int or version < 1:
        _raise_not_vault(answer)
    return version


def _document(answer: Any) -> Document:
    document = answer["data"].get("data")
    return document if isinstance(document, dict) else {}


def _written_version(answer: Any) -> int | None:
    try:
        version = answer["data"]["version"]
    except (TypeError, KeyError):
        return None
    return version if type(version) is int else None


def _raise_not_vault(answer: Any) -> NoReturn:
    status = getattr(answer, "status_code", 200)
    if 300 <= status < 400:
        raise Unavailable(
            "Vault answers with a redirect, which is not followed: let RECOURSE_VAULT_ADDR name the active node, or a"
            " balancer before it",
            everywhere=True,
        )
    raise Unavailable(
        f"what answers is not a KV secrets engine of version 2: check RECOURSE_VAULT_ADDR and {_mount()}",
        everywhere=True,
    )


def _raise_fault(error: Exception) -> NoReturn:
    for kind, sentence, everywhere in _FAULTS:
        if isinstance(error, kind):
            raise Unavailable(sentence, everywhere=everywhere) from None
    raise Unavailable(f"Vault cannot be used ({type(error).__name__})", everywhere=True) from None


# the first that fits counts
_FAULTS: tuple[tuple[type[Exception], str, bool], ...] = (
    (
        exceptions.Forbidden,
        "Vault refuses the console's token (403): renew it, or give its policy read, create and update on the"
        " keyring's path",
        False,
    ),
    (
        exceptions.Unauthorized,
        "Vault does not know the console's token (401): renew it",
        True,
    ),
    (exceptions.VaultDown, "Vault is sealed or in maintenance (503): unseal it", True),
    (exceptions.VaultNotInitialized, "Vault is not initialised (501): initialise and unseal it", True),
    (exceptions.RateLimitExceeded, "Vault refuses more requests for now (429): raise the console's quota there", True),
    (exceptions.InternalServerError, "Vault failed (500): see its own log", True),
    (exceptions.BadGateway, "what stands before Vault cannot reach it (502)", True),
    (exceptions.InvalidRequest, "Vault refuses the request as malformed (400): check the mount's settings", False),
    (
        requests.exceptions.SSLError,
        "Vault's certificate cannot be verified: set RECOURSE_VAULT_CA_FILE to the authority that signed it",
        True,
    ),
    (
        requests.Timeout,
        "Vault did not answer in time: see whether it is overloaded, or raise RECOURSE_VAULT_TIMEOUT_MS",
        True,
    ),
    (
        requests.ConnectionError,
        "Vault cannot be reached: see whether it runs, and whether RECOURSE_VAULT_ADDR is right",
        True,
    ),
)
_local = threading.local()
