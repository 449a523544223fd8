"""The seam between magnetar and what asyncio's loop cannot intercept.

Time, timers, tasks and TCP go through asyncio's own loop: nothing here wraps them. What the loop cannot swap is an
argument of the component that needs it: disk (`disk.py`), randomness and wall clock (`entropy.py`), and threads
for blocking or CPU-heavy calls (`offload.py`). Production gets `SystemRuntime`; the simulator brings its own
implementations, which pass the same contract suites (`magnetar.testing.contracts`).

This folder is the only user of files, threads, randomness and clocks; `tools/house_rules.py` holds that.
"""
