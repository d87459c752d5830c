"""The identity of an adapter version."""

import hashlib
from pathlib import Path

_CHUNK_BYTES = 1 << 20


def digest(config: bytes, weights_path: str | Path) -> str:
    """Lower-case hex sha256 over u64le(len(config)) ‖ config ‖ weights; streams the weights.

    The length keeps bytes from moving over the border between the two files.
    """
    hasher = begun_digest(config)
    with Path(weights_path).open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()


def begun_digest(config: bytes) -> "hashlib._Hash":
    """The same without the weights, whose bytes are still to be told to it in order."""
    return hashlib.sha256(len(config).to_bytes(8, "little") + config)
