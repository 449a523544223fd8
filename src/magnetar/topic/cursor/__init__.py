"""Cursors: what each subscription of a topic has acknowledged, in memory and durably."""
