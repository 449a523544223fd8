"""LAYOUT: how a cluster keeps its ledgers, named by the Java class that manages them.

Format:    format version LF class ":" version of that class, for us always "2", HierarchicalLedgerManagerFactory, 1.
           Format version 1 has a short name in the place of the class.
Absence:   means the same layout: Pulsar's own driver writes none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from magnetar.errors import MalformedMetadataError, UnsupportedLayoutError

FORMAT_VERSION: Final = 2
HIERARCHICAL: Final = "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory"
HIERARCHICAL_VERSION: Final = 1
_HIERARCHICAL_IN_FORMAT_1: Final = "hierarchical"
_VALUE_BYTES_MAX: Final = 1_000  # Two short lines.
_VALUE = re.compile(r"([0-9]{1,9})\n([^\n:]+):([0-9]{1,9})\n*")


@dataclass(frozen=True, slots=True)
class LedgerLayout:
    manager: str = HIERARCHICAL
    manager_version: int = HIERARCHICAL_VERSION
    format_version: int = FORMAT_VERSION

    def require_supported(self) -> None:
        """UnsupportedLayoutError unless the ledgers are where `paths.py` says."""
        known = HIERARCHICAL if self.format_version == FORMAT_VERSION else _HIERARCHICAL_IN_FORMAT_1
        if (self.manager, self.manager_version) != (known, HIERARCHICAL_VERSION):
            raise UnsupportedLayoutError(
                f"this cluster keeps its ledgers in the layout {self.manager} version {self.manager_version};"
                f" only {HIERARCHICAL} version {HIERARCHICAL_VERSION} is supported"
            )


def encode_layout(layout: LedgerLayout) -> bytes:
    return f"{layout.format_version}\n{layout.manager}:{layout.manager_version}".encode()


def decode_layout(value: bytes) -> LedgerLayout:
    """Any layout that is well formed, supported or not."""
    if len(value) > _VALUE_BYTES_MAX:
        raise MalformedMetadataError(f"LAYOUT has {len(value)} bytes")
    try:
        found = _VALUE.fullmatch(value.decode())
    except UnicodeDecodeError as error:
        raise MalformedMetadataError(f"LAYOUT is not text: {error}") from error
    if found is None:
        raise MalformedMetadataError(f"LAYOUT is not a version and 'class:version': {value[:80]!r}")
    layout = LedgerLayout(found[2], int(found[3]), int(found[1]))
    if not 1 <= layout.format_version <= FORMAT_VERSION:
        raise MalformedMetadataError(
            f"LAYOUT has format version {layout.format_version}; known are 1 and {FORMAT_VERSION}"
        )
    return layout
