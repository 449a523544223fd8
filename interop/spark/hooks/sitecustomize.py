"""Every Python process whose PYTHONPATH has this folder imports this first: a driver's and executors', too.

The product itself knows no switch that ends it. See interop/spark/kill_hook.py.
"""

from interop.spark import kill_hook

kill_hook.install()
