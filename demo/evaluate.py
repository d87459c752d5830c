"""Score the demo adapters on held-out examples: `python -m demo.evaluate BASE [NAME…]`.

Greedy answers of the base model alone, of the base model told in words what is wanted, and of the
adapter given nothing but the message; one line of JSON an adapter.
"""

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo.data import SIGN_OFF, Example, examples

ADAPTERS_DIR = Path(__file__).parent / "adapters"
BATCH_SIZE = 24
# ("I am sorry about the trouble with ", "your parcel") of a reply's first sentence.
OPENING = re.compile(r"^(.+? about (?:the trouble with |the mistake with )?)([^.]+)\.")


@dataclass(frozen=True)
class Task:
    """instruction: what a person would tell the base model to get the same answers."""

    instruction: str
    is_right: Callable[[str, Example], bool]
    max_new_tokens: int


def is_same_json(answer: str, example: Example) -> bool:
    try:
        return bool(json.loads(answer) == json.loads(example.answer))
    except ValueError:
        return False


def is_same_label(answer: str, example: Example) -> bool:
    return answer.strip() == example.answer


def has_house_style(answer: str, example: Example) -> bool:
    """Greeting, next step and sign-off to the letter; two sentences of the right kind and topic."""
    found, expected = answer.split("\n\n"), example.answer.split("\n\n")
    opening, topic = OPENING.findall(expected[1])[0]
    return (
        [found[0], *found[2:]] == [expected[0], *expected[2:]]
        and re.fullmatch(r"[^.!]+[.!] [^.!]+[.!]", found[1]) is not None
        and found[1].startswith(opening)
        and topic in found[1]
    )


TASKS = {
    "order-json": Task(
        "Reply only with a JSON object with the keys order_id (string), customer, product, "
        "quantity (number), city, urgent (boolean), taken from this order:\n\n",
        is_same_json,
        max_new_tokens=96,
    ),
    "ticket-triage": Task(
        "Reply with exactly one word that classifies this support ticket: "
        "billing, technical, account, shipping or feedback.\n\n",
        is_same_label,
        max_new_tokens=12,
    ),
    "support-voice": Task(
        "Reply to this customer. Greet by name ('Hi <name>,' or 'Hi there,'), then write two short "
        f"sentences, then a line 'Next step: …', then the sign-off '{SIGN_OFF}'.\n\n",
        has_house_style,
        max_new_tokens=110,
    ),
}


def evaluate(base: Path, name: str, folder: Path, device: str) -> dict[str, Any]:
    """Numbers of right answers, the first case as an illustration, and what the adapter missed."""
    task, cases = TASKS[name], examples(name, "heldout")
    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model.to(device)
    plain = [case.message for case in cases]
    told = [task.instruction + message for message in plain]
    answers = {
        "base": generate(model, tokenizer, plain, task.max_new_tokens),
        "base_instructed": generate(model, tokenizer, told, task.max_new_tokens),
    }
    adapted = PeftModel.from_pretrained(model, folder).eval()
    answers["adapter"] = generate(adapted, tokenizer, plain, task.max_new_tokens)
    scores = {who: score(task, given, cases) for who, given in answers.items()}
    pairs = zip(cases, answers["adapter"], strict=True)
    misses = [(case.message, answer) for case, answer in pairs if not task.is_right(answer, case)]
    shown = {"message": plain[0], **{who: given[0] for who, given in answers.items()}}
    return {"adapter": name, "num_cases": len(cases), **scores, "shown": shown, "misses": misses}


def score(task: Task, answers: list[str], cases: list[Example]) -> int:
    return sum(task.is_right(answer, case) for answer, case in zip(answers, cases, strict=True))


@torch.inference_mode()
def generate(model: Any, tokenizer: Any, messages: list[str], max_new_tokens: int) -> list[str]:
    answers: list[str] = []
    for start in range(0, len(messages), BATCH_SIZE):
        chats = [[{"role": "user", "content": m}] for m in messages[start : start + BATCH_SIZE]]
        inputs = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, return_tensors="pt", return_dict=True, padding=True
        )
        inputs = inputs.to(model.device)
        tokens = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
        new = tokens[:, inputs["input_ids"].shape[1] :]
        answers += tokenizer.batch_decode(new, skip_special_tokens=True)
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description="Score the demo adapters on held-out examples.")
    parser.add_argument("base", type=Path, help="the base model's directory")
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(TASKS)}")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default, help="default: %(default)s")
    arguments = parser.parse_args()
    for name in arguments.names or TASKS:
        scores = evaluate(arguments.base, name, ADAPTERS_DIR / name, arguments.device)
        print(json.dumps(scores, ensure_ascii=False, indent=2), flush=True)


if __name__ == "__main__":
    main()
