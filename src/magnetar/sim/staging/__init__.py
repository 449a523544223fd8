"""The simulator of staging: jobs that publish exactly once, on real brokers and bookies, broken at every step.

- world: that of topics (../topics/), and in it jobs: drivers, executors with tasks, sweepers, each a process.
- job: plans epochs, has tasks stage them, commits, and notes that (workload.py), as Spark does, repeats included. Every
  attempt evaluates its rows anew: other rows, in another order, over another number of partitions.
- saves: a query that saves each of its batches to several topics, as a batch job each and all with one job id
  (workload.py), as Spark's foreachBatch does.
- faults: those of topics, and processes that are killed or stand still at a named step of the protocol (cluster.py);
  two drivers of one job at a time; two attempts of one task at a time, of which the loser continues. Some drivers end
  with an epoch that was decided and not published.
- publish: a driver asks a broker over a connection of the simulated network (cluster.py).
- audit: at the end every topic is read: per epoch, it holds the rows of exactly one complete execution.

Read next: ../run.py, scenario.py, watch.py, docs/staging.md
"""
