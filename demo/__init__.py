"""`make demo`: the product end to end, on this machine, in a minute or two.

Real processes only: `magnetar standalone`, the official Python client of Apache Pulsar, and Spark. The server is killed
with -9 under load and started again, while the clients log what they do; then an audit on Spark holds their logs
against the topic, message by message. The exit code says whether all of it was there; an HTML report says the rest.
`python -m demo.ledger` shows the same one floor below: ledgers on four bookies and a ZooKeeper.
"""
