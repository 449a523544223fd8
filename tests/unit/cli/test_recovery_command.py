"""`magnetar recovery` explains a ledger to people."""

from __future__ import annotations

from dataclasses import asdict

from magnetar.cli.recovery import explanation, is_repairing
from magnetar.metadata.bookkeeper.recovery_nodes import MarkNote, MarkState

FRAGMENT = {"first_entry": 0, "last_entry": 9, "bookies": ["a:1", "b:1"], "away": ["a:1"], "decommissioning": []}


def test_marked_ledger_is_explained_with_reason_state_and_progress() -> None:
    note = MarkNote(
        reasons={"a:1": "the bookie is lost"},
        state=MarkState.REPAIRING,
        since_ms=1_700_000_000_000,
        copied_entries=5,
        entries_to_copy=10,
        copied_bytes=4_000_000,
        seconds=2.0,
    )
    lines = explanation(
        {
            "ledger": 7,
            "exists": True,
            "marked": True,
            "marked_ms": 1_700_000_000_000,
            "marked_bookies": ["a:1"],
            "locked_by": "worker-1",
            "note": asdict(note),
            "fragments": [FRAGMENT],
        }
    )
    assert lines == [
        "ledger 7 is marked for repair since 2023-11-14 22:13:20Z",
        "reason: bookie a:1: the bookie is lost",
        "state: repairing since 2023-11-14 22:13:20Z",
        "copied: 5 of 10 entries, 2.0 MB/s",
        "worker: worker-1",
        "entries 0 to 9: a:1, b:1",
        "  bookie a:1 is not registered",
    ]


def test_mark_that_apache_made_has_no_reason_and_a_deleted_ledger_is_named_so() -> None:
    lines = explanation(
        {
            "ledger": 7,
            "exists": False,
            "marked": True,
            "marked_ms": None,
            "marked_bookies": ["a:1"],
            "locked_by": None,
            "note": None,
            "fragments": [],
        }
    )
    assert lines[0] == "ledger 7 does not exist: it was deleted, or never created"
    assert lines[2] == "bookies without good copies: a:1 (the reason was not recorded)"


def test_watch_goes_on_while_ledgers_are_marked_or_a_bookie_is_away_that_the_auditor_will_decide_about() -> None:
    idle = {"enabled": True, "auditor": "b:1", "away": [], "marked_ledgers": 2, "states": {"unrepairable": 2}}
    assert not is_repairing(idle)
    assert is_repairing(idle | {"marked_ledgers": 3})
    assert is_repairing(idle | {"away": ["a:1"]})
    assert not is_repairing(idle | {"away": ["a:1"], "auditor": None})
    assert not is_repairing(idle | {"away": ["a:1"], "enabled": False})
