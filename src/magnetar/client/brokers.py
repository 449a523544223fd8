"""The brokers of one cluster: connections to them, and which one serves a topic.

One connection goes to each address. A caller that asks while it is being made waits for the same one. A lost one is
made anew for the next caller.

A lookup goes to the addresses of the service URL in turn. A redirect is followed, up to a limit. Behind a proxy,
connections go to the service URL and name the broker that they want.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import urlsplit

from magnetar.client.connection import Connection, connect, refusal
from magnetar.client.http import Address
from magnetar.client.values import ClientOptions
from magnetar.errors import BrokerUnavailableError, ClosedError, ConfigError, MagnetarError
from magnetar.runtime.runtime import Entropy
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
)

PORT: Final = 6650


def parse_url(url: str) -> list[Address]:
    """Parses pulsar://host[:port][,host[:port]…]."""
    scheme, _, rest = url.partition("://")
    netloc = rest.partition("/")[0]
    if scheme == "pulsar+ssl":
        raise ConfigError(f"{url!r}: this client does not speak TLS yet; use a pulsar:// address")
    if scheme != "pulsar" or not netloc:
        raise ConfigError(f"{url!r} is not a service URL: write pulsar://HOST:PORT")
    try:
        singles = [urlsplit(f"pulsar://{host}") for host in netloc.split(",")]
        addresses = [Address(single.hostname or "", PORT if single.port is None else single.port) for single in singles]
    except ValueError as error:
        raise ConfigError(f"{url!r} is not a service URL: {error}") from None
    if not all(address.host for address in addresses):
        raise ConfigError(f"{url!r} is not a service URL: a host is missing")
    return addresses


class Brokers:
    def __init__(self, url: str, entropy: Entropy, options: ClientOptions) -> None:
        self.entropy = entropy
        self.options = options
        self._services = parse_url(url)
        self._next_service = 0
        self._dials: dict[tuple[Address, str], asyncio.Task[Connection]] = {}
        self._last_id = 0
        self._lookups = asyncio.Semaphore(options.lookups_max)
        self._is_closed = False

    def next_id(self) -> int:
        """Returns a new id for a request, a producer or a consumer."""
        self._last_id += 1
        return self._last_id

    async def service(self) -> Connection:
        """Returns a connection to any broker of the service URL that can be reached."""
        error: MagnetarError = ClosedError("no address")
        for _ in self._services:
            address = self._services[self._next_service]
            try:
                return await self.connection(address)
            except BrokerUnavailableError as failed:
                error = failed
                self._next_service = (self._next_service + 1) % len(self._services)
        raise error

    async def connection(self, address: Address, proxy_to: str = "") -> Connection:
        if self._is_closed:
            raise ClosedError("the client is closed")
        key = (address, proxy_to)
        dial = self._dials.get(key)
        if dial is None or (dial.done() and _is_lost(dial)):
            dial = self._dials[key] = asyncio.create_task(self._dial(address, proxy_to))
            dial.add_done_callback(_is_lost)  # Looks at its error, even if no caller does.
        return await asyncio.shield(dial)  # Others may wait for the same one.

    async def _dial(self, address: Address, proxy_to: str) -> Connection:
        return await connect(
            address.host,
            address.port,
            proxy_to=proxy_to,
            timeout_s=self.options.connect_timeout_s,
            frame_bytes_max=self.options.frame_bytes_max,
            keep_alive_s=self.options.keep_alive_s,
        )

    async def aclose(self) -> None:
        self._is_closed = True
        dials = list(self._dials.values())
        for dial in dials:
            if dial.done() and not _is_lost(dial):
                dial.result().lose(ClosedError("the client is closed"))
            dial.cancel()
        await asyncio.gather(*dials, return_exceptions=True)
        self._dials.clear()

    async def ask(self, connection: Connection, command: BaseCommand, request_id: int) -> Any:
        return await connection.request(command, request_id, self.options.request_timeout_s)

    async def partitions_of(self, topic: str, *, create: bool = True) -> int:
        """Returns 0 for a topic without partitions. `create`: the broker may make the topic, if its policies allow
        it."""
        command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
        request = command.partitionMetadata
        request.topic, request.request_id = topic, self.next_id()
        if not create:
            request.metadata_auto_creation_enabled = False
        async with self._lookups:
            answer = await self.ask(await self.service(), command, request.request_id)
        if answer.response == CommandPartitionedTopicMetadataResponse.Failed:
            raise refusal(answer.error, answer.message)
        return int(answer.partitions)

    async def owner_of(self, topic: str) -> Connection:
        """Returns a connection to the broker that serves the topic now."""
        async with self._lookups:
            connection, is_authoritative = await self.service(), False
            for _ in range(self.options.redirects_max):
                answer = await self._look_up(connection, topic, is_authoritative)
                if answer.response == CommandLookupTopicResponse.Failed:
                    raise refusal(answer.error, answer.message)
                connection = await self._at(answer)
                if answer.response == CommandLookupTopicResponse.Connect:
                    return connection
                is_authoritative = answer.authoritative
        raise BrokerUnavailableError(f"the lookup of {topic} was redirected {self.options.redirects_max} times")

    async def _look_up(self, connection: Connection, topic: str, is_authoritative: bool) -> CommandLookupTopicResponse:
        command = BaseCommand(type=BaseCommand.LOOKUP)
        request = command.lookupTopic
        request.topic, request.request_id, request.authoritative = topic, self.next_id(), is_authoritative
        if self.options.listener_name:
            request.advertised_listener_name = self.options.listener_name
        answer: CommandLookupTopicResponse = await self.ask(connection, command, request.request_id)
        return answer

    async def _at(self, answer: CommandLookupTopicResponse) -> Connection:
        try:
            (address, *_) = parse_url(answer.brokerServiceUrl)
        except ConfigError as error:
            raise BrokerUnavailableError(f"a lookup returned an invalid address: {error}") from None
        if not answer.proxy_through_service_url:
            return await self.connection(address)
        return await self.connection(self._services[self._next_service], f"{address.host}:{address.port}")

    async def topics_of(self, namespace: str) -> list[str]:
        """Returns all topics of a namespace, as the broker lists them."""
        command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE)
        request = command.getTopicsOfNamespace
        request.request_id, request.namespace, request.mode = self.next_id(), namespace, request.ALL
        answer = await self.ask(await self.service(), command, request.request_id)
        return list(answer.topics)


def _is_lost(dial: asyncio.Task[Connection]) -> bool:
    return dial.cancelled() or dial.exception() is not None or dial.result().error is not None
