"""Django settings. What an operator may set comes from the environment: docs/reference/settings.md."""

from config import log_lines
from config.environment import Environment

env = Environment.from_os()

BASE_DIR = env.base_dir
DATA_DIR = env.data_dir
DEBUG = env.debug
SECRET_KEY = env.secret_key
ALLOWED_HOSTS = env.allowed_hosts
CSRF_TRUSTED_ORIGINS = env.trusted_origins

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_filters",
    "django_htmx",
    "pgtrigger",
    "pipelines",
    "approvals",
    "recovery",
    "config",
]

MIDDLEWARE = [
    "config.request_id.RequestIdMiddleware",
    "config.metrics.RequestMetricsMiddleware",
    "config.compression.PageCompressionMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "config.security.AnswerHeadersMiddleware",
    "config.security.OneCharsetMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "config.method_page.MethodPageMiddleware",
]

ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.ModelBackend", "pipelines.access.MemberBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": env.database}

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "approvals.screens.context.waiting_approvals",
                "pipelines.console.context.frozen",
            ],
        },
    }
]

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False
FORMAT_MODULE_PATH = "config.formats"

# Files are served from where they lie: there is no build and no collecting before a start.
STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
STATIC_ROOT = None
WHITENOISE_USE_FINDERS = True

STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    **env.artifacts.storages,
}

SESSION_ENGINE = "config.sessions"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = env.production
CSRF_COOKIE_SAMESITE = "Lax"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if env.trust_proxy else None
X_FRAME_OPTIONS = "DENY"

REST_FRAMEWORK = {
    "EXCEPTION_HANDLER": "config.api.handle_error",
    "DEFAULT_PARSER_CLASSES": ["config.api.StrictJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": [],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "UNAUTHENTICATED_USER": None,
}
# The shapes spell out their closed sets where they stand; names for them would only be numbered.
SPECTACULAR_SETTINGS = {"POSTPROCESSING_HOOKS": [], "DISABLE_ERRORS_AND_WARNINGS": True}

# The widest body of any route; routes with a smaller limit of their own refuse earlier.
DATA_UPLOAD_MAX_MEMORY_SIZE = 16 * 1024 * 1024
FILE_UPLOAD_HANDLERS = [
    "config.uploads.BoundedUpload",
    "django.core.files.uploadhandler.MemoryFileUploadHandler",
    "django.core.files.uploadhandler.TemporaryFileUploadHandler",
]

LOGGING_CONFIG = None
log_lines.configure(level=env.log_level, form=env.log_format)

CELERY_BROKER_URL = env.broker_url

RECOURSE_TRUST_PROXY = env.trust_proxy
RECOURSE_LEASE_SECONDS = env.lease_seconds
RECOURSE_RENEW_SECONDS = env.renew_seconds
RECOURSE_VISIBILITY_SECONDS = env.visibility_seconds
RECOURSE_WAITING_PULLS = env.waiting_pulls
RECOURSE_RETENTION_DAYS = env.retention_days
RECOURSE_CHILD_DEPTH = env.child_depth
RECOURSE_CHILD_RUNS = env.child_runs
RECOURSE_ARTIFACTS = env.artifacts.kind
RECOURSE_ARTIFACT_MAX_BYTES = env.artifact_max_bytes
RECOURSE_STORE_TABLES = env.store_tables
RECOURSE_STORE_TABLE_ROWS = env.store_table_rows
RECOURSE_STORE_BYTES = env.store_bytes
RECOURSE_STORE_ROW_BYTES = env.store_row_bytes
RECOURSE_HANDLERS = env.handlers
RECOURSE_ENCRYPTION_KEY = env.encryption_key

RECOURSE_PUBLIC_URL = env.public_url
RECOURSE_NOTIFY_ALLOW = env.notify_allow
EMAIL_HOST = env.email["host"]
EMAIL_PORT = env.email["port"]
EMAIL_HOST_USER = env.email["user"]
EMAIL_HOST_PASSWORD = env.email["password"]
EMAIL_USE_TLS = env.email["tls"]
EMAIL_USE_SSL = env.email["ssl"]
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = env.email["sender"]

RECOURSE_PASSWORD_LOGIN = env.password_login
RECOURSE_OIDC = env.oidc

RECOURSE_KEYRING = env.keyring
RECOURSE_VAULT_ADDR = env.vault_addr
RECOURSE_VAULT_MOUNT = env.vault_mount
RECOURSE_VAULT_PREFIX = env.vault_prefix
RECOURSE_VAULT_NAMESPACE = env.vault_namespace
RECOURSE_VAULT_TOKEN = env.vault_token
RECOURSE_VAULT_TOKEN_FILE = env.vault_token_file
RECOURSE_VAULT_CA_FILE = env.vault_ca_file
RECOURSE_VAULT_TIMEOUT_MS = env.vault_timeout_ms
