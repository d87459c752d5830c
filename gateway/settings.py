"""Settings of the web side (web, worker, beat). The only place there that reads the environment.

Every setting with a GRAFTHOUSE_ name or listed in README's table is an operator's knob; a test
keeps the table complete. A value that cannot be is an error at start, never a silent default.
"""

import os
import secrets
from datetime import timedelta
from pathlib import Path
from typing import Any

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from gateway import schedule

ROOT_DIR = Path(__file__).resolve().parent.parent


def env_bool(name: str, default: bool) -> bool:
    value = os.environ.get(name, "true" if default else "false").lower()
    if value not in {"true", "false", "1", "0"}:
        raise ImproperlyConfigured(f"{name}: expected true or false, got {value!r}")
    return value in {"true", "1"}


def env_int(name: str, default: int, least: int = 0) -> int:
    value = os.environ.get(name, str(default))
    if not value.isdecimal() or int(value) < least:
        message = f"{name}: expected a whole number of {least} or more, got {value!r}"
        raise ImproperlyConfigured(message)
    return int(value)


def env_choice(name: str, default: str, choices: tuple[str, ...]) -> str:
    value = os.environ.get(name, default)
    if value not in choices:
        raise ImproperlyConfigured(f"{name}: expected {' or '.join(choices)}, got {value!r}")
    return value


def env_list(name: str, default: str = "") -> list[str]:
    return [part.strip() for part in os.environ.get(name, default).split(",") if part.strip()]


VAR_DIR = Path(os.environ.get("VAR_DIR", ROOT_DIR / "var")).resolve()
# Where `manage.py serve` listens; HOST=0.0.0.0 with ALLOWED_HOSTS opens it to others.
HOST = os.environ.get("HOST", "127.0.0.1")
PORT = env_int("PORT", 8000)
# Web processes behind that port: one takes one core.
NUM_WEB_WORKERS = env_int("NUM_WEB_WORKERS", 1, least=1)
DEBUG = env_bool("DEBUG", False)


def secret_key() -> str:
    """SECRET_KEY, or one made at first start and kept in VAR_DIR with mode 0600."""
    if given := os.environ.get("SECRET_KEY"):
        return given
    path = VAR_DIR / "secret_key"
    VAR_DIR.mkdir(parents=True, exist_ok=True)
    try:
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(48))
    except FileExistsError:
        pass
    return path.read_text()


SECRET_KEY = secret_key()
ALLOWED_HOSTS = env_list("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]")
CSRF_TRUSTED_ORIGINS = env_list("CSRF_TRUSTED_ORIGINS")
CORS_ORIGINS = env_list("CORS_ORIGINS")
SECURE_COOKIES = env_bool("SECURE_COOKIES", False)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_COOKIES
SESSION_COOKIE_AGE = int(timedelta(days=14).total_seconds())
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"
# Of `check --deploy`: the proxy that TLS ends at redirects to it, and promises it (HSTS).
SILENCED_SYSTEM_CHECKS = ["security.W004", "security.W008"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "channels",
    "tenants",
    "adapters",
    "gateway",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "gateway.urls"
ASGI_APPLICATION = "gateway.asgi.application"
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

SQLITE_OPTIONS = {
    # WAL alone still answers "database is locked" under several writers; IMMEDIATE does not.
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    # A checkpoint syncs the disk while a request waits: gateway.database makes them beside, and
    # only a log of 80 MB is written back by whoever comes next.
    "init_command": (
        "PRAGMA journal_mode=WAL;PRAGMA synchronous=NORMAL;PRAGMA wal_autocheckpoint=20000;"
    ),
}
DATABASE_URL = os.environ.get("DATABASE_URL", f"sqlite:///{VAR_DIR / 'grafthouse.sqlite3'}")
if not DATABASE_URL.startswith(("postgresql://", "postgres://", "sqlite://")):
    # The rest of it may be a password.
    scheme = DATABASE_URL.partition(":")[0]
    raise ImproperlyConfigured(f"DATABASE_URL: expected postgresql:// or sqlite://, got {scheme!r}")
DATABASES: dict[str, Any] = {"default": dj_database_url.parse(DATABASE_URL, conn_max_age=60)}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = SQLITE_OPTIONS

AUTH_USER_MODEL = "tenants.User"
# Of which names a key may be held to: tenants asks, and must not know who answers.
KNOWN_MODEL_NAMES = "adapters.names.known_names"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False

# The built admin UI is served by whitenoise from the site root; Django's own assets below /static/,
# straight from their packages: there is no collectstatic step.
STATIC_URL = "/static/"
WHITENOISE_USE_FINDERS = True
FRONTEND_DIR = ROOT_DIR / "frontend" / "dist"
WHITENOISE_ROOT = FRONTEND_DIR if FRONTEND_DIR.is_dir() else None
# Vite names its assets by their content, so a browser may keep them for ever.
WHITENOISE_IMMUTABLE_FILE_TEST = r"^/assets/.+-[A-Za-z0-9_-]{8}\.[a-z0-9.]+$"

REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")
# `manage.py serve` starts its own store and replica unless it was given others.
HAS_OWN_STORE = "REDIS_URL" not in os.environ
HAS_OWN_REPLICA = "REPLICA_URLS" not in os.environ
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "gateway.layer.PatientLayer",
        # A blocking read waits 5 s for a message: the client's own time-out must be longer.
        "CONFIG": {"hosts": [{"address": REDIS_URL, "socket_timeout": 15}], "capacity": 1000},
    }
}

CELERY_BROKER_URL = REDIS_URL
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TIMEZONE = "UTC"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# Above the longest task: kombu redelivers what is not acknowledged by then.
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 3600}
CELERY_TASK_QUEUES, CELERY_TASK_ROUTES = schedule.QUEUES, schedule.ROUTES
CELERY_BEAT_SCHEDULE_FILENAME = str(VAR_DIR / "celerybeat-schedule")
CELERY_BEAT_SCHEDULE = schedule.BEAT

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "tenants.api.authentication.KeyAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_PARSER_CLASSES": [
        "tenants.api.parsers.JSONParser",
        "rest_framework.parsers.FormParser",
        "rest_framework.parsers.MultiPartParser",
    ],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    # There is one format: `?format=` is a view's own word where it means something.
    "URL_FORMAT_OVERRIDE": None,
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_PAGINATION_CLASS": "rest_framework.pagination.LimitOffsetPagination",
    "PAGE_SIZE": 50,
    "EXCEPTION_HANDLER": "tenants.api.errors.exception_handler",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Grafthouse control plane",
    "VERSION": "v1",
    "SERVE_INCLUDE_SCHEMA": False,
    "COMPONENT_SPLIT_REQUEST": True,
    # More than one component shows them; the generator would name them by a hash.
    "ENUM_NAME_OVERRIDES": {
        "VersionStateEnum": "adapters.models.VersionState",
        "CanaryStateEnum": "adapters.models.CanaryState",
        "WorkStatusEnum": "adapters.models.EvaluationStatus",
        "KeyStateEnum": "tenants.models.KeyState",
    },
}

# The base model that every replica serves, and where a version's bytes live by digest.
DEMO_MODEL_PATH = VAR_DIR / "models" / "smollm2-135m-instruct"
BASE_MODEL_PATH = Path(os.environ.get("MODEL") or DEMO_MODEL_PATH).absolute()
BASE_MODEL_NAME = os.environ.get("MODEL_NAME", BASE_MODEL_PATH.name.lower())
# Of an eval set (JSON Lines) for adapters whose tenant uploaded none; set to nothing: no default.
EVAL_SET_PATH = os.environ.get(
    "EVAL_SET_PATH", str(ROOT_DIR / "adapters" / "default_eval_set.jsonl")
)
ADAPTER_STORE_DIR = Path(os.environ.get("ADAPTER_STORE_DIR", VAR_DIR / "adapters"))
# Of a bucket that holds the blobs; ADAPTER_STORE_DIR is then a cache. Empty: the folder alone does.
ADAPTER_S3_BUCKET = os.environ.get("ADAPTER_S3_BUCKET", "")
ADAPTER_S3_PREFIX = os.environ.get("ADAPTER_S3_PREFIX", "adapters/")
ADAPTER_S3_ENDPOINT = os.environ.get("ADAPTER_S3_ENDPOINT", "")
# Where adapters are imported from: the hub, or a mirror that speaks its HTTP.
HF_ENDPOINT = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
REPLICA_URLS = env_list("REPLICA_URLS", "http://127.0.0.1:8100")
# What replicas announce themselves with (POST /api/fleet/announce/); empty: REPLICA_URLS is all.
REPLICA_TOKEN = os.environ.get("REPLICA_TOKEN", "")
NUM_REPLICAS_PER_ADAPTER = env_int("NUM_REPLICAS_PER_ADAPTER", 2, least=1)

# The endpoint's own bounds. A request that names no max_tokens gets DEFAULT_MAX_TOKENS.
DEFAULT_MAX_TOKENS = env_int("DEFAULT_MAX_TOKENS", 512, least=1)
# Of `n` and `best_of`: what our engine takes. A request is refused before anything is reserved.
MAX_CHOICES = env_int("MAX_CHOICES", 16, least=1)
MAX_BODY_BYTES = env_int("MAX_BODY_BYTES", 4 * 2**20)
# Of all that one web process holds at once, while they come and until they are answered.
MAX_BODIES_BYTES = env_int("MAX_BODIES_BYTES", 256 * 2**20)
# A body of /v1 comes whole within BODY_TIMEOUT_S; an upload has so long, and a second more for each
# MIN_UPLOAD_BYTES_PER_S that came.
BODY_TIMEOUT_S = env_int("BODY_TIMEOUT_S", 60)
MIN_UPLOAD_BYTES_PER_S = env_int("MIN_UPLOAD_BYTES_PER_S", 4096)
# Of one web process: connections (WebSockets among them), and generations. gateway/connection.py
# holds the first four.
MAX_CONNECTIONS = env_int("MAX_CONNECTIONS", 8192)
HEAD_TIMEOUT_S = env_int("HEAD_TIMEOUT_S", 10)
KEEP_ALIVE_TIMEOUT_S = env_int("KEEP_ALIVE_TIMEOUT_S", 75)
WRITE_TIMEOUT_S = env_int("WRITE_TIMEOUT_S", 60)
MAX_HEADERS = env_int("MAX_HEADERS", 100)
MAX_HEADER_BYTES = env_int("MAX_HEADER_BYTES", 32 * 2**10)
MAX_STREAMS = env_int("MAX_STREAMS", 4096)
# WebSockets. What a generation that may be resumed keeps of its frames, and for how long without a
# reader; all of a process together.
MAX_GENERATIONS_PER_SOCKET = env_int("MAX_GENERATIONS_PER_SOCKET", 16)
MAX_SOCKETS_PER_TENANT = env_int("MAX_SOCKETS_PER_TENANT", 256)
SOCKET_IDLE_TIMEOUT_S = env_int("SOCKET_IDLE_TIMEOUT_S", 600)
RESUME_WINDOW_S = env_int("RESUME_WINDOW_S", 30)
MAX_RESUME_BYTES = env_int("MAX_RESUME_BYTES", 2**20)
MAX_RESUME_TOTAL_BYTES = env_int("MAX_RESUME_TOTAL_BYTES", 128 * 2**20)
UPSTREAM_CONNECT_TIMEOUT_S = 2
UPSTREAM_IDLE_TIMEOUT_S = env_int("UPSTREAM_IDLE_TIMEOUT_S", 120)
# What is kept of a key, model pointer or price was true so long ago at most, pushed or not.
CACHE_TTL_S = 1.0

DATA_UPLOAD_MAX_MEMORY_SIZE = 4 * 2**20
FILE_UPLOAD_MAX_MEMORY_SIZE = 1 * 2**20
MAX_UPLOAD_BYTES = env_int("MAX_UPLOAD_BYTES", 2 * 2**30)
# Of one part of an upload in parts; the whole has the plan's limit only.
MAX_PART_BYTES = env_int("MAX_PART_BYTES", 64 * 2**20)

# A bearer token that /metrics asks for; empty: /metrics is open. Set by prometheus-client's own
# name: the folder in which several web workers behind one port share their counters.
METRICS_TOKEN = os.environ.get("METRICS_TOKEN", "")
PROMETHEUS_MULTIPROC_DIR = os.environ.get("PROMETHEUS_MULTIPROC_DIR", "")

LOG_LEVEL = os.environ.get("LOG_LEVEL", "INFO")
# A line a request on standard output: json, or off.
ACCESS_LOG = env_choice("ACCESS_LOG", "json", ("json", "off"))
LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
}
