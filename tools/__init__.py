"""What the make verbs run; not part of the installed package."""
