"""`python -m magnetar.sim`: runs seeds of the simulator; see cli.py."""

from __future__ import annotations

import sys

from magnetar.sim.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
