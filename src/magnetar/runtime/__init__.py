"""The parts of the environment that asyncio's loop cannot intercept.

Purpose:   time, timers, tasks and TCP go through asyncio's own loop: nothing here wraps them. Other parts of the
           environment are an argument of the component that needs them: disk (`disk.py`), randomness, wall clock
           (`runtime.py`), and threads for blocking or CPU-heavy calls (`runtime.py`). Production gets `SystemRuntime`;
           the simulator brings its own implementations, which pass the same contract suites (`tests/contracts/`).
           Small tools that every layer needs are here, too: `gather.py`, `keyed_lock.py`, `uncancelled.py`,
           `backoff.py`.
Invariant: this folder is the only user of files, threads, randomness and clocks; `tools/house_rules.py` holds that.
"""
