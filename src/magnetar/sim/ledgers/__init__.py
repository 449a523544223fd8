"""The simulator of ledgers: real bookies and ledger clients in one seeded world, broken on purpose, and watched.

- one seed: options.py draws a small world → cluster.py starts it → workload.py writes, takes over, reads, deletes while
  nemesis.py breaks things → everything heals, and must end well (scenario.py).
- watching: observe.py (what bookies are asked and answer), sim/metadata.py (every change of a ledger), durable.py (what
  is on each disk for good). They report to watch.py, which has the history of what was sent and acknowledged, and calls
  the invariants, one class each.

Read next: ../run.py, scenario.py, watch.py, docs/simulation.md
"""
