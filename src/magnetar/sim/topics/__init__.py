"""The simulator of topics: real brokers, bookies and clients in one seeded world, broken on purpose, and watched.

One seed:  options.py draws a small world → cluster.py starts bookies, brokers, producers and consumers → workload.py
           moves topics between brokers while nemesis.py breaks things → everything heals, is drained and read
           (scenario.py).
Owner:     an operator decides which broker serves a topic (cluster.py), and each broker hears of it in its own time:
           two of them, or none, may believe that they own it.
Watching:  observe.py (topics as brokers load them, deliveries as consumers get them), watch.py (each topic's chain, and
           what was sent, received and acknowledged, and what every client was told).
Read next: ../run.py, scenario.py, ../ledgers/, docs/simulation.md
"""
