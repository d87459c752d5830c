"""The child: limits first; a CheckRequest as JSON on stdin, a Verdict as JSON on stdout."""

import json
import sys

from adapters.validation.limits import ChildLimits, apply_limits


def main() -> None:
    task = json.load(sys.stdin)
    # numpy reserves address space when it is loaded: within the limits, like all else.
    apply_limits(ChildLimits(**task["limits"]))
    from adapters.validation.check import CheckRequest, check

    verdict = check(CheckRequest(**task["request"]))
    json.dump(verdict.as_dict(), sys.stdout)


if __name__ == "__main__":
    main()
