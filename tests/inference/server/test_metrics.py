import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from inference.metrics import (
    EVICTIONS,
    FALLBACKS,
    LOADS,
    MAX_NAMED_ADAPTERS,
    REPLAYS,
    SPREADS,
    FrontMetrics,
    Timing,
    _named_adapters,
)
from inference.request import AdapterInfo
from tests.inference.driving import greedy, make_engine
from tests.inference.server.conftest import Server

SEED_METRICS = {
    "lora_active_count": "gauge",
    "lora_cache_hits": "counter",
    "lora_cache_misses": "counter",
    "lora_cache_hit_rate": "gauge",
    "lora_swap_count": "counter",
    "lora_per_request_overhead_ms": "gauge",
}


def scrape(server: Server) -> dict[tuple[str, tuple[str, ...]], float]:
    """By name and the values of its labels, route before outcome."""
    text = server.call("/metrics").body.decode()
    return {
        (
            sample.name,
            tuple(sample.labels[key] for key in sorted(sample.labels)[::-1]),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_it_works(server: Server) -> None:
    answer = server.call("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = {f.name: f for f in text_string_to_metric_families(answer.body.decode())}
    for name, kind in SEED_METRICS.items():
        assert families[name].type == kind
    assert all(family.documentation for family in families.values())


def test_the_numbers_move(server: Server, adapters: dict[str, Path]) -> None:
    before = scrape(server)
    body = {"model": "red", "prompt": "hello", "max_tokens": 7, "ignore_eos": True}
    assert server.call("/v1/completions", body).status == 200
    assert server.call("/v1/completions", body | {"model": "nope"}).status == 404
    assert server.call("/v1/wp-admin", body).status == 404
    after = scrape(server)

    def grew(name: str, *labels: str) -> float:
        return after.get((name, labels), 0.0) - before.get((name, labels), 0.0)

    assert grew("inference_requests_total", "/v1/completions", "ok") == 1
    assert grew("inference_requests_total", "/v1/completions", "client_error") == 1
    assert grew("inference_requests_total", "unknown", "client_error") == 1
    assert grew("inference_prompt_tokens_total") == 5
    assert grew("inference_completion_tokens_total") == 7
    assert grew("inference_time_to_first_token_seconds_count") == 1
    assert grew("inference_time_per_output_token_seconds_count") == 1
    assert grew("lora_cache_hits_total") + grew("lora_cache_misses_total") == 1
    assert grew("lora_requests_total") == 1
    assert grew("inference_queue_seconds_count", "normal") == 1
    assert 0 < grew("inference_queue_seconds_sum", "normal") < 60
    assert 0 < after["lora_per_request_overhead_ms", ()] < 60_000
    assert 0 <= after["lora_cache_hit_rate", ()] <= 1
    assert after["inference_kv_use", ()] < 1
    # One step with the prompt and six decodes, each of one sequence with one adapter.
    assert grew("inference_step_sequences_count") == grew("inference_steps_total") == 7
    assert grew("inference_step_sequences_bucket", "1") == 7
    assert grew("inference_step_tokens_sum") == 5 + 6
    assert grew("inference_step_tokens_bucket", "1") == 6
    assert grew("inference_step_adapters_bucket", "0") == 0
    assert (
        grew("inference_step_adapters_bucket", "+Inf") == grew("inference_step_adapters_sum") == 7
    )
    assert grew("inference_graph_fallbacks_total", "prefill") == 1
    assert grew("inference_graph_fallbacks_total", "no graphs") == 6
    assert grew("inference_graph_replays_total") == 0
    assert after["lora_adapter_load_seconds_count", ("host", "disk")] >= 1
    assert after["lora_adapter_load_seconds_sum", ("host", "disk")] > 0
    assert after["lora_adapter_evictions_total", ("device", "room")] >= 0
    assert after["lora_adapter_loaded", ("device", "4", "false", "red")] == 1


def test_every_count_of_the_engine_has_its_label(base: Path, adapters: dict[str, Path]) -> None:
    """Bounded sets, and nothing that is counted falls out of them."""
    engine = make_engine(base, max_loras_per_batch=1, max_lora_rank=16, host_adapter_bytes=1)
    for name in ("red", "green", "blue"):
        engine.load_adapter(name, str(adapters[name]))
    engine.generate([[1, 2, 3]] * 3, greedy(3), ["red", "green", "blue"])
    for name in ("red", "green", "blue"):
        engine.unload_adapter(name)
    stats = engine.stats()
    assert set(stats.steps_by_path) <= {*REPLAYS, *FALLBACKS}
    assert set(stats.adapter_load_times) <= set(LOADS) and stats.adapter_load_times
    assert set(stats.adapter_evictions) <= set(EVICTIONS)
    assert stats.adapter_evictions["device", "room"] and stats.adapter_evictions["device", "unload"]
    assert set(stats.spreads) == set(SPREADS)
    metrics = FrontMetrics()
    metrics.watch(engine)
    families = {f.name: f for f in text_string_to_metric_families(metrics.render().decode())}
    evicted = families["lora_adapter_evictions"].samples
    assert sum(s.value for s in evicted) == sum(stats.adapter_evictions.values())


def test_named_adapters_are_bounded() -> None:
    infos = [AdapterInfo(f"a{n:03}", "d", 8, "device", num_leases=n % 3) for n in range(250)]
    infos.append(AdapterInfo("host", "d", 8, "host", num_leases=9))
    samples = _named_adapters(infos).samples
    assert len(samples) == MAX_NAMED_ADAPTERS
    assert samples[0].labels == {
        "adapter": "a002",
        "tier": "device",
        "pinned": "false",
        "rank": "8",
    }


def test_labels_are_our_routes_not_a_clients_paths(server: Server) -> None:
    for number in range(5):
        server.call(f"/made-up/{number}")
        server.call(f"/v1/models/made-up-{number}")
    routes = {labels[0] for name, labels in scrape(server) if name == "inference_requests_total"}
    assert not any("made-up" in route for route in routes)
    assert "/v1/models/{id}" in routes


def test_a_client_that_leaves_is_counted_as_such(server: Server) -> None:
    key = ("inference_requests_total", ("/v1/chat/completions", "disconnected"))
    before = scrape(server).get(key, 0.0)
    with server.openai() as client:
        stream = client.chat.completions.create(
            model="red",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(stream))
        stream.close()
    deadline = time.monotonic() + 5
    while scrape(server).get(key, 0.0) == before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert scrape(server)[key] == before + 1


def test_time_per_token_leaves_the_first_out() -> None:
    timing = Timing(started_s=10.0, num_choices=2)
    for now_s in (11.0, 11.5, 12.0):
        timing.token(0, now_s)
    timing.token(1, 14.0)
    assert list(timing.to_first_s()) == [1.0, 4.0]
    assert list(timing.per_token_s()) == [0.5]
    metrics = FrontMetrics()
    metrics.observe_tokens(5, 2, 4, timing)
    text = metrics.render().decode()
    assert "inference_prompt_tokens_cached_total 2.0" in text
    assert "inference_time_to_first_token_seconds_sum 5.0" in text
