"""Results as lines of a table that people and Markdown read."""

from gateway.simulate.run import Result
from gateway.simulate.traffic import Scenario

COLUMNS = (
    "policy",
    "hit rate",
    "swaps/min",
    "load max/mean",
    "each second",
    "same replica as the prefix",
    "unserved",
    "lost",
)


def title(scenario: Scenario) -> str:
    churn = f", a death every {scenario.churn_s:g} s" if scenario.churn_s else ""
    return (
        f"**{scenario.num_adapters:,} adapters, Zipf {scenario.exponent:g}, over "
        f"{scenario.num_replicas} replicas of {scenario.num_slots} slots, "
        f"{scenario.requests_per_replica:g} requests each, {scenario.num_gateways} gateways"
        f"{churn}**"
    )


def header() -> tuple[str, str]:
    return row(COLUMNS), "|---" * len(COLUMNS) + "|"


def line(result: Result) -> str:
    return row(
        (
            result.policy,
            f"{100 * result.hit_rate:.1f} %",
            f"{result.swaps_per_minute:.0f}",
            f"{result.load_spread:.2f}",
            f"{result.load_spread_each_second:.2f}",
            f"{100 * result.prefix_rate:.0f} %",
            str(result.num_unserved),
            str(result.num_lost),
        )
    )


def row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"
