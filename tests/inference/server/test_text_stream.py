"""Characters are never split, stop strings never leak, whatever the bytes are cut into."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.server.text_stream import TextStream

FAMILY = "👨‍👩‍👧 🇩🇪 汉字 हिन्दी é"


def run(parts: list[bytes], stops: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    stream = TextStream(stops)
    pieces = []
    for part in parts:
        pieces.append(stream.push(part))
        if stream.stopped:
            return pieces, stream
    return [*pieces, stream.finish()], stream


def cut(raw: bytes, places: list[int]) -> list[bytes]:
    borders = sorted({0, len(raw), *(place % (len(raw) + 1) for place in places)})
    return [raw[start:end] for start, end in itertools.pairwise(borders)]


def test_it_works() -> None:
    pieces, _ = run([b"Hello", b" world"])
    assert pieces == ["Hello", " world", ""]


@pytest.mark.case("C89")
def test_a_character_waits_for_its_last_byte() -> None:
    """Replacement characters in the deltas at peers; here at most one character is held back."""
    raw = FAMILY.encode()
    pieces, _ = run([raw[i : i + 1] for i in range(len(raw))])
    assert "".join(pieces) == FAMILY
    assert "\ufffd" not in "".join(pieces)
    # Each character comes with its last byte, not later.
    assert [piece for piece in pieces if piece] == list(FAMILY)


@given(st.binary(max_size=40), st.lists(st.integers(0, 100), max_size=10))
def test_joined_pieces_are_the_whole_even_for_broken_bytes(raw: bytes, places: list[int]) -> None:
    pieces, stream = run(cut(raw, places))
    assert "".join(pieces) == raw.decode("utf-8", "replace")
    assert stream.num_released == stream.num_chars == len("".join(pieces))


@given(
    st.text("abcé", max_size=30),
    st.lists(st.text("abcé", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.integers(0, 100), max_size=12),
)
def test_stops_mean_the_same_however_the_text_is_cut(
    text: str, stops: list[str], places: list[int]
) -> None:
    pieces, stream = run(cut(text.encode(), places), tuple(stops))
    by_character, reference = run([char.encode() for char in text], tuple(stops))
    joined = "".join(pieces)
    assert joined == "".join(by_character)
    assert stream.stopped == reference.stopped == any(stop in text for stop in stops)
    assert not any(stop in joined for stop in stops)
    assert text.startswith(joined)


@given(st.text("abc", max_size=20), st.text("abc", min_size=1, max_size=4))
def test_only_what_may_begin_a_stop_is_held_back(text: str, stop: str) -> None:
    stream = TextStream((stop,))
    released = ""
    for char in text:
        released += stream.push(char.encode())
        if stream.stopped:
            return
        held = stream.num_chars - len(released)
        seen = text[: stream.num_chars]
        doubtful = max(n for n in range(len(stop)) if n == 0 or seen.endswith(stop[:n]))
        assert held == doubtful


@pytest.mark.case("C87")
def test_a_stop_across_tokens_leaves_nothing_behind() -> None:
    """Peers had the stop's first characters on the wire when it completed."""
    pieces, stream = run([b"pqrs", b"tu", b"vw", b"xyz!"], ("tuvwxyz",))
    assert pieces == ["pqrs", "", "", ""]
    assert stream.stopped


def test_a_stop_that_never_completes_is_given_out() -> None:
    pieces, stream = run([b"a\n", b"Q"], ("\nQ:",))
    assert pieces == ["a", "", "\nQ"]
    assert not stream.stopped


def test_the_stop_that_completes_first_wins_and_of_those_the_longest() -> None:
    pieces, _ = run([b"xabcd"], ("abcd", "bc", "abc"))
    assert "".join(pieces) == "x"


def test_while_stopping_is_forbidden_stop_strings_are_text() -> None:
    stream = TextStream(("b",))
    assert stream.push(b"ab", may_stop=False) == "ab"
    assert stream.push(b"cbd") == "c"
    assert stream.stopped


def test_the_first_space_of_sentencepiece_is_stripped_once() -> None:
    stream = TextStream((), strips_first_space=True)
    assert stream.push(b" Hi") + stream.push(b" you") == "Hi you"
