"""Reads the environment variables once and turns them into typed settings.

`VARIABLES` is the one list of what an operator may set; docs/reference/settings.md is written from it and the system
checks compare the real environment with it. A value that cannot be used never raises here: the default takes its place
and a sentence in `Environment.problems` says so, so that `manage.py check` and `manage.py up` can report all of them.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from config import artifact_settings, embedded, oidc_settings, secret_files
from config.artifact_settings import ArtifactPlace
from config.oidc_settings import Oidc

BASE_DIR = Path(__file__).resolve().parent.parent

# The engine's statements are prepared and planned once, for any parameters: planning the claim anew costs more than the
# claim. Such a plan may be made while tables are still empty, when reading them whole looks cheap, and would be kept as
# they grow; so that is ruled out, and so is compiling plans, which the ruling out would provoke.
SESSION_SETTINGS = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c jit=off"


ON, OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")  # in capitals too


@dataclass(frozen=True)
class Variable:
    """One environment variable: `default` and `help` as documentation shows them, limits for whole numbers."""

    name: str
    default: str
    help: str
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    switch: bool = False  # on or off, in any of the words of `ON` and `OFF`
    group: str = "console"


VARIABLES = (
    Variable(
        "DATABASE_URL",
        "",
        "`postgres://user:password@host:port/name`. Empty: the embedded PostgreSQL in `RECOURSE_DATA`.",
    ),
    Variable(
        "CELERY_BROKER_URL",
        "",
        "`redis://…` or `amqp://…`. Empty: a file system broker in `RECOURSE_DATA`, for one host.",
    ),
    Variable("SECRET_KEY", "", "Signs sessions. Empty: made once and kept in `RECOURSE_DATA/SECRET_KEY`."),
    Variable(
        "RECOURSE_ENCRYPTION_KEY",
        "",
        "Encrypts the keyring, sensitive context values and the addresses and secrets of notification channels (a "
        "Fernet key). Empty: made once and kept in "
        "`RECOURSE_DATA/RECOURSE_ENCRYPTION_KEY`.",
    ),
    Variable(
        "RECOURSE_KEYRING",
        "local",
        "Where signing keys are kept: in the console's database, or in HashiCorp Vault.",
        choices=("local", "vault"),
    ),
    Variable("RECOURSE_VAULT_ADDR", "", "Vault's address, for example `https://vault.example.org:8200`."),
    Variable("RECOURSE_VAULT_MOUNT", "secret", "The mount of a KV secrets engine of version 2."),
    Variable("RECOURSE_VAULT_PREFIX", "recourse/keyrings", "The path below it; one secret for each workspace."),
    Variable("RECOURSE_VAULT_NAMESPACE", "", "The namespace, where Vault has them."),
    Variable("RECOURSE_VAULT_TOKEN", "", "A token with read, create and update on that path."),
    Variable(
        "RECOURSE_VAULT_TOKEN_FILE",
        "",
        "A file that holds the token, read anew for each request: a Vault Agent may renew it.",
    ),
    Variable("RECOURSE_VAULT_CA_FILE", "", "The authority that signed Vault's certificate. Empty: the usual ones."),
    Variable(
        "RECOURSE_VAULT_TIMEOUT_MS",
        "1000",
        "How long Vault may take to connect and to answer. Runs wait for it, every few seconds at most.",
        50,
        30_000,
    ),
    Variable(
        "RECOURSE_ENV",
        "development",
        "`production` demands secure cookies and refuses unsafe settings.",
        choices=("development", "production"),
    ),
    Variable(
        "RECOURSE_DATA", "var", "The data directory: embedded database, broker files, generated secrets. `--data` wins."
    ),
    Variable("RECOURSE_DEBUG", "0", "Django's debug pages. Never in production.", switch=True),
    Variable("RECOURSE_HOST", "127.0.0.1", "The address on which `up` listens."),
    Variable(
        "RECOURSE_ALLOWED_HOSTS", "*", "Host names that are answered, separated by commas. Must be named in production."
    ),
    Variable(
        "RECOURSE_TRUSTED_ORIGINS",
        "",
        "Origins that forms may come from behind a proxy, for example `https://console.example.org`.",
    ),
    Variable(
        "RECOURSE_TRUST_PROXY",
        "0",
        "Believe `X-Forwarded-Proto` and `X-Forwarded-For`. Only behind a proxy that sets them itself.",
        switch=True,
    ),
    Variable("RECOURSE_LEASE_SECONDS", "60", "How long a worker owns an attempt without renewing.", 3, 3600),
    Variable(
        "RECOURSE_RENEW_SECONDS",
        "",
        "How often a worker renews. Empty: a third of the lease, which is also the most.",
        1,
        1200,
    ),
    Variable(
        "RECOURSE_VISIBILITY_SECONDS",
        "30",
        "How long a job may stay handed out without its lease being acquired.",
        1,
        3600,
    ),
    Variable(
        "RECOURSE_WAITING_PULLS",
        "8",
        "Pulls that may wait at once in one web process. Below `RECOURSE_WEB_THREADS`.",
        0,
        1000,
    ),
    Variable(
        "RECOURSE_RETENTION_DAYS",
        "0",
        "Runs that ended more than so many days ago are removed, with the identity under which they were created; "
        "not while something of them is to be reconciled or decided, or a fork of them is kept. 0: never.",
        0,
        36_500,
    ),
    Variable(
        "RECOURSE_CHILD_DEPTH",
        "10",
        "How many runs may stand above one that a stage starts: a run that starts itself again and again stops there.",
        1,
        100,
    ),
    Variable("RECOURSE_CHILD_RUNS", "1000", "How many other runs the stages of one run may start.", 1, 100_000),
    Variable(
        "RECOURSE_ARTIFACTS",
        "database",
        "Where the bytes of artifacts are kept: `database`, a directory that all processes share "
        "(`file:///srv/artifacts`), or an S3-compatible bucket (`s3://bucket/prefix`). What was kept elsewhere before "
        "stays there.",
    ),
    Variable(
        "RECOURSE_ARTIFACT_MAX_BYTES",
        "10485760",
        "How many bytes one artifact may have.",
        1,
        11 * 1024 * 1024,
    ),
    Variable(
        "RECOURSE_ARTIFACTS_S3_ENDPOINT",
        "",
        "The server's address, where it is not Amazon's: `https://s3.example.org`.",
    ),
    Variable("RECOURSE_ARTIFACTS_S3_REGION", "", "The bucket's region, where the server has them."),
    Variable(
        "RECOURSE_ARTIFACTS_S3_ACCESS_KEY",
        "",
        "The access key. Empty, with the secret: what boto3 finds by itself, for example the role of the host.",
    ),
    Variable("RECOURSE_ARTIFACTS_S3_SECRET_KEY", "", "The secret of the access key."),
    Variable("RECOURSE_ARTIFACTS_S3_SECRET_KEY_FILE", "", "A file that holds the secret, read at start."),
    Variable(
        "RECOURSE_ARTIFACTS_S3_ADDRESSING",
        "auto",
        "Whether the bucket stands in the host name or in the path of addresses.",
        choices=("auto", "path", "virtual"),
    ),
    Variable(
        "RECOURSE_STORE_TABLES",
        "100",
        "How many tables the workspace store may have in a workspace. 0: nothing is stored.",
        0,
        100_000,
    ),
    Variable(
        "RECOURSE_STORE_TABLE_ROWS", "100000", "How many rows a table of the workspace store may have.", 1, 10_000_000
    ),
    Variable(
        "RECOURSE_STORE_BYTES",
        "268435456",
        "How many bytes all rows of a workspace in its store may have together, as compact JSON.",
        1,
        1024**4,
    ),
    Variable(
        "RECOURSE_STORE_ROW_BYTES",
        "65536",
        "How many bytes one row of the workspace store may have.",
        1,
        1024 * 1024,
    ),
    Variable(
        "RECOURSE_HANDLERS",
        "",
        "Modules with Python handlers for the Celery executor, or files of pipelines, separated by commas; "
        "`module@workspace/application` limits a module to one application. `up` adds those of the samples.",
    ),
    Variable(
        "RECOURSE_PUBLIC_URL",
        "",
        "The console's address as people reach it, for example `https://console.example.org`: the base of links in "
        "messages. Empty: `up` takes its own in development; elsewhere links are paths.",
    ),
    Variable(
        "RECOURSE_NOTIFY_ALLOW",
        "",
        "Host names, addresses and networks that webhooks may reach although they are private, or by http, separated "
        "by commas: `hooks.corp.example,10.1.0.0/16`.",
    ),
    Variable(
        "RECOURSE_EMAIL_URL",
        "",
        "The mail server: `smtp://user:password@host:587?tls=1`, `smtps://…` for TLS from the start. Empty: no e-mail "
        "is sent.",
    ),
    Variable("RECOURSE_EMAIL_FROM", "", "The sender of e-mail. Needed with `RECOURSE_EMAIL_URL`."),
    Variable("RECOURSE_PASSWORD_LOGIN", "1", "Whether passwords let in. `0` needs an issuer.", switch=True),
    Variable(
        "RECOURSE_OIDC_ISSUER",
        "",
        "The OpenID Connect issuer that people may log in with, for example `https://login.example.org/realms/main`. "
        "Empty: none.",
    ),
    Variable("RECOURSE_OIDC_CLIENT_ID", "", "The console's client there. Its redirect: `/console/login/oidc/done/`."),
    Variable("RECOURSE_OIDC_CLIENT_SECRET", "", "The client's secret. Empty: a public client, by PKCE alone."),
    Variable("RECOURSE_OIDC_CLIENT_SECRET_FILE", "", "A file that holds the secret, read at start."),
    Variable("RECOURSE_OIDC_SCOPES", "openid profile email", "The scopes that are asked for; `openid` is one."),
    Variable(
        "RECOURSE_OIDC_NAME_CLAIM",
        "preferred_username",
        "The claim that names a new account. With `email`, only verified ones.",
    ),
    Variable(
        "RECOURSE_OIDC_MAKE_USERS",
        "0",
        "Whether an account is made for whom the issuer knows and the console does not.",
        switch=True,
    ),
    Variable("RECOURSE_OIDC_ROLE_CLAIM", "", "The claim that gives roles, for example `groups`."),
    Variable(
        "RECOURSE_OIDC_ROLES",
        "",
        "What its values give, `value=workspace:role` separated by commas, the first that fits. In a workspace that is "
        "named here the issuer decides who of its people is a member, at each of their log-ins.",
    ),
    Variable("RECOURSE_WEB_PROCESSES", "2", "Web server processes.", 1, 64),
    Variable("RECOURSE_WEB_THREADS", "16", "Threads of one web process.", 2, 1000),
    Variable("RECOURSE_DATABASE_POOL", "16", "Database connections that one web process may hold at once.", 2, 1000),
    Variable(
        "RECOURSE_LOG_LEVEL", "INFO", "The least level that is logged.", choices=("DEBUG", "INFO", "WARNING", "ERROR")
    ),
    Variable("RECOURSE_LOG_FORMAT", "text", "`text` for people, `json` for collectors.", choices=("text", "json")),
    Variable(
        "RECOURSE_PROCESS",
        "command",
        "What this process is; `up` sets it.",
        choices=("command", "web", "worker", "beat"),
        group="internal",
    ),
    Variable("RECOURSE_LISTEN_FD", "", "The listening socket that `up` hands to the web server.", group="internal"),
    Variable("RECOURSE_URL", "", "Address of the console, for the client and worker library.", group="client"),
    Variable("RECOURSE_API_KEY", "", "An application's key, for the client and worker library.", group="client"),
    Variable("RECOURSE_TOKEN", "", "A person's token, for the client library and command line.", group="client"),
    Variable("RECOURSE_WORKSPACE", "", "The workspace that the command line acts in.", group="client"),
    Variable("RECOURSE_PROFILE", "", "The profile that the command line reads.", group="client"),
    Variable("RECOURSE_CONNECTORS", "", "The TOML file of the outside systems that handlers reach.", group="client"),
    Variable("RECOURSE_WORKER_HANDLERS", "", "Modules that a worker of the library imports.", group="client"),
    Variable("RECOURSE_WORKER_NAME", "", "The name under which a worker of the library registers.", group="client"),
    Variable("RECOURSE_CONCURRENCY", "", "Stages that a worker of the library runs at once.", group="client"),
    Variable(
        "RECOURSE_TEST_SERVER_URL",
        "postgres://postgres@127.0.0.1:5432/postgres",
        "A PostgreSQL server for the second pass of the tests.",
        group="tests",
    ),
    Variable("RECOURSE_TEST_REDIS_URL", "redis://127.0.0.1:6379/9", "A Redis server for the tests.", group="tests"),
    Variable(
        "RECOURSE_TEST_RABBITMQ_URL",
        "amqp://guest:guest@127.0.0.1:5672//",
        "A RabbitMQ server for the tests.",
        group="tests",
    ),
    Variable(
        "RECOURSE_TEST_MYSQL_URL",
        "mysql://root@127.0.0.1:3306/test",
        "A MySQL or MariaDB server for the tests of the SQL adapter.",
        group="tests",
    ),
    Variable(
        "RECOURSE_REQUIRE_SERVICES",
        "0",
        "`1`: a service that does not answer fails the tests instead of skipping them.",
        switch=True,
        group="tests",
    ),
)
BY_NAME = {variable.name: variable for variable in VARIABLES}


@dataclass(frozen=True)
class Environment:
    """What the operator set, with defaults filled in. Seconds are whole seconds.

    `problems` are sentences about values that were not usable, `unknown` about names that look like ours and are not.
    """

    base_dir: Path
    data_dir: Path
    name: str
    process: str
    debug: bool
    secret_key: str
    encryption_key: str
    keyring: str
    vault_addr: str
    vault_mount: str
    vault_prefix: str
    vault_namespace: str
    vault_token: str
    vault_token_file: str
    vault_ca_file: str
    vault_timeout_ms: int
    host: str
    allowed_hosts: list[str]
    trusted_origins: list[str]
    trust_proxy: bool
    database: dict[str, Any]
    embedded: bool
    broker_url: str
    lease_seconds: int
    renew_seconds: int
    visibility_seconds: int
    waiting_pulls: int
    retention_days: int
    child_depth: int
    child_runs: int
    artifacts: ArtifactPlace
    artifact_max_bytes: int
    store_tables: int
    store_table_rows: int
    store_bytes: int
    store_row_bytes: int
    public_url: str
    notify_allow: list[str]
    email: dict[str, Any]
    password_login: bool
    oidc: Oidc | None
    web_processes: int
    web_threads: int
    handlers: list[str]
    log_level: str
    log_format: str
    problems: tuple[str, ...] = field(default=())
    unknown: tuple[str, ...] = field(default=())

    @property
    def production(self) -> bool:
        return self.name == "production"

    @classmethod
    def from_os(cls, values: Mapping[str, str] = os.environ) -> Environment:
        """Read everything once. Touches the disk only to make a data directory's secrets when none are given."""
        problems: list[str] = []
        read = _Reader(values, problems)
        data_dir = Path(read.text("RECOURSE_DATA") if values.get("RECOURSE_DATA") else BASE_DIR / "var").absolute()
        lease = read.number("RECOURSE_LEASE_SECONDS")
        process = read.choice("RECOURSE_PROCESS")
        pool = read.number("RECOURSE_DATABASE_POOL") if process == "web" else 0
        return cls(
            base_dir=BASE_DIR,
            data_dir=data_dir,
            name=read.choice("RECOURSE_ENV"),
            process=process,
            debug=read.switch("RECOURSE_DEBUG"),
            secret_key=read.text("SECRET_KEY") or secret_files.secret_key(data_dir, problems),
            encryption_key=read.text("RECOURSE_ENCRYPTION_KEY") or secret_files.encryption_key(data_dir, problems),
            keyring=read.choice("RECOURSE_KEYRING"),
            vault_addr=read.text("RECOURSE_VAULT_ADDR").rstrip("/"),
            vault_mount=read.text("RECOURSE_VAULT_MOUNT").strip("/"),
            vault_prefix=read.text("RECOURSE_VAULT_PREFIX").strip("/"),
            vault_namespace=read.text("RECOURSE_VAULT_NAMESPACE"),
            vault_token=read.text("RECOURSE_VAULT_TOKEN"),
            vault_token_file=read.text("RECOURSE_VAULT_TOKEN_FILE"),
            vault_ca_file=read.text("RECOURSE_VAULT_CA_FILE"),
            vault_timeout_ms=read.number("RECOURSE_VAULT_TIMEOUT_MS"),
            host=read.text("RECOURSE_HOST"),
            allowed_hosts=_words(read.text("RECOURSE_ALLOWED_HOSTS")),
            trusted_origins=_words(read.text("RECOURSE_TRUSTED_ORIGINS")),
            trust_proxy=read.switch("RECOURSE_TRUST_PROXY"),
            database=_database(values.get("DATABASE_URL", ""), data_dir, pool, problems),
            embedded=not values.get("DATABASE_URL"),
            broker_url=read.text("CELERY_BROKER_URL") or "filesystem://",
            lease_seconds=lease,
            renew_seconds=read.number("RECOURSE_RENEW_SECONDS", default=max(1, lease // 3)),
            visibility_seconds=read.number("RECOURSE_VISIBILITY_SECONDS"),
            waiting_pulls=read.number("RECOURSE_WAITING_PULLS"),
            retention_days=read.number("RECOURSE_RETENTION_DAYS"),
            child_depth=read.number("RECOURSE_CHILD_DEPTH"),
            child_runs=read.number("RECOURSE_CHILD_RUNS"),
            artifacts=artifact_settings.read(read.text, read.choice("RECOURSE_ARTIFACTS_S3_ADDRESSING"), problems),
            artifact_max_bytes=read.number("RECOURSE_ARTIFACT_MAX_BYTES"),
            store_tables=read.number("RECOURSE_STORE_TABLES"),
            store_table_rows=read.number("RECOURSE_STORE_TABLE_ROWS"),
            store_bytes=read.number("RECOURSE_STORE_BYTES"),
            store_row_bytes=read.number("RECOURSE_STORE_ROW_BYTES"),
            public_url=_public_url(read.text("RECOURSE_PUBLIC_URL"), problems),
            notify_allow=_notify_allow(_words(read.text("RECOURSE_NOTIFY_ALLOW")), problems),
            email=_email(read.text("RECOURSE_EMAIL_URL"), read.text("RECOURSE_EMAIL_FROM"), problems),
            password_login=read.switch("RECOURSE_PASSWORD_LOGIN"),
            oidc=oidc_settings.read(read.text, read.switch("RECOURSE_OIDC_MAKE_USERS"), problems),
            web_processes=read.number("RECOURSE_WEB_PROCESSES"),
            web_threads=read.number("RECOURSE_WEB_THREADS"),
            handlers=_words(read.text("RECOURSE_HANDLERS")),
            log_level=read.choice("RECOURSE_LOG_LEVEL"),
            log_format=read.choice("RECOURSE_LOG_FORMAT"),
            unknown=tuple(_unknown(values)),
            problems=tuple(problems),
        )


def is_on(text: str) -> bool | None:
    """What a switch is set to by this word; None when it is neither on nor off."""
    word = text.strip().lower()
    return word in ON if word in (*ON, *OFF) else None


class _Reader:
    """Reads single values; what cannot be used becomes the default and a sentence in `problems`."""

    def __init__(self, values: Mapping[str, str], problems: list[str]) -> None:
        self.values = values
        self.problems = problems

    def text(self, name: str) -> str:
        return self.values.get(name, BY_NAME[name].default).strip()

    def choice(self, name: str) -> str:
        variable = BY_NAME[name]
        text = self.text(name) or variable.default
        if text in variable.choices:
            return text
        self.problems.append(f"{name} is {text!r}; it must be one of: {', '.join(variable.choices)}.")
        return variable.default

    def switch(self, name: str) -> bool:
        default = BY_NAME[name].default
        text = self.text(name) or default
        found = is_on(text)
        if found is None:
            self.problems.append(f"{name} is {text!r}; it must be one of: {', '.join((*ON, *OFF))}.")
            return default in ON
        return found

    def number(self, name: str, default: int | None = None) -> int:
        variable = BY_NAME[name]
        fallback = int(variable.default) if default is None else default
        text = self.values.get(name, "").strip()
        if not text:
            return fallback
        limits = f"a whole number from {variable.minimum} to {variable.maximum}"
        try:
            number = int(text)
        except ValueError:
            self.problems.append(f"{name} is {text!r}; it must be {limits}.")
            return fallback
        if not (variable.minimum or 0) <= number <= (variable.maximum or number):
            self.problems.append(f"{name} is {number}; it must be {limits}.")
            return fallback
        return number


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _public_url(url: str, problems: list[str]) -> str:
    parts = _split(url)
    if url and (
        parts is None
        or parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.query
        or parts.fragment
        or parts.username is not None
    ):
        problems.append("RECOURSE_PUBLIC_URL is not an address like https://console.example.org.")
        return ""
    return url.rstrip("/")


def _notify_allow(entries: list[str], problems: list[str]) -> list[str]:
    usable = []
    for entry in entries:
        try:
            usable.append(str(ipaddress.ip_network(entry)))
        except ValueError:
            if re.fullmatch(r"(?!-)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", entry) and not re.fullmatch(r"[\d.]+", entry):
                usable.append(entry.lower())
            else:
                problems.append(
                    f"RECOURSE_NOTIFY_ALLOW holds {entry!r}; it must be a host name, an address or a network."
                )
    return usable


def _email(url: str, sender: str, problems: list[str]) -> dict[str, Any]:
    """Django's settings of a mail server; an empty host when there is none. The address is never told: it may hold a
    password."""
    found = {"host": "", "port": 25, "user": "", "password": "", "tls": False, "ssl": False, "sender": sender}
    if not url:
        return found
    parts = _split(url)
    asked = dict(parse_qsl(parts.query, keep_blank_values=True)) if parts else {}
    if (
        parts is None
        or parts.scheme not in ("smtp", "smtps")
        or not parts.hostname
        or parts.path.strip("/")
        or set(asked) - {"tls"}
        or is_on(asked.get("tls", "0")) is None
    ):
        problems.append("RECOURSE_EMAIL_URL cannot be read; it must look like smtp://user:password@host:587?tls=1.")
        return found
    if not re.fullmatch(r"[^@\s]+@[^@\s]+|[^<>\r\n]*<[^@\s<>]+@[^@\s<>]+>", sender):
        problems.append("RECOURSE_EMAIL_FROM is no e-mail address; RECOURSE_EMAIL_URL needs one to send from.")
        return found
    is_tls, is_ssl = bool(is_on(asked.get("tls", "0"))), parts.scheme == "smtps"
    return found | {
        "host": parts.hostname,
        "port": parts.port or (465 if is_ssl else 587 if is_tls else 25),
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "tls": is_tls and not is_ssl,
        "ssl": is_ssl,
    }


def _split(url: str) -> SplitResult | None:
    """The parts of an address; None when it has none that make sense."""
    try:
        parts = urlsplit(url)
        return parts if parts.port != 0 else None
    except ValueError:
        return None


def _unknown(values: Mapping[str, str]) -> list[str]:
    sentences = []
    for name in sorted(values):
        if not name.startswith("RECOURSE_") or name in BY_NAME:
            continue
        near = difflib.get_close_matches(name, BY_NAME, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        sentences.append(f"{name} is set, but there is no such setting.{hint}")
    return sentences


def _database(url: str, data_dir: Path, pool: int, problems: list[str]) -> dict[str, Any]:
    # A pool belongs to the long-lived threads of a web process. Workers fork, and a pool does not survive that: they
    # and the commands keep one connection each.
    options: dict[str, Any] = {"pool": {"min_size": 1, "max_size": pool, "timeout": 5}} if pool else {}
    options["prepare_threshold"] = 3  # for the engine's statements, see pipelines/sql.py
    options["options"] = SESSION_SETTINGS
    common = {
        "ENGINE": "django.db.backends.postgresql",
        "CONN_MAX_AGE": 0 if pool else 600,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": options,
    }
    inside = common | {
        "NAME": embedded.DATABASE,
        "USER": embedded.USER,
        "HOST": str(embedded.socket_directory(data_dir)),
        "PORT": embedded.PORT,
    }
    if not url:
        return inside
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        problems.append("DATABASE_URL cannot be read; it must look like postgres://user:password@host:port/name.")
        return inside
    if parts.scheme not in ("postgres", "postgresql") or not parts.path.strip("/"):
        problems.append(
            f"DATABASE_URL begins with {parts.scheme!r}; it must look like postgres://user:password@host:port/name. "
            "No other database is supported."
        )
        return inside
    given = dict(parse_qsl(parts.query))
    options.update(given, options=f"{SESSION_SETTINGS} {given.get('options', '')}".rstrip())
    return common | {
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or options.pop("host", "")),
        "PORT": port or "",
    }
