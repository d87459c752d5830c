"""LiteLLM's proxy in a virtual environment of its own, with one worker and limits on its key.

Its virtual keys need PostgreSQL, so a custom_auth of a few lines stands in for them: it hands the
proxy the same key object, with requests and tokens a minute and parallel requests, which its own
limiter counts in memory. It looks nothing up and writes no ledger: ours does both.
"""

import json
import secrets
import subprocess
import sys
from pathlib import Path

from gateway.bench.limits import LIMITS, MODEL

VERSION = "1.108.7"
KEY = "sk-bench"
AUTH = f"""
from litellm.proxy._types import ProxyException, UserAPIKeyAuth, hash_token

async def check(request, api_key):
    if api_key != {KEY!r}:
        raise ProxyException("no such key", "auth_error", "key", 401)
    return UserAPIKeyAuth(
        api_key=hash_token(api_key),
        rpm_limit={LIMITS["requests_per_minute"]},
        tpm_limit={LIMITS["tokens_per_minute"]},
        max_parallel_requests={LIMITS["max_concurrency"]},
    )
"""


class CannotInstall(Exception):
    """The last line of pip."""


def install(folder: Path) -> Path:
    """The proxy's program; what an earlier run has installed there is used again."""
    program = folder / "bin" / "litellm"
    if program.exists():
        return program
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "pip"), "install", "--quiet", f"litellm[proxy]=={VERSION}"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotInstall((done.stderr.strip().splitlines() or ["pip failed"])[-1])
    return program


def configure(folder: Path, upstream_url: str) -> Path:
    """Its configuration, as the JSON that is YAML too."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench_auth.py").write_text(AUTH)
    upstream = {"model": "openai/dummy", "api_base": f"{upstream_url}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": MODEL, "litellm_params": upstream}],
        # It does not start without a strong one; nobody uses it.
        "general_settings": {
            "custom_auth": "bench_auth.check",
            "master_key": f"sk-{secrets.token_urlsafe(32)}",
        },
        "litellm_settings": {"num_retries": 0, "telemetry": False},
    }
    path = folder / "litellm.yaml"
    path.write_text(json.dumps(config))
    return path


def command(program: Path, config: Path, port: int) -> list[str]:
    where = ["--host", "127.0.0.1", "--port", str(port)]
    return [str(program), "--config", str(config), *where, "--num_workers", "1"]


# No look-up of prices over the network, no line a request, and a connection for every stream: 0
# would be its client library's own default, a hundred.
ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
    "AIOHTTP_CONNECTOR_LIMIT": "100000",
    "AIOHTTP_CONNECTOR_LIMIT_PER_HOST": "100000",
}
