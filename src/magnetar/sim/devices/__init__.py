"""Simulated disks: devices that lose what was not synced, and the files and directories on them."""
