"""A broker in this process, and its REST interface without a network: requests go straight to the application.

async with admin_world() as world:
    assert (await world.get("/admin/v2/clusters")).json == ["standalone"]
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magnetar.admin.http.app import AdminApp
from magnetar.admin.http.call import AdminContext, Route
from magnetar.admin.routes import all_routes
from magnetar.admin.stats.rates import RateBook
from magnetar.config.process import HttpConfig
from magnetar.runtime.metrics import Health, Metrics
from magnetar.runtime.web_guard import WebGuard
from tests.unit.broker.pulsar.broker_world import BrokerWorld, Talker, broker_world

V2 = "/admin/v2"
TOPIC = f"{V2}/persistent/public/default/t"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        return str(self.json["reason"])


class AdminWorld:
    def __init__(self, world: BrokerWorld, routes: Sequence[Route] = ()) -> None:
        self.world = world
        self.context = AdminContext(
            world.broker, Metrics(), lambda: Health(True, {"broker": "serving"}), RateBook(world.broker.service)
        )
        self._app = AdminApp([*all_routes(), *routes], lambda: self.context, WebGuard(HttpConfig(), "127.0.0.1"))

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        path, _, query = path.partition("?")
        sent = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(b"content-type", b"application/json"), *_encoded(headers or {})],
        }
        heard: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": sent, "more_body": False}

        async def send(event: dict[str, Any]) -> None:
            heard.append(event)

        await self._app(scope, receive, send)  # type: ignore[arg-type]
        got = {name.decode(): value.decode() for name, value in heard[0]["headers"]}
        return Answer(heard[0]["status"], b"".join(each.get("body", b"") for each in heard[1:]), got)

    async def get(self, path: str) -> Answer:
        return await self.call("GET", path)

    async def done(self, method: str, path: str, body: Any = None) -> Answer:
        """It must succeed."""
        answer = await self.call(method, path, body)
        assert answer.status in (200, 204), (answer.status, answer.body)
        return answer

    async def talker(self) -> Talker:
        return await self.world.talker()

    async def publish(self, count: int, topic: str = "t", first: int = 0) -> None:
        talker = await self.talker()
        await talker.producer(topic)
        for number in range(first, first + count):
            await talker.published(1, number, b"m-%d" % number)
        talker.transport.close()


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


@contextlib.asynccontextmanager
async def admin_world(routes: Sequence[Route] = (), **sections: Any) -> AsyncIterator[AdminWorld]:
    """`routes` are served besides those of the product."""
    async with broker_world(**sections) as world:
        yield AdminWorld(world, routes)
