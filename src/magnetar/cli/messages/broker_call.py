"""What commands share that talk the Pulsar protocol: a client, advice when no broker answers, and an exit code.

run_with_broker(command, url)     runs `command(client)` on an event loop
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import typer

from magnetar.cli.admin.client import TIMEOUT_S, AdminClient, default_admin_url
from magnetar.cli.output import EXIT_INTERRUPTED
from magnetar.client import PulsarClient
from magnetar.errors import ArgumentError, BrokerUnavailableError, ConfigError, TopicNotFoundError
from magnetar.runtime.event_loop import run
from magnetar.runtime.system import SystemRuntime


def run_with_broker(command: Callable[[PulsarClient], Awaitable[None]], url: str) -> None:
    """Exits with 130 if a signal ended it."""

    async def main() -> bool:
        async with _client(url) as client:
            try:
                await client.check_reachable()
            except BrokerUnavailableError as error:
                raise BrokerUnavailableError(
                    f"{error}: start `magnetar standalone`, or say where the broker is with --url or MAGNETAR_URL"
                ) from error
            await command(client)
        return True

    if run(main) is None:
        raise typer.Exit(EXIT_INTERRUPTED)


def _client(url: str) -> PulsarClient:
    try:
        return PulsarClient(url, SystemRuntime().entropy)
    except ConfigError as error:
        raise ArgumentError(f"{error} (--url or MAGNETAR_URL)") from None


async def exists(client: PulsarClient, topic: str) -> bool:
    """Whether the topic exists. Asking does not create it."""
    try:
        await client.partitions_of(topic)
    except TopicNotFoundError:
        return False
    return True


def admin_of(url: str, admin_url: str | None, *, timeout_s: float = TIMEOUT_S) -> AdminClient:
    """The admin interface that was named, or port 8080 of the host that serves clients."""
    return AdminClient(admin_url or default_admin_url(url), timeout_s=timeout_s)
