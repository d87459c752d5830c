"""The process that renders tenants' chat templates: a line of JSON in, a line of JSON out.

It has no secrets, little memory and TIME_LIMIT_S of CPU for each line; over that it is killed, by a
timer of its own, so that none outlives a front that was killed. Who reads its end starts it anew.
"""

import json
import resource
import signal
import sys
from functools import lru_cache
from typing import Any

from inference.chat_template import RENDER_ERRORS, ChatTemplate
from inference.errors import EngineError, ErrorCode
from inference.model_spec import ModelError

TIME_LIMIT_S = 0.5
MEMORY_BYTES = 512 << 20
MAX_TEMPLATES_KEPT = 64
# Of a tenant's program. What is not foreseen ends the process, which is a refusal too.
FAILURES = (*RENDER_ERRORS, TypeError, MemoryError, RuntimeError, AssertionError)


def main() -> None:
    for kind, limit in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, TIME_LIMIT_S)
        answer = json.dumps(answer_to(json.loads(line)))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(answer.encode() + b"\n")
        sys.stdout.buffer.flush()


def answer_to(task: dict[str, Any]) -> dict[str, Any]:
    """{"text"}, or {"message", "param"} of a refusal."""
    try:
        template = compiled(task["source"], tuple(task["special_tokens"].items()))
        text = template.render(task["messages"], task["tools"])
        # Half a surrogate pair, which no tokenizer takes, fails here.
        text.encode()
        return {"text": text}
    except ModelError as error:
        return refusal(str(error))
    except EngineError as error:
        return {"code": error.code, "message": error.message, "param": error.param}
    except FAILURES as error:
        return refusal(f"chat template: {type(error).__name__}: {str(error)[:300]}")


def refusal(message: str) -> dict[str, Any]:
    code = str(ErrorCode.INVALID_REQUEST)
    return {"code": code, "message": message, "param": "chat_template"}


@lru_cache(MAX_TEMPLATES_KEPT)
def compiled(source: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    return ChatTemplate(source, dict(special_tokens))


if __name__ == "__main__":
    main()
