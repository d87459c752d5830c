"""`python -m inference serve …`: the engine process."""

import sys

from inference.config import parse_arguments
from inference.server.serve import serve

if __name__ == "__main__":
    sys.exit(serve(parse_arguments(sys.argv[1:])))
