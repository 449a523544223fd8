"""Apache's Java client: idempotent producers, consumers by hand and in groups, and what AdminClient needs."""

from __future__ import annotations

import base64

from interop.java_program import JavaProgram
from interop.kafka.conftest import Server

COUNT = 500
GROUP_SETTINGS = {"group.id": "java", "auto.offset.reset": "earliest", "enable.auto.commit": "false"}


def records(count: int) -> list[dict[str, object]]:
    return [
        {"key": None, "value": base64.b64encode(b"%d" % number).decode(), "headers": [], "timestamp": 1}
        for number in range(count)
    ]


def numbers(values: list[str]) -> list[int]:
    return [int(base64.b64decode(value)) for value in values]


async def test_a_producer_is_idempotent_by_default_and_a_group_continues_where_it_committed(
    standalone: Server, program: JavaProgram
) -> None:
    produce = {"bootstrap": standalone.bootstrap, "topic": "java", "settings": {"linger.ms": "1"}}
    assert await program.ask("produce", **produce, records=records(COUNT)) == list(range(COUNT))
    consume = {"bootstrap": standalone.bootstrap, "topic": "java", "settings": GROUP_SETTINGS}
    first = await program.ask("consume", **consume, count=COUNT)
    assert (numbers(first["values"]), first["committed"]) == (list(range(COUNT)), {"0": COUNT})
    assert await program.ask("produce", **produce, records=records(10)) == list(range(COUNT, COUNT + 10))
    second = await program.ask("consume", **consume, count=10)
    assert (numbers(second["values"]), second["committed"]) == (list(range(10)), {"0": COUNT + 10})


async def test_an_admin_client_makes_and_describes_topics_groups_and_offsets(
    standalone: Server, program: JavaProgram
) -> None:
    await program.ask("produce", bootstrap=standalone.bootstrap, topic="seen", records=records(5))
    settings = {**GROUP_SETTINGS, "group.id": "described"}
    await program.ask("consume", bootstrap=standalone.bootstrap, topic="seen", settings=settings, count=5)
    found = await program.ask("admin", bootstrap=standalone.bootstrap, topic="by-admin", group="described")
    assert found == {
        "listed": True, "partitions": 3, "end": 0, "nodes": 1, "group": "Empty", "offsets": {"seen-0": 5},
        "deleted": True,
    }  # fmt: skip
