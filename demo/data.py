"""Training and held-out examples of the demo adapters, from the material written for them.

Everything in demo/material/ was written for this project. Held-out names, goods, towns, templates
and cases never occur in training; the same arguments always give the same examples.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

MATERIAL_DIR = Path(__file__).parent / "material"
SIGN_OFF = "— Team Rootstock"

Split = Literal["train", "heldout"]


@dataclass(frozen=True)
class Example:
    """A customer's message, the only thing in the prompt, and the answer that is wanted."""

    message: str
    answer: str


def examples(name: str, split: Split) -> list[Example]:
    """The examples of one adapter: "order-json", "ticket-triage" or "support-voice"."""
    material_name, expand = EXPANSIONS[name]
    material = json.loads((MATERIAL_DIR / f"{material_name}.json").read_text())[split]
    rng = random.Random(f"{name} {split}")
    found = expand(material, rng)
    rng.shuffle(found)
    return found


def expand_orders(material: dict[str, Any], rng: random.Random) -> list[Example]:
    num_per_template = 20
    return [
        order(template, material, rng)
        for template in material["templates"]
        for _ in range(num_per_template)
    ]


def order(template: str, material: dict[str, Any], rng: random.Random) -> Example:
    fields: dict[str, Any] = {
        "order_id": str(rng.randint(10_000, 99_999)),
        "customer": rng.choice(material["names"]),
        "product": rng.choice(material["products"]),
        "quantity": rng.randint(2, rng.choice([20, 500])),
        "city": rng.choice(material["cities"]),
        "urgent": rng.random() < 0.4,
    }
    message = template.format(**fields)
    if fields["urgent"]:
        message = insert_remark(message, rng.choice(material["urgency"]), rng)
    elif rng.random() < 0.3:
        message = insert_remark(message, rng.choice(material["calm"]), rng)
    return Example(message, json.dumps(fields))


def insert_remark(message: str, remark: str, rng: random.Random) -> str:
    separator = "\n" if "\n" in message else " "
    parts = [message, remark] if rng.random() < 0.6 else [remark, message]
    return separator.join(parts)


def expand_tickets(material: dict[str, list[str]], rng: random.Random) -> list[Example]:
    return [Example(text, label) for label, texts in material.items() for text in texts]


def expand_support(material: dict[str, Any], rng: random.Random) -> list[Example]:
    """Each way to ask, once signed with a name and once not."""
    return [
        support_case(ask, topic, reply_to(kind), name, material, rng)
        for kind, cases in material["cases"].items()
        for ask, topic in cases
        for name in (rng.choice(material["names"]), None)
    ]


def reply_to(kind: str) -> tuple[str, str]:
    """What is said to a kind of message, with a place for its topic; and the next step."""
    material = json.loads((MATERIAL_DIR / "support.json").read_text())
    body, next_step = material["train"]["replies"][kind]
    return body, next_step


def support_case(
    ask: str,
    topic: str,
    reply: tuple[str, str],
    name: str | None,
    material: dict[str, Any],
    rng: random.Random,
) -> Example:
    has_number = rng.random() < 0.5
    number = f"order {rng.randint(10_000, 99_999)}"
    ask = ask.format(order=number if has_number else "my order")
    ask = ask[0].upper() + ask[1:]
    message = rng.choice(material["signed"]).format(ask=ask, name=name) if name else ask
    body = reply[0].format(topic=topic.format(order=number if has_number else "your order"))
    answer = "\n\n".join([greeting(name), body, f"Next step: {reply[1]}", SIGN_OFF])
    return Example(message, answer)


def greeting(name: str | None) -> str:
    return f"Hi {name}," if name else "Hi there,"


EXPANSIONS: dict[str, tuple[str, Callable[[Any, random.Random], list[Example]]]] = {
    "order-json": ("orders", expand_orders),
    "ticket-triage": ("tickets", expand_tickets),
    "support-voice": ("support", expand_support),
}
