"""Topic names, as far as a client needs them: the full form of short names, and partitions."""

from __future__ import annotations

from magnetar.errors import InvalidNameError

_DOMAINS = ("persistent", "non-persistent")


def full_name(topic: str) -> str:
    """Completes `t` and `tenant/namespace/t`, which are short for persistent topics; the broker checks the rest."""
    domain, separator, rest = topic.partition("://")
    if not separator:
        domain, rest = "persistent", topic if "/" in topic else f"public/default/{topic}"
    parts = rest.split("/", 2)
    if domain not in _DOMAINS or len(parts) != 3 or not all(parts):
        raise InvalidNameError(f"{topic!r} is not a topic: write NAME, TENANT/NAMESPACE/NAME or persistent://TENANT/…")
    return f"{domain}://{rest}"


def partition_name(topic: str, partition: int) -> str:
    return f"{topic}-partition-{partition}"


def partition_of(topic: str) -> int:
    """Returns -1 if the name is not that of a partition."""
    _, separator, number = topic.rpartition("-partition-")
    return int(number) if separator and number.isascii() and number.isdigit() else -1


def java_hash(text: str) -> int:
    """Returns Java's hash of a string without its sign, by which Apache's Java client chooses a key's partition."""
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(encoded), 2):
        value = (31 * value + (encoded[at] << 8 | encoded[at + 1])) & 0xFFFFFFFF
    return value & 0x7FFFFFFF
