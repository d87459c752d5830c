"""`python -m inference serve …`: the engine process."""

import sys

from inference.config import parse_arguments


def main() -> int:
    config = parse_arguments(sys.argv[1:])
    # After the flags are checked: importing torch takes seconds.
    from inference.server.serve import serve

    return serve(config)


if __name__ == "__main__":
    sys.exit(main())
