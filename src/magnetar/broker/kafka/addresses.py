"""The name of Kafka's protocol in the addresses of brokers."""

from __future__ import annotations

from typing import Final

KAFKA: Final = "kafka"
