"""Dispatch: entries of a topic to the consumers of one subscription.

Read next: parts.py (what it needs), dispatcher.py (the turn), single_active.py (Exclusive, Failover), individual.py and
           multi.py (what Shared and Key_Shared have in common), shared.py, key_shared.py, non_persistent.py;
           docs/subscriptions.md
"""
