"""JSON below /api, as deep as any honest request nests."""

from collections.abc import Mapping
from typing import IO, Any

from rest_framework import parsers
from rest_framework.exceptions import ParseError

# As at /v1 (gateway/openai/schema.py).
MAX_JSON_DEPTH = 64


class JSONParser(parsers.JSONParser):
    """Python's own parser ends a body of a thousand brackets with a RecursionError: a 500."""

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        try:
            found = super().parse(stream, media_type, parser_context)
        except RecursionError:
            raise too_deep() from None
        check_depth(found)
        return found


def check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_JSON_DEPTH + 1):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return
    raise too_deep()


def too_deep() -> ParseError:
    return ParseError(f"The JSON nests deeper than {MAX_JSON_DEPTH} levels.")
