"""The demo's credentials: kept in VAR_DIR/demo.json for this machine's user, shown once."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from django.conf import settings

QUESTION = "I was charged twice for order 55321, please refund me."


def path() -> Path:
    return Path(settings.VAR_DIR / "demo.json")


def load() -> dict[str, Any]:
    """What was kept; empty before the first seeding."""
    kept: dict[str, Any] = json.loads(path().read_text()) if path().exists() else {}
    return kept


def keep(access: dict[str, Any]) -> None:
    """Replaces the file in one step; only its owner may read it."""
    new = path().with_suffix(".new")
    with open(os.open(new, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:
        json.dump(access, file, indent=2)
    new.replace(path())


def welcome(is_new: bool) -> str:
    """What `serve` ends its start with: the address, who may sign in, two snippets to paste."""
    access = load()
    parts = [
        f"\nGrafthouse runs at {access['url']}  (Ctrl-C stops it; logs: {settings.VAR_DIR}/log)"
    ]
    if not (settings.FRONTEND_DIR / "index.html").exists():
        parts.append("The web UI is not built: run `make ui`, then start again.")
    if is_new:
        parts += [sign_ins(access), f"Shown once; kept in {path()} (mode 0600)."]
    else:
        parts.append(f"Logins and API keys are in {path()}.")
    if servable := [tenant for tenant in access["tenants"] if tenant["adapters"]]:
        parts.append(snippets(access["url"], servable, is_new))
    return "\n\n".join(parts) + "\n"


def sign_ins(access: dict[str, Any]) -> str:
    people = [("operator", access["operator"]), *((t["slug"], t) for t in access["tenants"])]
    lines = [f"  {'':10}{'login':24}password"]
    lines += [f"  {who:10}{person['login']:24}{person['password']}" for who, person in people]
    lines += [
        f"  {tenant['slug']:10}key {tenant['api_key']}  ({', '.join(tenant['adapters'])})"
        for tenant in access["tenants"]
    ]
    return "\n".join(lines)


def snippets(url: str, tenants: list[dict[str, Any]], is_new: bool) -> str:
    """With the key itself while it is shown, later with a command that reads it from the file."""
    first, last = tenants[0], tenants[-1]
    return "\n\n".join(
        [
            "Try it:",
            curl_snippet(url, key_of(first, 0, is_new), first["adapters"][-1]),
            python_snippet(url, key_of(last, len(tenants) - 1, is_new), last["adapters"][-1]),
        ]
    )


def key_of(tenant: dict[str, Any], index: int, is_new: bool) -> str:
    if is_new:
        return str(tenant["api_key"])
    program = f"import json; print(json.load(open({str(path())!r}))['tenants'][{index}]['api_key'])"
    return f"$({shlex.quote(sys.executable)} -c {shlex.quote(program)})"


def curl_snippet(url: str, key: str, adapter: str) -> str:
    body = {"model": adapter, "temperature": 0, "messages": [{"role": "user", "content": QUESTION}]}
    return (
        f'curl -sw "\\n" {url}/v1/chat/completions -H "authorization: Bearer {key}" \\\n'
        f"  -H 'content-type: application/json' -d '{json.dumps(body)}'"
    )


def python_snippet(url: str, key: str, adapter: str) -> str:
    return f"""OPENAI_API_KEY="{key}" {shlex.quote(sys.executable)} - <<'EOF'
from openai import OpenAI

client = OpenAI(base_url="{url}/v1")
stream = client.chat.completions.create(
    model="{adapter}",
    temperature=0,
    stream=True,
    messages=[{{"role": "user", "content": "Hi, this is Marta. {QUESTION}"}}],
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
EOF"""
