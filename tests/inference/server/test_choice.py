from inference.request import Token, TokenLogprobs
from inference.server.choice import Choice, ChoiceRules, Delta

EOS = 0


def choice(stops: tuple[str, ...] = (), min_tokens: int = 0) -> Choice:
    """Token ids are bytes; 0 ends."""
    rules = ChoiceRules(lambda i: bytes([i]), frozenset({EOS, ord("!")}), stops, min_tokens)
    return Choice(0, 0, rules)


def feed(one: Choice, text: bytes) -> list[Delta]:
    return [one.take(Token("r", byte, 0, TokenLogprobs(-1.0))) for byte in text]


def ids(deltas: list[Delta]) -> bytes:
    return bytes(shown.token_id for delta in deltas for shown in delta.tokens)


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def test_it_works() -> None:
    one = choice()
    deltas = [*feed(one, b"hi"), one.end("length")]
    assert text_of(deltas) == "hi"
    assert deltas[-1].finish_reason == "length"
    assert one.num_tokens == 2


def test_the_end_token_counts_and_does_not_show() -> None:
    one = choice()
    deltas = [*feed(one, b"hi!"), one.end("stop")]
    assert text_of(deltas) == "hi"
    assert ids(deltas) == b"hi"
    assert one.num_tokens == 3


def test_a_stop_token_that_did_not_end_is_text() -> None:
    """min_tokens or ignore_eos let the sequence go on."""
    one = choice()
    deltas = [*feed(one, b"a!b"), one.end("length")]
    assert text_of(deltas) == "a!b"
    one = choice()
    assert text_of([*feed(one, b"a!"), one.end("length")]) == "a!"


def test_a_stop_string_ends_at_once() -> None:
    one = choice(stops=("cd",))
    deltas = feed(one, b"abcd")
    assert deltas[-1].finish_reason == "stop"
    assert text_of(deltas) == "ab"
    assert ids(deltas) == b"ab"
    assert one.num_tokens == 4


def test_logprobs_come_with_their_text() -> None:
    one = choice(stops=("cd",))
    deltas = [*feed(one, b"ace"), one.end("length")]
    assert [ids([delta]) for delta in deltas] == [b"a", b"", b"ce", b""]
    assert [shown.offset for delta in deltas for shown in delta.tokens] == [0, 1, 2]


def test_the_bytes_of_one_character_come_together() -> None:
    one = choice()
    raw = "é".encode()
    deltas = feed(one, raw)
    assert [delta.text for delta in deltas] == ["", "é"]
    assert [ids([delta]) for delta in deltas] == [b"", raw]


def test_min_tokens_forbid_stop_strings() -> None:
    one = choice(stops=("a",), min_tokens=3)
    deltas = feed(one, b"aaaa")
    assert text_of(deltas) == "aaa"
    assert deltas[-1].finish_reason == "stop"
