"""Directed runs: short scenes, each of which shows one planted bug on every seed, and passes without it.

    report = run_scene(16, seed, planted=True)

Stage:     stage.py has a small cluster without faults, and hands that speak to single bookies as clients do.
Scenes:    fences.py (16, 18, 19, 20), recoveries.py (17), disks.py (21). A scene waits for conditions, never for times.
Checked:   by the invariants that watch every world, and by the scene itself.
"""
