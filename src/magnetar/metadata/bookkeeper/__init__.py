"""BookKeeper's metadata on any store: the same paths, the same bytes, so that Apache's nodes work on the same tree.

Read next: paths.py (where everything is), ledgers.py, ledger_metadata.py and ledger_codec.py, id_generator.py,
           cookies.py, cluster.py, docs/metadata-layout.md
"""
