"""The simulator of ledgers: real bookies and ledger clients in one seeded world, broken on purpose, and watched.

    from magnetar.sim.ledgers.run import run_seed
    report = run_seed(17)                       one seed, with the options that it draws
    report.violations                           what was broken: the invariant's id, what, when
    run_seed(17, {"faults": ("part",)})         the same with some options replaced
    run_seed(17, mutant=patch)                  with a planted bug: a callable that returns a context manager

One seed:  options.py draws a small world → cluster.py starts it → workload.py writes, takes over, reads, deletes while
           nemesis.py breaks things → settle.py heals, and everything must end well.
Watching:  tap.py (what bookies are asked and answer), metadata.py (every change of a ledger), durable.py (what is on
           each disk for good), history.py (what was sent and acknowledged). They tell watch.py, and that the
           invariants, one class each.
Read next: run.py, docs/simulation.md
"""
