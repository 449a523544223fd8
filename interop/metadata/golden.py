"""Remakes tests/golden/bookkeeper-metadata.json: values encoded by Apache's classes, with the fields they stand for.

    .venv/bin/python -m interop.metadata.golden

Unit tests read the file, so that they hold our codecs to Apache's bytes without Java. The samples are fixed: a second
run changes nothing unless the samples or Apache's release did.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from interop.jars import BOOKKEEPER
from interop.java_program import JavaProgram
from interop.metadata.fields import as_stored, cookie_fields, ledger_fields, service_info_fields
from interop.metadata.samples import COOKIES, LEDGER_IDS, NODE_CTIME, SERVICE_INFOS, ledgers
from magnetar.errors import MagnetarError
from magnetar.metadata.bookkeeper.cluster import HIERARCHICAL

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "bookkeeper-metadata.json"


async def make(apache: JavaProgram) -> dict[str, Any]:
    release = re.search(r"bookkeeper-server</artifactId>\s*<version>([^<]+)<", BOOKKEEPER.pom.read_text())
    assert release is not None
    return {
        "about": f"values (base64) encoded by the classes of Apache BookKeeper {release[1]}, "
        "and the fields they stand for",
        "made by": ".venv/bin/python -m interop.metadata.golden",
        "node_ctime": NODE_CTIME,
        "ledgers": [
            {
                "name": name,
                "fields": ledger_fields(as_stored(sample, NODE_CTIME)),
                "value": await apache.ask("serializeLedger", metadata=ledger_fields(sample)),
            }
            for name, sample in ledgers()
        ],
        "cookies": [
            {
                "name": name,
                "fields": cookie_fields(sample),
                "value": await apache.ask("serializeCookie", cookie=cookie_fields(sample)),
            }
            for name, sample in COOKIES.items()
        ],
        "service_infos": [
            {
                "name": name,
                "fields": service_info_fields(sample),
                "value": await apache.ask("serializeServiceInfo", info=service_info_fields(sample)),
            }
            for name, sample in SERVICE_INFOS.items()
        ],
        "layout": await apache.ask("serializeLayout", manager=HIERARCHICAL, version=1),
        "ledger_paths": {str(n): await apache.ask("ledgerPath", ledgerId=n) for n in LEDGER_IDS},
    }


async def _write() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-golden-") as temporary,
        JavaProgram("ApacheMetadata", Path(temporary)) as apache,
    ):
        document = await make(apache)
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    GOLDEN.write_text(json.dumps(document, indent=1) + "\n")


def main() -> int:
    try:
        asyncio.run(_write())
    except MagnetarError as error:
        print(f"golden: {error}", file=sys.stderr)
        return 1
    print(GOLDEN)
    return 0


if __name__ == "__main__":
    sys.exit(main())
