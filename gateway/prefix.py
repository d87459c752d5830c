"""What two requests share when a replica that served the one has KV blocks for the other."""

from hashlib import blake2b
from typing import Any

import orjson

# Of a completion's prompt: long enough to tell documents apart, short enough that prompts with a
# common head go together.
NUM_HEAD = 1024


def prefix_key(salt: str, body: dict[str, Any]) -> str:
    """Equal for all turns of a conversation: up to its first user message nothing changes.

    salt: the KV cache's namespace, in which alone blocks are shared.
    """
    raw = orjson.dumps(_head(body))
    return salt + blake2b(raw, digest_size=16).hexdigest()


def _head(body: dict[str, Any]) -> object:
    messages, prompt = body.get("messages"), body.get("prompt")
    if isinstance(messages, list):
        roles = [one.get("role") if isinstance(one, dict) else None for one in messages]
        return messages[: roles.index("user") + 1] if "user" in roles else messages
    return prompt[:NUM_HEAD] if isinstance(prompt, str | list) else None
