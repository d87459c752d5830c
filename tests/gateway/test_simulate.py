"""The simulator: production's routing over synthetic fleets, held to the bars."""

import subprocess
import sys

import pytest

from gateway.simulate.__main__ import main
from gateway.simulate.fleet import Placement, Replica
from gateway.simulate.run import Result, Run
from gateway.simulate.traffic import Scenario, arrivals, churn
from tests.gateway.live import ROOT_DIR

# The scenario of the bars (gateway/LOG.md), for a shorter time.
SHORT = Scenario(duration_s=300.0, warm_up_s=200.0)
SMALL = Scenario(num_adapters=100, num_replicas=4, num_slots=30, duration_s=60.0, warm_up_s=20.0)


def play(scenario: Scenario, policy: str = "ours") -> Result:
    return Run(scenario, policy).play()


def test_the_bars() -> None:
    ours, robin = play(SHORT), play(SHORT, "round robin")
    assert ours.num_requests == robin.num_requests > 3000
    assert ours.hit_rate >= 0.95
    assert ours.swaps_per_minute <= 0.1 * robin.swaps_per_minute
    assert ours.load_spread <= 1.25
    assert ours.num_unserved == 0


def test_a_seed_gives_the_same_figures() -> None:
    assert play(SMALL) == play(SMALL)
    other = Scenario(**{**vars(SMALL), "seed": 2})
    assert [one.at_s for one in arrivals(SMALL)] != [one.at_s for one in arrivals(other)]


@pytest.mark.parametrize(
    "policy", ["ours", "one home", "consistent", "bounded", "round robin", "random"]
)
def test_replicas_that_die_cost_no_other_request(policy: str) -> None:
    scenario = Scenario(**{**vars(SMALL), "churn_s": 10.0, "down_s": 5.0})
    changes = list(churn(scenario))
    assert changes and changes == sorted(changes)
    found = play(scenario, policy)
    assert found.num_lost > 0
    # Every other replica is asked before one gives up; two at once may be down for a digest's two.
    assert found.num_unserved <= 0.01 * found.num_requests


def test_what_runs_keeps_its_slot() -> None:
    replica = Replica("http://r", num_slots=1)
    assert replica.take("a") == (False, False)
    # No room, and nothing idle to take it from.
    assert replica.take("b") == (False, False)
    replica.give_back("a")
    assert replica.take("c") == (False, True)
    assert list(replica.slots) == ["b", "c"]
    assert replica.take("b") == (True, False)


def test_placement_follows_load_and_deaths() -> None:
    replicas = [Replica(f"http://r{number}", num_slots=4) for number in range(4)]
    placement = Placement(["hot", "cold"], replicas)
    placement.reconcile(0.0)
    assert [sum(name in one.held for one in replicas) for name in ("hot", "cold")] == [2, 2]
    holder = next(one for one in replicas if "hot" in one.held)
    for _ in range(12):
        holder.take("hot")
    placement.reconcile(2.0)
    assert [sum(name in one.held for one in replicas) for name in ("hot", "cold")] == [3, 2]
    holder.die()
    placement.reconcile(4.0)
    assert sum("hot" in one.held for one in replicas) == 3


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--num-adapters", "20", "--num-replicas", "2", "--num-slots", "8")
    times = ("--duration-s", "20", "--warm-up-s", "5")
    command = [sys.executable, "-m", "gateway.simulate", *small, *times]
    done = subprocess.run(command, cwd=ROOT_DIR, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [row.split("|")[1].strip() for row in done.stdout.splitlines() if row.startswith("| ")]
    names = ["policy", "ours", "one home", "consistent", "bounded", "round robin", "random"]
    assert rows == names
    assert main(["--num-slots", "0"]) == 2
    assert "num_slots: expected at least 1, got 0" in capsys.readouterr().err
