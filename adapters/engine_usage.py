"""What the replicas know of requests whose web process died (tenants/orphans.py asks).

All that can are asked, as a row names only the replica that its request went to first.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from adapters.dialects import DIALECTS
from adapters.dialects.dialect import Ability, Call, ReplicaError
from adapters.fleet import in_parallel
from adapters.registry import fleet
from adapters.replica_http import ask
from tenants.metering import TokenCounts
from tenants.orphans import Attempt

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
# What a row's column holds: more is no count.
MAX_TOKENS = 2**31 - 1


def attempts_of(request_ids: Sequence[str]) -> list[Attempt]:
    """A replica that does not answer, or not as ours do, knows nothing."""
    able = [url for url, (name, _) in fleet().items() if Ability.USAGE in DIALECTS[name].abilities]
    answers = in_parallel([partial(_ask, url, request_ids) for url in able])
    found: list[Attempt] = []
    for url, answer in zip(able, answers, strict=True):
        if isinstance(answer, ReplicaError):
            log.warning("%s does not say what dead processes used: %s", url, answer)
        else:
            found += answer
    return found


def _ask(url: str, request_ids: Sequence[str]) -> list[Attempt]:
    call = Call("POST", "/usage", {"request_ids": list(request_ids)})
    answer = ask(url, call, TIMEOUT_S, {})
    try:
        return [_attempt(url, record) for record in answer["records"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ReplicaError(f"/usage answered with what is no record: {error!r}") from error


def _attempt(url: str, record: dict[str, Any]) -> Attempt:
    """Raises KeyError, TypeError or ValueError."""
    names = ("prompt_tokens", "cached_tokens", "completion_tokens")
    return Attempt(
        request_id=str(record["request_id"]),
        number=_count(record["attempt"]),
        replica=url,
        digest=str(record["digest"] or ""),
        is_running=record["outcome"] == "running",
        counts=TokenCounts(*(_count(record[name]) for name in names)),
    )


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_TOKENS:
        raise ValueError(f"expected a number of tokens, got {value!r}"[:200])
    return value
