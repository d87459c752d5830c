"""A request filled in from its version's serving profile. What the request says wins."""

import re
from dataclasses import replace
from typing import Any

import orjson

from adapters.profile import ServingProfile
from gateway.openai.schema import Ask
from tenants.errors import ApiError

# "developer" is the newer name of the same.
SYSTEM_ROLES = ("system", "developer")
PLACE = re.compile(r"\bmessages\[(\d+)\]")


def fill_in(ask: Ask, profile: ServingProfile | None) -> Ask:
    """null counts as left out, as everywhere."""
    if profile is None:
        return ask
    defaults = {name: value for name, value in profile.sampling.items() if is_absent(ask, name)}
    body = ask.body | defaults
    if profile.stop:
        body["stop"] = joined_stops(ask.body.get("stop"), profile.stop)
    filled = replace(ask, body=body)
    if ask.endpoint != "chat.completions":
        return filled
    if profile.system_prompt is not None:
        filled = with_system_prompt(filled, profile.system_prompt)
    if profile.chat_template is not None:
        filled = with_chat_template(filled, profile.chat_template)
    return filled


def is_absent(ask: Ask, name: str) -> bool:
    return ask.body.get(name) is None


def joined_stops(asked: object, own: tuple[str, ...]) -> object:
    """The request's, then the version's. What is no stop word is the engine's to refuse."""
    stops = [asked] if isinstance(asked, str) else [] if asked is None else asked
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        return asked
    return list(dict.fromkeys([*stops, *own]))


def with_system_prompt(ask: Ask, system_prompt: str) -> Ask:
    messages: list[Any] = ask.body["messages"]
    if any(isinstance(one, dict) and one.get("role") in SYSTEM_ROLES for one in messages):
        return ask
    added = {"role": "system", "content": system_prompt}
    num_tokens = ask.num_prompt_tokens_bound + len(orjson.dumps(added)) + 1
    body = ask.body | {"messages": [added, *messages]}
    return replace(ask, body=body, num_prompt_tokens_bound=num_tokens, num_added_messages=1)


def with_chat_template(ask: Ask, source: str) -> Ask:
    """What a template makes of the messages is its own affair, so the replica is told how many
    tokens were reserved for them: its constant text counts once, what it repeats must fit.
    """
    num_tokens = ask.num_prompt_tokens_bound + len(source.encode())
    body = ask.body | {"chat_template": source, "max_prompt_tokens": num_tokens}
    return replace(ask, body=body, num_prompt_tokens_bound=num_tokens)


def as_sent(error: ApiError, ask: Ask) -> ApiError:
    """The engine counts the messages that it got, the client those that it sent; what is too long
    is the client's field, whatever another engine calls it.
    """
    if error.code == "context_length_exceeded":
        error.param = "messages" if ask.endpoint == "chat.completions" else "prompt"
    if not ask.num_added_messages:
        return error

    def back(found: re.Match[str]) -> str:
        return f"messages[{int(found[1]) - ask.num_added_messages}]"

    message = PLACE.sub(back, error.message)
    param = None if error.param is None else PLACE.sub(back, error.param)
    return ApiError(
        error.code, error.status, message, error.type, param, error.headers, error.details
    )
