"""Dispatch: entries of a topic to the consumers of one subscription.

Read next: context.py (what dispatch asks of its neighbours), dispatcher.py (the turn), single_active.py (Exclusive
           and Failover), shared_base.py and unacked_book.py (what Shared and Key_Shared have in common),
           shared.py, key_shared.py, next_consumer.py, non_persistent.py; docs/subscriptions.md
"""
