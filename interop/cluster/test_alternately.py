"""A deployment moves from one make to the other and back: brokers of one make run at a time, on the same data."""

from __future__ import annotations

from pathlib import Path

from interop.cluster.content import Content
from interop.cluster.mixed import INTERCEPTORS, Mixed
from interop.java_program import JavaProgram
from workloads.pulsar_load import connect

TURNS = (("magnetar", "stop"), ("apache", "stop"), ("magnetar", "kill"), ("apache", "kill"), ("magnetar", "stop"))
"""Which make runs, and how it leaves."""


async def test_each_make_continues_what_the_other_left_by_a_stop_and_by_kill_9(
    mixed: Mixed, program: JavaProgram, directory: Path
) -> None:
    """Apache's broker writes neither index nor time of an entry in its first turn, as by default, and both later."""
    content = Content(program)
    for make in mixed.brokers:
        mixed.leave(make, "stop")
    for make, how in TURNS:
        mixed.run_only(make)
        broker = mixed.brokers[make]
        client = connect(broker.url, directory / "alternately.log")
        if content.turn:
            await content.check(broker, client)
        else:
            await content.create(broker)
        await content.add(broker, client)
        client.close()
        mixed.leave(make, how)
        if make == "apache":
            mixed.apache.settings["brokerEntryMetadataInterceptors"] = INTERCEPTORS
