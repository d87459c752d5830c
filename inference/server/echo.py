"""A scored prompt, shown before its answer: its text piece by piece, each with its tokens."""

import codecs
from collections.abc import Sequence

from inference.request import TokenLogprobs
from inference.server.choice import Delta, ShownToken
from inference.server.vocabulary import Vocabulary


class Echo:
    """text: what is repeated; token_ids: what it was fed as; starts: their offsets(). The pieces
    join to the text.
    """

    def __init__(self, text: str, token_ids: Sequence[int], starts: Sequence[int]) -> None:
        self._text = text
        self._token_ids = token_ids
        self._starts = [*starts, len(text)]
        self._num_shown = 0

    def take(self, logprobs: Sequence[TokenLogprobs]) -> Delta:
        """The next tokens; the first comes before the one that is scored first."""
        return self._show([*self._unscored(), *logprobs])

    def rest(self) -> Delta | None:
        """What is left when the answer begins: only of a prompt of one token, that token."""
        return self._show(self._unscored()) if self._num_shown == 0 else None

    def _unscored(self) -> list[TokenLogprobs | None]:
        return [None] if self._num_shown == 0 else []

    def _show(self, logprobs: Sequence[TokenLogprobs | None]) -> Delta:
        first, end = self._num_shown, self._num_shown + len(logprobs)
        self._num_shown = end
        # Counted in characters of the answer, which begins where the prompt ends.
        tokens = tuple(
            ShownToken(self._token_ids[index], found, self._starts[index] - len(self._text))
            for index, found in zip(range(first, end), logprobs, strict=True)
        )
        # What comes before the first token's own text, if anything, goes with it.
        start = self._starts[first] if first else 0
        return Delta(self._text[start : self._starts[end]], tokens)


def offsets(vocabulary: Vocabulary, text: str, token_ids: Sequence[int]) -> list[int]:
    """Where in text each token begins, in characters. Control tokens that the tokenizer added, and
    the space that SentencePiece puts first, are not there.
    """
    found, place = [], 0
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token_id in token_ids:
        found.append(place)
        piece = decoder.decode(vocabulary.raw_bytes(token_id))
        if text.startswith(piece, place):
            place += len(piece)
        elif token_id not in vocabulary.special_ids:
            is_first = place == 0 and vocabulary.strips_first_space
            place = min(place + len(piece) - (is_first and piece.startswith(" ")), len(text))
    return found
