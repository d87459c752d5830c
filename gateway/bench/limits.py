"""What both gateways hold the key to: far above what a run asks for, but counted each time."""

MODEL = "bench"
# Below what a 32-bit column holds.
LIMITS = {
    "requests_per_minute": 10_000_000,
    "tokens_per_minute": 2_000_000_000,
    "max_concurrency": 100_000,
}
