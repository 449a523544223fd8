"""`make demo`: the product end to end, on this machine, in a minute or two.

Purpose:   Real processes only: ZooKeeper, bookies, brokers, the official Python client of Apache Pulsar, and Spark.
           Under load a bookie is killed, a broker is killed, and a broker's session expires, while the clients log what
           they do. Then an audit on Spark compares their logs with the topics, message by message. The exit code is its
           verdict, and an HTML report has the details.
Read next: __main__.py. `python -m demo.standalone` shows one server that is killed twice, and `python -m demo.ledger`
           the layer below: ledgers on four bookies and a ZooKeeper.
"""
