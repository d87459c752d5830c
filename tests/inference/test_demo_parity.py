"""The real demo: 64 tokens on 8 prompts, base and each adapter, equal to transformers + PEFT."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from demo.base_model import ensure
from inference.adapter_loader import CONFIG_NAME
from inference.request import SamplingParams
from tests.inference.driving import Client, make_engine
from tests.inference.oracle import Oracle

ROOT = Path(__file__).parents[2]
ADAPTERS = ROOT / "demo" / "adapters"
NUM_TOKENS = 64
QUESTIONS = (
    "I was charged twice for order 55321, please refund me.",
    "What is the capital of France?",
    "How do I clean my keyboard?",
    "Hello, this is Ana from Lisbon. Please send 3 desk lamps, order 90817. It is urgent.",
    "My parcel has not arrived and the tracking page shows an error.",
    "Write one sentence about the sea.",
    "List three colours.",
    "I cannot sign in: the reset mail never comes, and the app crashes when I try again.",
)

PARAMS = SamplingParams(NUM_TOKENS, temperature=0.0)


def chat(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.demo
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_answer_is_pefts() -> None:
    """One mixed batch over base and adapters, each adapter alone, and a request quite alone."""
    base = ensure(ROOT / "var" / "models" / "smollm2-135m-instruct")
    paths = {
        path.name: path
        for path in sorted(ADAPTERS.iterdir())
        if path.joinpath(CONFIG_NAME).exists()
    }
    assert len(paths) >= 3
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    prompts = [tokenizer.encode(chat(question)).ids for question in QUESTIONS]
    names = [None, *paths]
    client = Client(make_engine(base, kv_cache_bytes=1 << 29, max_loras_per_batch=len(paths)))
    for name, path in paths.items():
        client.engine.load_adapter(name, str(path))
    eos = client.engine.spec.eos_token_ids
    oracle = Oracle(base, paths)
    expected = {name: oracle.greedy_batch(prompts, NUM_TOKENS, name, eos) for name in names}
    assert len({tuple(answers[0]) for answers in expected.values()}) == len(names)
    everything = [(name, row) for row in range(len(prompts)) for name in names]
    batches = [everything, *([(name, row) for row in range(len(prompts))] for name in names)]
    batches += [[(name, row)] for row, name in enumerate(names)]
    for number, batch in enumerate(batches):
        # A salt of its own: no batch is helped by another's cached prompts.
        asked = [
            client.submit(prompts[row], PARAMS, name, salt=f"batch {number}") for name, row in batch
        ]
        client.drain()
        for (name, row), request_id in zip(batch, asked, strict=True):
            assert client.tokens(request_id) == expected[name][row], (number, name, row)
