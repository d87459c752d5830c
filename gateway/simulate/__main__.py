"""`python -m gateway.simulate`: hit rate, swaps and load spread of our routing beside others'.

Without options, the scenario of the bars: 1,000 adapters by Zipf's law over 8 replicas. `--table`
runs the scenarios of `gateway/LOG.md`. The same seed gives the same figures on any machine.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace

from gateway.simulate.policies import POLICIES
from gateway.simulate.report import header, line, title
from gateway.simulate.run import Result, Run
from gateway.simulate.traffic import Scenario

LARGE = Scenario(
    num_adapters=10_000,
    num_replicas=100,
    requests_per_replica=8.0,
    duration_s=360.0,
    warm_up_s=180.0,
)
TABLE = (
    *(Scenario(num_slots=number) for number in (64, 96, 128, 192, 256)),
    *(Scenario(exponent=exponent) for exponent in (0.8, 1.2)),
    *(Scenario(requests_per_replica=number) for number in (4.0, 32.0)),
    Scenario(num_gateways=8),
    Scenario(churn_s=120.0),
    LARGE,
    replace(LARGE, churn_s=30.0),
)


def play(scenario: Scenario, policy: str) -> Result:
    return Run(scenario, policy).play()


def tables(
    scenarios: Sequence[Scenario], policies: Sequence[str], num_processes: int
) -> Iterator[str]:
    with ProcessPoolExecutor(num_processes) as pool:
        runs = {
            scenario: [pool.submit(play, scenario, policy) for policy in policies]
            for scenario in scenarios
        }
        for scenario, futures in runs.items():
            yield from ("", title(scenario), "", *header())
            for future in futures:
                yield line(future.result())


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser("python -m gateway.simulate", description=__doc__)
    found.add_argument("--table", action="store_true", help="all scenarios of gateway/LOG.md")
    found.add_argument("--policy", action="append", choices=POLICIES, help="default: all")
    found.add_argument("--processes", type=int, default=2)
    for one in fields(Scenario):
        kind = type(one.default)
        flag = "--" + one.name.replace("_", "-")
        found.add_argument(flag, type=kind, default=one.default, help=f"default: {one.default}")
    return found


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    asked = Scenario(**{one.name: getattr(options, one.name) for one in fields(Scenario)})
    if problem := asked.problem():
        print(problem, file=sys.stderr)
        return 2
    scenarios = TABLE if options.table else (asked,)
    for text in tables(scenarios, options.policy or list(POLICIES), options.processes):
        print(text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
