"""Every Python process whose PYTHONPATH has this folder imports this first: a driver's and executors', too.

The product itself knows no switch that ends it. See interop/spark/kill_hook.py and sink_faults.py.
"""

from interop.spark import kill_hook, sink_faults

kill_hook.install()
sink_faults.install()
