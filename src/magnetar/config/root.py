"""The whole configuration of a process, and the list of keys that follows from it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from magnetar.config.balance import BalanceConfig
from magnetar.config.bookie import BookieConfig
from magnetar.config.broker import BrokerConfig
from magnetar.config.defaults import SchemasConfig, TopicDefaultsConfig
from magnetar.config.dispatch import DispatchConfig
from magnetar.config.kafka import KafkaConfig
from magnetar.config.knobs import Knob, knobs_of
from magnetar.config.ledger import LedgerConfig, PlacementConfig
from magnetar.config.metadata import MetadataConfig, SqliteConfig, ZooKeeperConfig
from magnetar.config.process import HttpConfig, LoggingConfig
from magnetar.config.pulsar import PulsarConfig
from magnetar.config.recovery import RecoveryConfig
from magnetar.config.storage import JournalConfig, StorageConfig
from magnetar.config.topic import CursorConfig, TopicConfig
from magnetar.config.upkeep import UpkeepConfig

ENVIRONMENT_PREFIX = "MAGNETAR_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One attribute per section; its name is the section's name in TOML, in variables and in flags."""

    metadata: MetadataConfig = field(default_factory=MetadataConfig)
    zookeeper: ZooKeeperConfig = field(default_factory=ZooKeeperConfig)
    sqlite: SqliteConfig = field(default_factory=SqliteConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    bookie: BookieConfig = field(default_factory=BookieConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    ledger: LedgerConfig = field(default_factory=LedgerConfig)
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    balance: BalanceConfig = field(default_factory=BalanceConfig)
    defaults: TopicDefaultsConfig = field(default_factory=TopicDefaultsConfig)
    schemas: SchemasConfig = field(default_factory=SchemasConfig)
    dispatch: DispatchConfig = field(default_factory=DispatchConfig)
    topic: TopicConfig = field(default_factory=TopicConfig)
    cursor: CursorConfig = field(default_factory=CursorConfig)
    pulsar: PulsarConfig = field(default_factory=PulsarConfig)
    kafka: KafkaConfig = field(default_factory=KafkaConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    upkeep: UpkeepConfig = field(default_factory=UpkeepConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)


@dataclass(frozen=True, slots=True)
class Key:
    """One key of one section."""

    section: str
    name: str
    knob: Knob

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        return f"{ENVIRONMENT_PREFIX}{self.section}_{self.name}".upper()


SECTIONS: dict[str, Any] = {section.name: section.default_factory for section in dataclasses.fields(Config)}
"""Section name → its class."""

KEYS: dict[str, Key] = {
    key.path: key
    for section, section_class in SECTIONS.items()
    for key in (Key(section, name, knob) for name, knob in knobs_of(section_class))
}
"""`section.key` → the key, in the order of declaration."""
