"""The processes of `bench.admin`; each prints lines of JSON.

serve TOPICS   a cluster in this process with that many loaded topics, each with a subscription. After a line on its
               input it begins to measure; after the next it prints the longest hold of its loop, and its CPU.
scrape URL     asks without a pause; prints a line after its first round.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request

import uvloop

from magnetar.names import TopicName
from magnetar.runtime.collector import expect_long_life
from magnetar.testing.broker_node import HOST
from magnetar.testing.cluster import PulsarCluster
from magnetar.topic.position import EARLIEST

PAGES = ("/metrics", "/admin/v2/broker-stats/topics", "/admin/v2/persistent/public/default")
_TICK_S = 0.001
_AT_A_TIME = 64


class Watch:
    """The longest time between two turns of the loop, to about a millisecond, in CPU time of the loop's thread: what
    other processes on the machine take is not the broker's."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.begin()
        self._tick()

    def begin(self) -> None:
        self.longest_s = 0.0
        self._cpu_s, self._began_s = time.process_time(), time.monotonic()
        self._seen_s = time.thread_time()

    def figures(self) -> dict[str, float]:
        cpu = (time.process_time() - self._cpu_s) / (time.monotonic() - self._began_s)
        return {"hold": self.longest_s * 1000, "cpu": cpu}

    def _tick(self) -> None:
        now = time.thread_time()
        self.longest_s = max(self.longest_s, now - self._seen_s)
        self._seen_s = now
        self._loop.call_later(_TICK_S, self._tick)


async def serve(topics: int) -> None:
    settings = ["broker.inactive_topics_delete=false"]
    async with PulsarCluster(settings=settings) as cluster:
        service = cluster.broker.service
        expect_long_life()
        for first in range(0, topics, _AT_A_TIME):
            names = [f"bench-{number}" for number in range(first, min(first + _AT_A_TIME, topics))]
            await asyncio.gather(*(_make(service, TopicName.parse(name)) for name in names))
        watch = Watch()
        port, http_port = cluster.front_end.port, cluster.brokers[0].http_port  # Not through the doors for faults.
        _say({"pulsar": f"pulsar://{HOST}:{port}", "admin": f"http://{HOST}:{http_port}"})
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while await lines.readline():
            watch.begin()
            await lines.readline()
            _say(watch.figures())


async def _make(service: object, name: TopicName) -> None:
    topic = await service.topic(name, create=True)  # type: ignore[attr-defined]
    await topic.create_subscription("s", EARLIEST, {})


def scrape(url: str) -> None:
    is_first = True
    while True:
        for page in PAGES:
            with urllib.request.urlopen(url + page, timeout=120) as answer:
                while answer.read(2**20):
                    pass
        if is_first:
            _say({"scraped": True})
            is_first = False


def _say(figures: dict[str, object] | dict[str, float]) -> None:
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        uvloop.run(serve(int(sys.argv[2])))
    else:
        scrape(sys.argv[2])
