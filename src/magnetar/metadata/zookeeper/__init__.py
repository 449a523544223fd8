"""The metadata store on ZooKeeper, through kazoo.

Threads:   kazoo runs one thread that talks to the server. Requests reach it through its queue; results come to the
           event loop in bursts (`client.py`). The store (`store.py`) lives on the loop and never waits for the thread.
Read next: store.py, then client.py (what we know beyond kazoo's own answers), docs/zookeeper.md
"""

from __future__ import annotations

from importlib.util import find_spec

from magnetar.errors import MissingDependencyError

if find_spec("kazoo") is None:
    raise MissingDependencyError(
        "a metadata.url that begins with zk:// needs kazoo; run: pip install 'magnetar[zookeeper]'"
    )
