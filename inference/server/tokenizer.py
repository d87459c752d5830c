"""Text → token ids, for raw prompts and for rendered chats.

A raw prompt (/v1/completions) is tokenised as the tokenizer's own post-processor says; text that
names a control token becomes that token, as everywhere in the field. A chat is different: the
template may write control tokens, a participant may not (see encode_chat).
"""

import json
import re
import secrets
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as HuggingFaceTokenizer

from inference.model_spec import ModelError
from inference.server.vocabulary import Vocabulary


class ControlTokens:
    """Stand-ins for control-token text inside a participant's strings while the template renders.

    The mark is random for each request, so nobody can write it; private-use characters pass through
    every template filter unchanged.
    """

    def __init__(self, texts: dict[str, int]) -> None:
        mark = secrets.token_hex(8)
        longest_first = sorted(texts, key=len, reverse=True)
        self._marks = {
            text: f"\ue000{mark}.{number}\ue001" for number, text in enumerate(longest_first)
        }
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self.num_hidden = 0

    def hide(self, value: Any) -> Any:
        """The same JSON value with control-token text replaced in every string."""
        if isinstance(value, str):
            hidden, num_hidden = self._pattern.subn(lambda found: self._marks[found[0]], value)
            self.num_hidden += num_hidden
            return hidden
        if isinstance(value, dict):
            return {key: self.hide(item) for key, item in value.items()}
        return [self.hide(item) for item in value] if isinstance(value, list) else value

    def show(self, text: str) -> str:
        for original, mark in self._marks.items():
            text = text.replace(mark, original)
        return text

    def split(self, rendered: str) -> list[str]:
        """Text and the template's own control tokens, alternating, beginning with text."""
        return re.split(f"({self._pattern.pattern})", rendered)


class Tokenizer:
    """tokenizer.json of a model directory. Calls are safe from any thread."""

    def __init__(self, raw: str, bos_token: str | None = None) -> None:
        self._tokenizer = HuggingFaceTokenizer.from_str(raw)
        # A second one, because "special tokens are plain text" is a setting of the object.
        self._plain = HuggingFaceTokenizer.from_str(raw)
        for tokenizer in (self._tokenizer, self._plain):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self._plain.encode_special_tokens = True
        self.vocabulary = Vocabulary(self._tokenizer, json.loads(raw).get("decoder"))
        self._bos_id = None if bos_token is None else self._tokenizer.token_to_id(bos_token)

    @classmethod
    def load(cls, folder: Path, bos_token: str | None) -> "Tokenizer":
        """Raises ModelError when tokenizer.json is missing or not understood."""
        path = folder / "tokenizer.json"
        try:
            raw = path.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"{path}: cannot be read: {error}") from error
        try:
            return cls(raw, bos_token)
        except ModelError:
            raise
        # The Rust side raises plain Exception.
        except Exception as error:
            raise ModelError(f"{path}: not a tokenizer: {error}") from error

    def encode_prompt(self, text: str) -> list[int]:
        """A raw prompt. One BOS at most: a prompt that begins with it gets no second one."""
        ids: list[int] = self._tokenizer.encode(text).ids
        if self._bos_id is not None and ids[:2] == [self._bos_id, self._bos_id]:
            return ids[1:]
        return ids

    def control_tokens(self) -> ControlTokens:
        return ControlTokens(self.vocabulary.special_texts)

    def encode_chat(self, rendered: str, control: ControlTokens) -> list[int]:
        """A rendered chat: exactly the template's tokens, none added.

        Control-token text typed by a participant was hidden from the template. Then each stretch
        between the template's own control tokens is encoded with special tokens as plain text.
        Without such text (nearly always) the whole is encoded at once, as transformers does.
        """
        if not control.num_hidden:
            ids: list[int] = self._tokenizer.encode(rendered, add_special_tokens=False).ids
            return ids
        token_ids: list[int] = []
        for number, part in enumerate(control.split(rendered)):
            if number % 2:
                token_ids.append(self.vocabulary.special_texts[part])
            elif part:
                text = control.show(part)
                token_ids += self._plain.encode(text, add_special_tokens=False).ids
        return token_ids
