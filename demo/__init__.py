"""`make demo`: the product end to end, on this machine, in less than a minute.

Real processes only: `magnetar standalone`, and the official Python client of Apache Pulsar. The server is killed with
-9 under load and started again, and then everything is read back. The exit code says whether all of it was there.
`python -m demo.ledger` shows the same one floor below: ledgers on four bookies and a ZooKeeper.
"""
