"""The child: limits first; a request as JSON on stdin, a Verdict (or a template's) on stdout.

Beside them, on PROGRESS_FD, where the check is.
"""

import json
import sys
from typing import Any

from adapters.validation.limits import ChildLimits, apply_limits


def main() -> None:
    task = json.load(sys.stdin)
    # numpy reserves address space when it is loaded: within the limits, like all else.
    apply_limits(ChildLimits(**task["limits"]))
    json.dump(answer_to(task["kind"], task["request"]), sys.stdout)


def answer_to(kind: str, request: dict[str, Any]) -> dict[str, Any]:
    if kind == "TemplateRequest":
        from adapters.validation.template import TemplateRequest, check_template

        return check_template(TemplateRequest(**request))
    from adapters.validation.check import CheckRequest, check
    from adapters.validation.progress import tell

    return check(CheckRequest(**request), tell).as_dict()


if __name__ == "__main__":
    main()
