"""Subscriptions of persistent topics, and their consumers. How entries reach them is dispatch/."""
