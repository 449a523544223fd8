"""Consumer groups: who is a member, which member reads which partition, and up to where a group has read.

* `group.py` is one group: its members and their rebalances (the classic protocol), and its offsets.
* `coordinator.py` keeps groups in partitions of a topic, `__consumer_offsets`, and restores them from there.
* `handlers.py` has the requests.
"""
