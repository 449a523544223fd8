"""Planted bugs: the simulator is broken if one of them survives.

    python -m magnetar.sim.mutants              every planted bug, up to its budget of seeds; and the control
    python -m magnetar.sim.mutants 4 16         only these
    with MUTANTS[4].plant(): ...                by hand, around anything

planting.py gives functions of production code other code, in this process and for a while. registry.py has every bug.
hunt.py runs seeds until one is caught, scenes.py has short runs that show a bug on every seed.
Read next: docs/simulation.md, "Planted bugs"
"""
