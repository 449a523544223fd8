"""Topics by pattern: which names of a namespace a client's regular expression matches, and the hash of a list of names.

Matched:   the name without `persistent://`, of a partition that of its topic, as a whole.
Refused:   patterns that could take long on some name (a repeated group, many repetitions, references back): such a
           pattern is not matched by the broker; the client gets all names and matches itself.
Hash:      CRC-32C of the sorted names with commas between, as eight hexadecimal digits, lowest byte first: as Java's
           Guava writes it, since clients compare it with their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from crc32c import crc32c

from magnetar.broker.names import TopicName

ALL_TOPICS: Final = ".*"
_SCHEME: Final = re.compile(r"(?:non-)?persistent://")
_REPETITIONS_MAX: Final = 3  # Each multiplies the time by the name's length.
_UNSAFE: Final = re.compile(r"\)[*+?{]|\(\?|\\[0-9]")
_REPETITION: Final = re.compile(r"(?<!\\)[*+{]")


def compile_pattern(text: str, characters_max: int) -> re.Pattern[str] | None:
    """None: not matched here."""
    bare = _SCHEME.sub("", text)
    if len(text) > characters_max or _UNSAFE.search(bare) or len(_REPETITION.findall(bare)) > _REPETITIONS_MAX:
        return None
    try:
        return re.compile(bare)
    except (re.error, OverflowError, RecursionError):
        return None


def matching(names: Iterable[TopicName], pattern: re.Pattern[str]) -> list[TopicName]:
    return [name for name in names if pattern.fullmatch(str(name.without_partition()).partition("://")[2])]


def hash_of(names: Iterable[str]) -> str:
    return crc32c(",".join(sorted(names)).encode()).to_bytes(4, "little").hex()
