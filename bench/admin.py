"""What scraping costs those who publish: a broker with 10,000 loaded topics, with and without a scraper.

The scraper asks for `/metrics`, for the statistics of all topics, and for the list of topics, one after the other and
without a pause. The peer of each row is the same broker in the same run while nothing is asked. The longest hold of the
loop stands beside its aim. The broker, its bookie and its metadata are one process on one core, so that scraping takes
CPU time from publishing in any case: the rows show the longest stop, and what is left of the rate.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median, quantiles
from typing import Any

import pulsar

from bench.report import Row, Side, print_table

TOPICS = 10_000
ROUNDS = 3
SECONDS = 10.0
HOLD_AIM_MS = 20.0
_START_SECONDS_MAX = 600.0
_PAYLOAD = b"x" * 1024


def run(topics: int = TOPICS, rounds: int = ROUNDS, seconds: float = SECONDS) -> list[Row]:
    quiet: list[dict[str, float]] = []
    scraped: list[dict[str, float]] = []
    with _worker("serve", str(topics)) as server:
        ready = _line(server)
        client = pulsar.Client(ready["pulsar"], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = client.create_producer("persistent://public/default/bench-admin", batching_enabled=False)
        for _ in range(rounds):
            quiet.append(_sample(server, producer, seconds))
            with _worker("scrape", ready["admin"]) as scraper:
                _line(scraper)  # The first answer has come.
                scraped.append(_sample(server, producer, seconds))
        client.close()
    return _rows(quiet, scraped)


def _sample(server: subprocess.Popen[str], producer: Any, seconds: float) -> dict[str, float]:
    _tell(server)
    took: list[float] = []
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        producer.send(_PAYLOAD)
        took.append((time.monotonic() - began) * 1000)
    _tell(server)
    return {"worst": max(took), "p99": quantiles(took, n=100)[98], "rate": len(took) / seconds, **_line(server)}


def _rows(quiet: list[dict[str, float]], scraped: list[dict[str, float]]) -> list[Row]:
    def side(samples: list[dict[str, float]], figure: str) -> Side:
        return Side(tuple(each[figure] for each in samples), tuple(each["cpu"] for each in samples))

    peer, aim = "without a scraper", Side((HOLD_AIM_MS,), (0.0,))
    detail = {"publishes/s": (median(each["rate"] for each in scraped), median(each["rate"] for each in quiet))}
    return [
        Row("admin/hold-while-scraped", "ms", "lower", side(scraped, "hold"), "the aim", aim, 1),
        Row("admin/hold-beside-quiet", "ms", "lower", side(scraped, "hold"), peer, side(quiet, "hold")),
        Row("admin/worst-publish", "ms", "lower", side(scraped, "worst"), peer, side(quiet, "worst"), detail=detail),
        Row("admin/p99-publish", "ms", "lower", side(scraped, "p99"), peer, side(quiet, "p99")),
    ]


# --- workers ----------------------------------------------------------------------------------------------------------


@contextmanager
def _worker(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.admin_worker", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=60)


def _line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a worker of the benchmark ended with {process.wait(timeout=60)}")
    return json.loads(line)


def _tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


if __name__ == "__main__":
    print_table(run(*(int(each) for each in sys.argv[1:])))
