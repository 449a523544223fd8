"""The simulator of ledgers: real bookies and ledger clients in one seeded world, broken on purpose, and watched.

    from magnetar.sim.ledgers.scenario import LEDGERS
    report = LEDGERS.run(17)                    one seed, with the options that it draws (sim/run.py)
    report.violations                           what was broken: the invariant's id, what, when
    LEDGERS.run(17, {"faults": ("part",)})      the same with some options replaced
    LEDGERS.run(17, mutant=patch)               with a planted bug: a callable that returns a context manager

One seed:  options.py draws a small world → cluster.py starts it → workload.py writes, takes over, reads, deletes while
           nemesis.py breaks things → everything heals, and must end well (scenario.py).
Watching:  observe.py (what bookies are asked and answer), sim/metadata.py (every change of a ledger), durable.py (what
           is on each disk for good). They report to watch.py, which has the history of what was sent and acknowledged,
           and calls the invariants, one class each.
Read next: scenario.py, watch.py, docs/simulation.md
"""
