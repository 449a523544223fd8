"""What producers and consumers say about themselves: keys and values, up to a size."""

from __future__ import annotations

from collections.abc import Iterable

from magnetar.errors import MetadataError
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import KeyValue


def metadata_map(pairs: Iterable[KeyValue], bytes_max: int) -> dict[str, str]:
    found = {pair.key: pair.value for pair in pairs}
    size = sum(len(key) + len(value) for key, value in found.items())
    if size > bytes_max:
        raise MetadataError(f"metadata of {size} characters: at most {bytes_max} are taken")
    return found
