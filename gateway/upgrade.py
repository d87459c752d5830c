"""The head of a request that offers another protocol, less the offer: HTTP lets us decline it."""

Header = tuple[bytes, bytes]

# "connection" may say "close" too; then the client closes.
OF_AN_UPGRADE = frozenset((b"upgrade", b"connection", b"http2-settings"))


def without_upgrade(method: bytes, url: bytes, version: str, headers: list[Header]) -> bytes:
    """The head of a request that asks for no other protocol."""
    kept = [(name, value) for name, value in headers if name not in OF_AN_UPGRADE]
    lines = [name + b": " + value for name, value in kept]
    return b"\r\n".join([b" ".join([method, url, f"HTTP/{version}".encode()]), *lines, b"\r\n"])
