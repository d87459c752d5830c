"""Which steps a GPU's LoRA time is taken from, and what is counted before there is one."""

import random
import time

from inference.lora_timer import SAMPLE_EVERY, Clock, is_sampled
from inference.request import GenerateRequest, SamplingParams
from inference.sequence import Sequence
from inference.stats import Counters


def test_a_gpu_is_sampled_once_in_a_period_and_never_while_it_compiles() -> None:
    sampled = [step for step in range(1, 4 * SAMPLE_EVERY + 1) if is_sampled(step)]
    assert sampled == [32, 96, 160, 224]


def test_a_clock_adds_up_what_it_was_started_for() -> None:
    clock = Clock()
    for _ in range(2):
        clock.start()
        time.sleep(0.01)
        clock.stop()
        time.sleep(0.05)
    assert 20 <= clock.total_ms < 100


def test_before_a_sample_nothing_is_counted_and_then_its_cost_a_token() -> None:
    request = GenerateRequest("r", (1, 2, 3), SamplingParams(max_tokens=1), digest="d")
    sequence = Sequence(request, lambda event: None, random.Random(0), 0.0)
    counters = Counters()
    counters.count_step(900.0, None, [(sequence, 3)], "graph")
    assert (counters.lora_ms_total, sequence.lora_ms) == (0.0, 0.0)
    counters.count_step(5.0, 2.0, [(sequence, 4)], "graph")
    counters.count_step(5.0, None, [(sequence, 2)], "prefill")
    assert counters.steps_by_path == {"graph": 2, "prefill": 1}
    assert counters.lora_ms_total == sequence.lora_ms == 3.0
