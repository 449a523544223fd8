"""/admin/v2/brokers: the brokers of the cluster, the health of this one, and its settings.

For the health check the broker publishes a message to a topic of its own and reads it back, as Pulsar's check does. So
the check covers bookies and metadata, too.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection
from typing import Any, Final

from magnetar.admin.http.call import Call, Query, Reply, Route
from magnetar.admin.http.errors import NOT_FOUND, UNAVAILABLE, ElsewhereError, RestError
from magnetar.broker.cluster.load_report import PULSAR_VERSION
from magnetar.broker.publishing.producers import Producer, ProducerOptions
from magnetar.broker.resources.bundles import NamespaceBundle
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.config.knobs import MASK, knobs_of
from magnetar.errors import MagnetarError
from magnetar.names import SYSTEM_NAMESPACE
from magnetar.topic.position import Position
from magnetar.wire.pulsar.frames import with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata

_CHECK_SECONDS_MAX: Final = 30.0
_OK = Reply(b"ok", "text/plain")


async def list_brokers(call: Call) -> list[str]:
    cluster = call.path.get("cluster")
    if cluster is not None and call.name("cluster") != call.service.config.broker.cluster:
        raise RestError(NOT_FOUND, f"Cluster {cluster} is not the cluster of this broker: ask a broker of that cluster")
    return await call.service.membership.alive()


async def get_leader(call: Call) -> dict[str, str]:
    leader = await call.service.membership.leading()
    if leader is None:
        raise RestError(NOT_FOUND, "Couldn't find leader broker: ask again when one was elected")
    return {"serviceUrl": leader.http_url, "brokerId": leader.broker_id}


async def get_owned(call: Call) -> dict[str, Any]:
    await _require_here(call)
    shown = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    return {str(bundle): shown for bundle in sorted(await _owned(call), key=str)}


async def _owned(call: Call) -> Collection[NamespaceBundle]:
    """Returns the bundles of this broker; of one that owns all bundles, those of the namespaces whose topics it has
    loaded."""
    service = call.service
    owned = service.ownership.owned()
    if owned is not None:
        return owned
    loaded = await service.slices.map(lambda topic: topic.name.namespace, service.topics.loaded())
    return [
        NamespaceBundle(namespace, bundle)
        for namespace in dict.fromkeys(loaded)
        for bundle in (await service.resources.namespaces.bundles(namespace)).all()
    ]


async def _require_here(call: Call) -> None:
    """Redirects to the broker of the path, if it is another one that is alive."""
    wanted = call.name("broker")
    if wanted == call.service.address.broker_id:
        return
    address = await call.service.membership.address_of(wanted)
    if address is None:
        raise RestError(NOT_FOUND, f"Broker id {wanted!r} not found in available brokers.")
    raise ElsewhereError(address.http_url)


async def drain(call: Call) -> None:
    await _require_here(call)
    call.service.membership.drain(is_draining=True)


async def stop_draining(call: Call) -> None:
    await _require_here(call)
    call.service.membership.drain(is_draining=False)


async def is_ready(call: Call) -> Reply:
    if not call.context.health().is_healthy:
        raise RestError(UNAVAILABLE, "not ready")
    return _OK


async def check_health(call: Call) -> Reply:
    try:
        async with asyncio.timeout(_CHECK_SECONDS_MAX):
            await _round_trip(call)
    except TimeoutError:
        raise RestError(UNAVAILABLE, f"a message was not stored within {_CHECK_SECONDS_MAX:.0f} s") from None
    return _OK


async def _round_trip(call: Call) -> None:
    name = SYSTEM_NAMESPACE.topic(f"healthcheck-{call.service.address.broker_id.replace(':', '-')}")
    topic = await call.service.topics.get_persistent(name, create=True)
    position = await _Probe(topic, call.service.entropy.wall_ms()).publish()
    entries = await topic.log.read(position, 1, 1)
    if not entries or entries[0].position != position:
        raise RestError(UNAVAILABLE, f"the message at {position} was stored, but it cannot be found")


class _Probe:
    """The sink of a producer that publishes one message."""

    def __init__(self, topic: PersistentTopic, now_ms: int) -> None:
        self._topic = topic
        self._now_ms = now_ms
        self._done: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    async def publish(self) -> Position:
        metadata = MessageMetadata(producer_name="healthcheck", sequence_id=self._now_ms, publish_time=self._now_ms)
        body = with_checksum(metadata.SerializeToString(), b"healthy?")
        producer = Producer(ProducerOptions(producer_id=0, name="healthcheck"), self)
        arrived_s = asyncio.get_running_loop().time()
        self._topic.publisher.publish(
            (producer, self._now_ms, self._now_ms, 1, len(body), arrived_s), body, counts=False
        )
        return await self._done

    def published(self, _: Producer, ledger_id: int, first_entry_id: int, run: Any, size: int) -> None:
        del run, size
        if not self._done.done():
            self._done.set_result(Position(ledger_id, first_entry_id))

    def publish_failed(self, _: Producer, run: Any, error: MagnetarError) -> None:
        del run
        if not self._done.done():
            self._done.set_exception(error)

    def close_producer(self, producer: Producer) -> None: ...
    def hold(self, reason: str) -> None: ...
    def let_go(self, reason: str) -> None: ...

    async def check_alive(self) -> bool:
        return True


async def get_version(call: Call) -> Reply:
    del call
    return Reply(PULSAR_VERSION.encode(), "text/plain")


# --- settings ---------------------------------------------------------------------------------------------------------


async def runtime_configuration(call: Call) -> dict[str, str]:
    """Returns every setting by our name, and by Pulsar's where it has one; secrets are masked."""
    shown: dict[str, str] = {}
    config = call.service.config
    for section in dataclasses.fields(config):
        values = getattr(config, section.name)
        for name, knob in knobs_of(values):
            value = getattr(values, name)
            text = MASK if knob.secret and value else _setting_text(value)
            shown[f"{section.name}.{name}"] = text
            if knob.pulsar:
                shown[knob.pulsar] = text
    return shown


def _setting_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def dynamic_names(call: Call) -> list[str]:
    """Returns an empty list: no setting can be changed while the broker runs."""
    del call
    return []


async def dynamic_values(call: Call) -> dict[str, str]:
    del call
    return {}


async def internal_configuration(call: Call) -> dict[str, str]:
    metadata = call.service.config.metadata
    return {
        "metadataStoreUrl": metadata.url,
        "configurationMetadataStoreUrl": metadata.configuration_url or metadata.url,
        "ledgersRootPath": metadata.ledgers_root,
    }


_ALL = "/admin/v2/brokers"
_DRAINING = "/admin/v2/magnetar/brokers/{broker}/draining"
ROUTES = [
    Route("GET", _ALL, "List the brokers of this cluster", list_brokers),
    Route("GET", f"{_ALL}/{{cluster}}", "List the brokers of a cluster", list_brokers),
    Route("GET", f"{_ALL}/leaderBroker", "Get the broker that leads", get_leader),
    Route("GET", f"{_ALL}/{{cluster}}/{{broker}}/ownedNamespaces", "Get the bundles that a broker serves", get_owned),
    Route("PUT", _DRAINING, "Give a broker no more bundles, until it ends", drain),
    Route("DELETE", _DRAINING, "Give a broker bundles again", stop_draining),
    Route("GET", f"{_ALL}/ready", "Whether the broker serves requests", is_ready),
    Route(
        "GET",
        f"{_ALL}/health",
        "Store a message and read it back",
        check_health,
        query=(Query("topicVersion", "accepted, and of no effect", "string"),),
    ),
    Route("GET", f"{_ALL}/version", "Get the release of Pulsar whose interface this is", get_version),
    Route("GET", f"{_ALL}/configuration", "List the settings that can be changed while it runs", dynamic_names),
    Route("GET", f"{_ALL}/configuration/values", "Get settings that were changed while it runs", dynamic_values),
    Route("GET", f"{_ALL}/configuration/runtime", "Get all settings", runtime_configuration),
    Route("GET", f"{_ALL}/internal-configuration", "Get where the metadata is", internal_configuration),
]
