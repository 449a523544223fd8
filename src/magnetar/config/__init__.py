"""Configuration: one frozen dataclass per subsystem, gathered in `Config`.

A key is declared once, with `knob` (knobs.py): default, bounds, help text, and the name the same knob has in
BookKeeper, Pulsar or Kafka. Everything else follows from the declaration: loading and checking (load.py),
`magnetar config show`, and docs/configuration.md.

Invariant: a `Config` that exists is valid. Values and relations are checked when a section is made. Nothing here reads
           files or the environment; the caller passes in what it has read.
Read next: root.py (the sections), load.py (where values come from)
"""

from __future__ import annotations

from magnetar.config.load import Assignment, Effective, load
from magnetar.config.logging import LoggingConfig
from magnetar.config.metadata import MetadataConfig, SqliteConfig, ZooKeeperConfig
from magnetar.config.root import Config

__all__ = [
    "Assignment",
    "Config",
    "Effective",
    "LoggingConfig",
    "MetadataConfig",
    "SqliteConfig",
    "ZooKeeperConfig",
    "load",
]
