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
    num_per_template = 12
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
    found = []
    for asks, *reply in material["cases"]:
        for ask in asks:
            found.append(support_case(ask, reply, rng.choice(material["names"]), material, rng))
            found.append(support_case(ask, reply, None, material, rng))
    return found


def support_case(
    ask: str, reply: list[str], name: str | None, material: dict[str, Any], rng: random.Random
) -> Example:
    number = f"order {rng.randint(10_000, 99_999)}"
    has_number = "{order}" in ask and rng.random() < 0.5
    ask = sentence(ask.format(order=number if has_number else "my order"))
    message = rng.choice(material["signed"]).format(ask=ask, name=name) if name else ask
    if not reply:
        # A held-out case is judged by the structure of its answer; only the greeting is known.
        return Example(message, greeting(name))
    body, next_step = reply
    body = sentence(body.format(order=number if has_number else "your order"))
    return Example(message, f"{greeting(name)}\n\n{body}\n\nNext step: {next_step}\n\n{SIGN_OFF}")


def greeting(name: str | None) -> str:
    return f"Hi {name}," if name else "Hi there,"


def sentence(text: str) -> str:
    """With a capital letter after each full stop: an order may begin a sentence."""
    return ". ".join(part[:1].upper() + part[1:] for part in text.split(". "))


EXPANSIONS: dict[str, tuple[str, Callable[[Any, random.Random], list[Example]]]] = {
    "order-json": ("orders", expand_orders),
    "ticket-triage": ("tickets", expand_tickets),
    "support-voice": ("support", expand_support),
}
