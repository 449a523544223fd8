"""The simulated side of the runtime seam: disks that lose what was not synced, clocks that lie, lanes without threads.

- honesty: each implementation passes the contract suite of the real one (`tests/contracts/`).

Invariant: the same seed gives the same outcome. Every class of choice draws from a `random.Random` of its own, nothing
           is ordered by a set, an address or a real clock, and time is the running loop's.
Read next: device.py for the disk, machine.py for a whole node, docs/simulation.md
"""
