"""What this release of the protocol is, and how large things may get."""

from __future__ import annotations

from typing import Final

PROTOCOL_VERSION: Final = 21
"""The highest we speak, on both sides; a connection uses the lower of the two."""
VERSION_BROKER_ENTRY_METADATA: Final = 18
"""From this version on a client may ask, by its feature flag, to get broker entry metadata with its messages."""
VERSION_ACK_RECEIPT: Final = 17

MESSAGE_BYTES_MAX: Final = 5 * 2**20
"""Metadata and payload together, as a broker announces it in CONNECTED unless configured otherwise."""
FRAME_PADDING_BYTES: Final = 10 * 2**10
"""Pulsar's own allowance for the command around the largest message."""
FRAME_BYTES_MAX: Final = MESSAGE_BYTES_MAX + FRAME_PADDING_BYTES
"""Its own four bytes included."""
