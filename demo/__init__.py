"""`make demo`: the product end to end, on this machine, in less than a minute.

Real processes only: a ZooKeeper server, four bookies, writers. One bookie and one writer are killed with -9, and then
everything that was acknowledged is read back. The exit code says whether all of it was there.
"""
