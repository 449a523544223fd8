"""A test learns when a point of the protocol is reached; outside of tests, nothing happens."""

from __future__ import annotations

from magnetar.spark import failpoints


def test_a_hook_can_be_set_and_taken_away() -> None:
    seen: list[tuple[str, int]] = []
    failpoints.reached("tasks-done", 3)
    failpoints.set_hook(lambda point, epoch: seen.append((point, epoch)))
    failpoints.reached("published", 4)
    failpoints.set_hook(None)
    failpoints.reached("published", 5)

    assert seen == [("published", 4)]
