"""token id → the bytes it stands for. Bytes, not strings: one character may span several tokens."""

import re
from typing import Any

from tokenizers import Tokenizer

from inference.model_spec import ModelError

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's stand-ins: a byte that prints stands for itself, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + offset): byte for offset, byte in enumerate(others)}


BYTE_LEVEL = _byte_level_alphabet()


def decoder_parts(decoder: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """tokenizer.json's decoder, flattened: type → its settings."""
    if not decoder:
        return {}
    if decoder.get("type") != "Sequence":
        return {str(decoder.get("type")): decoder}
    parts: dict[str, dict[str, Any]] = {}
    for part in decoder.get("decoders", []):
        parts |= decoder_parts(part)
    return parts


class Vocabulary:
    """Byte-level BPE (Llama 3, Qwen, SmolLM2) and SentencePiece BPE with byte fallback (Llama 2).

    special_ids: added tokens marked special; they show as nothing.
    strips_first_space: SentencePiece puts a space before the first word; decoding takes it away.
    """

    def __init__(self, tokenizer: Tokenizer, decoder: dict[str, Any] | None) -> None:
        parts = decoder_parts(decoder)
        self._is_byte_level = "ByteLevel" in parts
        if not self._is_byte_level and not parts.keys() & {"ByteFallback", "Metaspace"}:
            found = ", ".join(parts) or "none"
            message = f"tokenizer.json: decoder {found} is not supported; "
            raise ModelError(message + "supported are ByteLevel, ByteFallback and Metaspace")
        self.strips_first_space = not self._is_byte_level and (
            "Strip" in parts or parts.get("Metaspace", {}).get("prepend_scheme") != "never"
        )
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(key for key, token in added.items() if token.special)
        self.special_texts = {added[key].content: key for key in self.special_ids}
        self._added = {key: token.content.encode() for key, token in added.items()}
        self._bytes: dict[int, bytes] = dict.fromkeys(self.special_ids, b"")

    def token_bytes(self, token_id: int) -> bytes:
        """Empty for special tokens, and for ids that the model has and the tokenizer has not."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._look_up(token_id)
        return known

    def raw_bytes(self, token_id: int) -> bytes:
        """As token_bytes, but a special token is its own name: for logprobs."""
        return self._added.get(token_id) or self.token_bytes(token_id)

    def text(self, token_ids: list[int] | tuple[int, ...]) -> str:
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")

    def _look_up(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id]
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            return b"".join(
                bytes([BYTE_LEVEL[char]]) if char in BYTE_LEVEL else char.encode() for char in token
            )
        byte = BYTE_TOKEN.match(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
