"""What tests of users and of this project need: clusters as fixtures, real processes, and clients that log."""
