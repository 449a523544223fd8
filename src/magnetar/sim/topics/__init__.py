"""The simulator of topics: real brokers, bookies and clients in one seeded world, broken on purpose, and watched.

    from magnetar.sim.topics.run import run_seed
    report = run_seed(17)                       one seed, with the options that it draws
    report.violations                           what was broken: the invariant's id, what, when
    run_seed(17, {"faults": ("part",)})         the same with some options replaced

One seed:  options.py draws a small world → cluster.py starts bookies, brokers, producers and consumers → workload.py
           moves topics between brokers while nemesis.py breaks things → settle.py heals, drains and reads everything.
Owner:     who serves a topic is what an operator says (ownership.py), and each broker hears of it in its own time:
           two of them, or none, may think that they do.
Watching:  tap.py (topics as brokers load them, deliveries as consumers get them), metadata.py (each topic's chain),
           history.py (what was sent, received, acknowledged, and what everybody was told).
Read next: run.py, ../ledgers/, docs/simulation.md
"""
