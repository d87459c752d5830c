"""Answers that no house gives: one clear failure each."""

import pytest

from grafthouse.client import _checked_chunk
from grafthouse.failure import Failure


def test_it_works() -> None:
    assert _checked_chunk('{"model": "a@1"}') == {"model": "a@1"}
    with pytest.raises(Failure, match="the replica died"):
        _checked_chunk('{"error": {"message": "the replica died"}}')


@pytest.mark.parametrize("raw", ["", "<html>", "[1]", "null", '"error"'])
def test_what_is_not_a_chunk_is_said(raw: str) -> None:
    with pytest.raises(Failure, match="instead of JSON"):
        _checked_chunk(raw)
