"""What Pulsar's statistics and metrics have, ours have, or the docs say why not. Read next: stats.py"""

from __future__ import annotations

import json

from interop.comparing import same
from interop.pulsar.apache import ApacheStandalone
from interop.pulsar.conftest import Server
from interop.pulsar.stats import GOLDEN, Names, collect_fields, collect_metrics, missing


async def test_statistics_have_the_fields_that_pulsars_have(server: Server) -> None:
    _compare(server, await collect_fields(server))


async def test_metrics_have_the_names_that_pulsars_have(server: Server) -> None:
    _compare(server, {"metrics": await collect_metrics(server)})


def _compare(server: Server, found: Names) -> None:
    for kind, names in found.items():
        golden = json.loads(GOLDEN.read_text())[kind]
        if isinstance(server.standalone, ApacheStandalone):
            same(f"{kind} that the golden file lacks", sorted(set(names) - set(golden)), [])
        else:
            same(f"{kind} that ours lack", missing(kind, names, golden), [])
