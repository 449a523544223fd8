"""BookKeeper's metadata on any store: the same paths, the same bytes, so that Apache's nodes work on the same tree.

    paths.py             where everything is; ledger id ⇄ path
    cluster.py           initialisation, LAYOUT and INSTANCEID
    id_generator.py      the next ledger id, on Apache's own generator nodes
    ledger_metadata.py   what is known about a ledger; ledger_codec.py and its siblings: as bytes, versions 1 to 3
    ledgers.py           create, read, compare-and-set, delete, list
    cookies.py           what must not change during a bookie's life
    service_info.py      what a registered bookie says about itself

Read next: docs/metadata-layout.md
"""
