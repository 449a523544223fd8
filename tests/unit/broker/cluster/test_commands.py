from __future__ import annotations

from random import Random

import pytest

from magnetar.broker.cluster.commands import AdminCommands
from magnetar.broker.ownership import BrokerAddress
from magnetar.broker.resources.bundles import NamespaceBundle
from magnetar.errors import BrokerUnavailableError, HttpRefusedError
from tests.unit.client.http_server import HOST, Server, serving, unused_port

BUNDLE = NamespaceBundle.parse("public/default/0x00000000_0x40000000")
DONE = b"HTTP/1.1 204 No Content\r\n\r\n"


def broker(port: int) -> BrokerAddress:
    return BrokerAddress(f"{HOST}:{port}", f"http://{HOST}:{port}", {})


async def test_commands_are_requests_of_the_admin_interface() -> None:
    async with serving(Server(lambda _: DONE)) as server:
        commands = AdminCommands(Random(1))
        await commands.unload(broker(server.port), BUNDLE, "b2:8080")
        await commands.unload(broker(server.port), BUNDLE, None)
        await commands.split(broker(server.port), BUNDLE)
        await commands.merge(broker(server.port), BUNDLE)
    path = "PUT /admin/v2/namespaces/public/default/0x00000000_0x40000000"
    assert server.heard == [
        f"{path}/unload?destinationBroker=b2%3A8080 HTTP/1.1",
        f"{path}/unload HTTP/1.1",
        f"{path}/split?unload=false HTTP/1.1",
        "PUT /admin/v2/magnetar/bundles/public/default/0x00000000_0x40000000/merge HTTP/1.1",
    ]


async def test_a_refusal_and_a_broker_that_is_down_are_errors() -> None:
    refusal = b'HTTP/1.1 412 X\r\ncontent-length: 17\r\n\r\n{"reason": "why"}'
    async with serving(Server(lambda _: refusal)) as server:
        with pytest.raises(HttpRefusedError, match="why"):
            await AdminCommands(Random(1)).split(broker(server.port), BUNDLE)
    with pytest.raises(BrokerUnavailableError):
        await AdminCommands(Random(1)).unload(broker(await unused_port()), BUNDLE, None)
