"""The text of an answer that is held to be a call (`tools`) → the call, in OpenAI's shape."""

import json
import re
import uuid
from typing import Any

Json = dict[str, Any]

# How `tools` has it written where several functions may be called.
HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("[A-Za-z0-9_-]+")\s*,\s*"arguments"\s*:\s*(?=\{)')
OPENING, CLOSING = frozenset("{["), frozenset("}]")


class ForcedCall:
    """name: of the only function that may be called, whose arguments the whole text is; or None:
    the text says it first.

    is_whole: the arguments are complete.
    """

    def __init__(self, name: str | None) -> None:
        self.is_whole = False
        self._id = f"call_{uuid.uuid4().hex}"
        self._name = name
        self._head = ""
        self._is_named = False
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def feed(self, text: str) -> Json | None:
        """What the text adds to the call: first its id and name, later arguments alone; None while
        it is not named.
        """
        if self._name is None:
            self._head += text
            found = HEAD.match(self._head)
            if found is None:
                return None
            self._name, text = json.loads(found[1]), self._head[found.end() :]
        arguments = self._arguments(text)
        if self._is_named:
            return {"function": {"arguments": arguments}}
        self._is_named = True
        function = {"name": self._name, "arguments": arguments}
        return {"id": self._id, "type": "function", "function": function}

    def _arguments(self, text: str) -> str:
        """Of the text what belongs to them: up to the end of their object."""
        for at, char in enumerate(text):
            if self.is_whole:
                return text[:at]
            self._step(char)
        return text

    def _step(self, char: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif char == '"':
            self._in_string = not self._in_string
        elif self._in_string:
            self._is_escaped = char == "\\"
        elif char in OPENING:
            self._depth += 1
        elif char in CLOSING:
            self._depth -= 1
            self.is_whole = self._depth == 0
