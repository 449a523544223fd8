"""Which bookies hold an entry, when enough of them have answered, and where new entries go. No I/O, no clock.

    sizes.py         ensemble, write quorum, ack quorum, and what follows from them
    write_sets.py    entry → positions of the ensemble, and back
    ack_set.py       who of a write set has stored an entry: the definition that a writer's window is tested against
    coverage.py      fencing, absence, and what a recovery read means
    placement.py     the policy interface; policies.py makes the one that is configured
    random_placement.py   rack_aware.py   region_aware.py: the policies
    arrangement.py   the search they share: labels around a circle
    candidates.py    the bookies as they are known now;   disk_weight.py: preference for free disk
    topology.py      rack_table.py: where bookies stand
    quarantine.py    bookies that failed too often are set aside for a time

Read next: docs/quorum.md
"""
