"""The training data: the same every time, held-out apart from training."""

import json
import re

import pytest

from demo.data import Example, examples
from demo.evaluate import TASKS, has_house_style, is_same_json
from demo.train import RECIPES

NAMES = sorted(RECIPES)


@pytest.mark.parametrize("name", NAMES)
def test_it_works(name: str) -> None:
    train = examples(name, "train")
    assert len(train) >= 150
    assert train == examples(name, "train")
    assert all(example.message.strip() and example.answer for example in train)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_held_out_was_trained_on(name: str) -> None:
    trained = {example.message for example in examples(name, "train")}
    assert not trained & {example.message for example in examples(name, "heldout")}


@pytest.mark.parametrize("name", NAMES)
def test_no_message_has_two_answers(name: str) -> None:
    answers: dict[str, str] = {}
    for example in examples(name, "train"):
        assert answers.setdefault(example.message, example.answer) == example.answer


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_an_order_says_all_that_its_json_says(split: str) -> None:
    for example in examples("order-json", split):  # type: ignore[arg-type]
        fields = json.loads(example.answer)
        for key in ("order_id", "customer", "product", "quantity", "city"):
            assert str(fields[key]) in example.message, (key, example)


def test_a_ticket_has_one_of_five_labels() -> None:
    labels = {example.answer for example in examples("ticket-triage", "train")}
    assert labels == {"billing", "technical", "account", "shipping", "feedback"}


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_every_support_answer_has_the_house_style(split: str) -> None:
    for example in examples("support-voice", split):  # type: ignore[arg-type]
        assert has_house_style(example.answer, example), example


def test_a_support_answer_names_only_what_the_customer_wrote() -> None:
    for example in examples("support-voice", "train"):
        for number in re.findall(r"\d{5}", example.answer):
            assert number in example.message
        greeting = example.answer.splitlines()[0]
        name = greeting.removeprefix("Hi ").removesuffix(",")
        assert name == "there" or name in example.message


def test_what_counts_as_right() -> None:
    gold = Example("", '{"a": 1, "b": "x"}')
    assert is_same_json('{"b": "x", "a": 1}', gold)
    assert not is_same_json('{"a": 1, "b": "x"', gold)
    assert not is_same_json('{"a": "1", "b": "x"}', gold)
    style = "Hi Ann,\n\nI am sorry about the trouble with {}. We look.\n\nNext step: wait.\n\n— T"
    wanted = Example("", style.format("your cup"))
    assert has_house_style(style.format("the handle of your cup"), wanted)
    assert not has_house_style(style.format("your plate"), wanted)
    assert not has_house_style(style.format("your cup").replace("Ann", "Bob"), wanted)
    assert not has_house_style(style.format("your cup").replace("trouble", "mistake"), wanted)
    assert not has_house_style(style.format("your cup") + "!", wanted)
    assert set(TASKS) == set(RECIPES)
