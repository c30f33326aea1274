"""System checks: what would make the console unsafe or wrong is said before it starts, with a stable id each.

`manage.py check` and `up` run them all; the web server refuses to load with values that could not be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography.fernet import Fernet
from django.apps import AppConfig
from django.core import checks
from django.db import connections, transaction
from django.db.utils import DatabaseError, OperationalError

from config.environment import Environment
from config.settings import env

OLDEST_SERVER = 150000
ZONES = "Update the server's time zone data and the package tzdata, and restart both."
BROKERS = ("redis", "rediss", "amqp", "amqps", "sqs", "filesystem")


@checks.register(checks.Tags.compatibility)
def environment_is_usable(app_configs: Iterable[AppConfig] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """Judge the environment that this process was started with."""
    return list(judge(env))


@checks.register(checks.Tags.database)
def server_is_supported(databases: Iterable[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """Judge the database server. Asked only where a database may be used."""
    messages: list[checks.CheckMessage] = []
    for alias in databases or ():
        connection = connections[alias]
        if connection.vendor != "postgresql":
            messages.append(_error(6, f"The database is {connection.display_name}; only PostgreSQL is supported."))
            continue
        try:
            connection.ensure_connection()
        except OperationalError as error:
            messages.append(_error(7, f"The database does not answer: {str(error).strip()}"))
            continue
        version = connection.connection.info.server_version
        if version < OLDEST_SERVER:
            messages.append(
                _error(8, f"PostgreSQL {version // 10000} is too old.", "PostgreSQL 15 or newer is needed.")
            )
    return messages


@checks.register(checks.Tags.database)
def zones_agree(databases: Iterable[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """Warn where the database's time zones are not the console's. Asked only of a database that has our tables."""
    from pipelines.zone_agreement import disagreements

    if "default" not in (databases or ()):
        return []
    try:
        with transaction.atomic():
            found = disagreements()
    except DatabaseError:
        return []  # not migrated yet, or not there: other checks and steps say so
    return [checks.Warning(sentence, hint=ZONES, id="recourse.W020") for sentence in found]


@checks.register(checks.Tags.database)
def store_is_open(databases: Iterable[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """Warn where handlers cannot use the workspace store, as its database role is missing or out of reach."""
    from pipelines import store_role

    if "default" not in (databases or ()):
        return []
    try:
        with transaction.atomic():
            sentence = store_role.why_closed()
            return [checks.Warning(sentence, hint=store_role.what_to_run(), id="recourse.W021")] if sentence else []
    except DatabaseError:
        return []  # as above


def judge(environment: Environment) -> Iterator[checks.CheckMessage]:
    """All that is wrong with an environment. E001–E005 and E009–E020."""
    for problem in environment.problems:
        yield _error(1, problem)
    for sentence in environment.unknown:
        yield _error(2, sentence)
    if environment.renew_seconds * 3 > environment.lease_seconds:
        yield _error(
            3,
            f"RECOURSE_RENEW_SECONDS is {environment.renew_seconds}, more than a third of the lease of "
            f"{environment.lease_seconds} s: one late renewal would give live work away.",
            f"Set it to {max(1, environment.lease_seconds // 3)} or less, or leave it out.",
        )
    if environment.waiting_pulls >= environment.web_threads:
        yield _error(
            4,
            f"RECOURSE_WAITING_PULLS is {environment.waiting_pulls} and a web process has {environment.web_threads} "
            "threads: waiting pulls could take them all.",
            "Set it below RECOURSE_WEB_THREADS.",
        )
    yield from _broker(environment)
    if not _is_fernet_key(environment.encryption_key):
        yield _error(9, "RECOURSE_ENCRYPTION_KEY is not a Fernet key.", "32 bytes in URL-safe base64, 44 characters.")
    yield from _keyring(environment)
    yield from _log_in(environment)
    yield from _artifacts(environment)
    if environment.production:
        yield from _production(environment)


def _broker(environment: Environment) -> Iterator[checks.CheckMessage]:
    kind = urlsplit(environment.broker_url).scheme.split("+")[0]
    if kind == "memory":
        yield _error(5, "CELERY_BROKER_URL is memory://, which other processes cannot see.", "Use redis:// or amqp://.")
    elif kind not in BROKERS:
        yield _error(5, f"CELERY_BROKER_URL begins with {kind!r}.", "Use redis:// or amqp://, or leave it out.")
    elif kind == "filesystem" and environment.production and not environment.embedded:
        yield _error(
            5,
            "The file system broker serves one host only, and DATABASE_URL suggests that there are more.",
            "Set CELERY_BROKER_URL to redis://… or amqp://….",
        )


def _keyring(environment: Environment) -> Iterator[checks.CheckMessage]:
    if environment.keyring != "vault":
        if environment.vault_addr:
            yield _error(13, "RECOURSE_VAULT_ADDR is set, but keys are kept locally.", "Set RECOURSE_KEYRING to vault.")
        return
    address = urlsplit(environment.vault_addr)
    if address.scheme not in ("http", "https") or not address.hostname:
        yield _error(13, "RECOURSE_VAULT_ADDR is not an address.", "For example https://vault.example.org:8200.")
    elif address.scheme == "http" and environment.production:
        yield _error(13, "RECOURSE_VAULT_ADDR begins with http: the token would travel unencrypted.", "Use https.")
    if not environment.vault_mount:
        yield _error(13, "RECOURSE_VAULT_MOUNT is empty.", "Name the mount of a KV secrets engine of version 2.")
    if bool(environment.vault_token) == bool(environment.vault_token_file):
        yield _error(
            14,
            "One of RECOURSE_VAULT_TOKEN and RECOURSE_VAULT_TOKEN_FILE must be set, and not both.",
            "A file can be renewed without a restart.",
        )
    if environment.vault_ca_file and not Path(environment.vault_ca_file).is_file():
        yield _error(15, "RECOURSE_VAULT_CA_FILE names no file.", "It holds the authority's certificate, PEM.")


def _artifacts(environment: Environment) -> Iterator[checks.CheckMessage]:
    place = environment.artifacts
    if place.kind == "file" and not _can_be_written(Path(place.location)):
        yield _error(19, "RECOURSE_ARTIFACTS names a directory that cannot be written.", "Make it, for this user.")
    if place.kind != "s3":
        return
    if find_spec("boto3") is None or find_spec("storages") is None:
        yield _error(
            19,
            "RECOURSE_ARTIFACTS names a bucket, and the packages for that are not installed.",
            "pip install --require-hashes -r requirements-s3.lock",
        )
    if bool(place.access_key) != bool(place.secret_key):
        yield _error(
            20,
            "RECOURSE_ARTIFACTS_S3_ACCESS_KEY and its secret need each other.",
            "Set both, or leave both to what the host offers.",
        )
    if place.endpoint:
        address = urlsplit(place.endpoint)
        if address.scheme not in ("http", "https") or not address.hostname or address.username is not None:
            yield _error(20, "RECOURSE_ARTIFACTS_S3_ENDPOINT is not an address.", "For example https://s3.example.org.")
        elif address.scheme == "http" and environment.production:
            yield _error(
                20, "RECOURSE_ARTIFACTS_S3_ENDPOINT begins with http: artifacts would travel unencrypted.", "Use https."
            )


def _can_be_written(directory: Path) -> bool:
    """Whether files can be made there, once it is made."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def _log_in(environment: Environment) -> Iterator[checks.CheckMessage]:
    oidc = environment.oidc
    if oidc is None:
        if not environment.password_login:
            yield _error(
                16,
                "RECOURSE_PASSWORD_LOGIN is 0 and no issuer is named: nobody could log in.",
                "Set RECOURSE_OIDC_ISSUER and RECOURSE_OIDC_CLIENT_ID, or leave it out.",
            )
        return
    address = urlsplit(oidc.issuer)
    if address.scheme not in ("http", "https") or not address.hostname or address.query or address.fragment:
        yield _error(
            17, "RECOURSE_OIDC_ISSUER is not an address.", "For example https://login.example.org/realms/main."
        )
    elif address.scheme == "http" and environment.production:
        yield _error(17, "RECOURSE_OIDC_ISSUER begins with http: anybody on the way could be anybody.", "Use https.")
    if not oidc.client_id:
        yield _error(18, "RECOURSE_OIDC_CLIENT_ID is empty.", "Register the console with the issuer; it gives one.")
    if "openid" not in oidc.scopes.split():
        yield _error(18, "RECOURSE_OIDC_SCOPES lacks openid: nothing would say who logs in.", "Add it.")
    if bool(oidc.roles) != bool(oidc.role_claim):
        yield _error(
            18,
            "RECOURSE_OIDC_ROLES and RECOURSE_OIDC_ROLE_CLAIM need each other.",
            "The claim says what of the issuer's words is looked at, the roles what they mean.",
        )


def _production(environment: Environment) -> Iterator[checks.CheckMessage]:
    if len(environment.secret_key) < 32 or environment.secret_key.startswith(("insecure", "django-insecure")):
        yield _error(10, "SECRET_KEY is too weak for production.", "Leave it out, or set 50 random characters.")
    if environment.debug:
        yield _error(11, "RECOURSE_DEBUG is on in production: pages would show settings and source.", "Leave it out.")
    if "*" in environment.allowed_hosts or not environment.allowed_hosts:
        yield _error(
            12, "RECOURSE_ALLOWED_HOSTS must name the hosts in production.", "For example console.example.org."
        )


def _is_fernet_key(key: str) -> bool:
    try:
        Fernet(key)
    except ValueError:
        return False
    return True


def _error(number: int, message: str, hint: str | None = None) -> checks.Error:
    return checks.Error(message, hint=hint, id=f"recourse.E{number:03d}")
