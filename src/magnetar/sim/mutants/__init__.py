"""Planted bugs: the simulator is broken if one of them survives.

    python -m magnetar.sim.mutants              every planted bug, up to its budget of seeds; and the control
    python -m magnetar.sim.mutants 4 16         only these
    with MUTANTS[4].plant(): ...                by hand, around anything

Plant:     planting.py gives functions of production code other code, in this process and for a while.
Bugs:      ledgers.py (writers, recovery), serving.py (bookies), disks.py, topics.py, staging.py; registry.py has all
           of them, by number.
Run:       hunt.py (seeds until one is caught), scenes.py (short runs that show a bug on every seed), table.py,
           __main__.py.
Read next: docs/simulation.md, "Planted bugs"
"""
