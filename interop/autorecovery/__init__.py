"""Auto-recovery of both makes in one cluster: the auditor of one and the workers of the other repair it together, and
Apache's shell controls ours.
"""
