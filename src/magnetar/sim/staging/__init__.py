"""The simulator of staging: jobs that publish exactly once, on real brokers and bookies, broken at every step.

    from magnetar.sim.staging.run import run_seed
    report = run_seed(17)

World:     that of topics (../topics/), and in it jobs: drivers, executors with tasks, sweepers, each a process.
Job:       plans epochs, has tasks stage them, commits, and notes that (job.py), as Spark does, repeats included. Every
           attempt evaluates its rows anew: other rows, in another order, over another number of partitions.
Faults:    those of topics, and processes that are killed or stand still at a named step of the protocol (points.py);
           two drivers of one job at a time; two attempts of one task at a time, of which the loser goes on. Some
           drivers leave an epoch behind that was decided and not published.
Publish:   a driver asks a broker over a connection of the simulated network (asking.py).
Audit:     at the end every topic is read: per epoch, it holds the rows of exactly one complete execution.
Read next: run.py, invariants.py, docs/staging.md
"""
