"""Activated LoRA (aLoRA): from which token of a prompt on an adapter applies."""

from collections.abc import Sequence

from inference.adapter_format.fields import Fields

MAX_INVOCATION_TOKENS = 512
_TOKENS = "alora_invocation_tokens"
# Spellings of the text that the tokens stand for; PEFT reads the tokens only.
INVOCATION_TEXTS = ("alora_invocation_string", "invocation_string")


def find_invocation(invocation: Sequence[int], token_ids: Sequence[int]) -> int | None:
    """Where the last occurrence of invocation in token_ids begins, as in PEFT; None without one.

    An empty invocation is an ordinary adapter's: it applies from position 0 on.
    """
    if not invocation:
        return 0
    wanted = list(invocation)
    for start in range(len(token_ids) - len(wanted), -1, -1):
        if token_ids[start] == wanted[0] and list(token_ids[start : start + len(wanted)]) == wanted:
            return start
    return None


def read_invocation(fields: Fields) -> tuple[int, ...]:
    """The field's token ids; missing, null and empty are an ordinary adapter's, as in PEFT."""
    value = fields.values.get(_TOKENS)
    if value is None or value == []:
        return ()
    ids = value if isinstance(value, list) else [None]
    if len(ids) <= MAX_INVOCATION_TOKENS and all(type(i) is int and 0 <= i < 1 << 31 for i in ids):
        return tuple(ids)
    fields.wrong_type(_TOKENS, f"a list of at most {MAX_INVOCATION_TOKENS} token ids", value)
    return ()


def check_text(fields: Fields, name: str, value: object) -> None:
    """The text alone says nothing to PEFT: the adapter would apply to every token."""
    if not value:
        return
    if fields.values.get(_TOKENS):
        fields.warn(
            "ignored_field", f"{name}: {_TOKENS} says where the adapter begins", name, value
        )
        return
    message = f"{name}: activated LoRA is served by {_TOKENS}, which are missing"
    fields.refuse(f"unsupported_{name}", message, name, _TOKENS, value)
