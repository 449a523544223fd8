"""What `magnetar pipeline scrub` prints for people."""

from __future__ import annotations

from typing import Any, Final

from magnetar.cli.output import note, print_table

_SHOWN_MAX: Final = 50
_TROUBLES: Final = ("missing", "damaged", "limbo", "unreachable", "refused")


def print_scrub(result: Any, disk_speed: float | None) -> None:
    """`result` is a ScrubResult."""
    rows = [
        (finding.ledger_id, _entries(finding), finding.bookie, finding.what.value, finding.why or "-")
        for finding in result.findings[:_SHOWN_MAX]
    ]
    if rows:
        print_table(("ledger", "entries", "bookie", "what", "why"), rows)
    if len(result.findings) > _SHOWN_MAX:
        note(f"{len(result.findings) - _SHOWN_MAX:,} more lines; --json has them all")
    for skipped in result.skipped[:_SHOWN_MAX]:
        note(f"ledger {skipped.ledger_id} was not verified: {skipped.why}")
    wrong = {name: count for name, count in result.document().items() if name in _TROUBLES and count}
    verdict = ", ".join(f"{count:,} {name}" for name, count in wrong.items()) or "nothing is wrong"
    read = f"{_megabytes(result.size_bytes)} MB in {result.seconds:.1f} s: {_megabytes(result.bytes_per_second)} MB/s"
    print(f"{result.ledgers:,} ledgers, {result.replicas:,} replicas verified, {verdict}; {read}")
    if disk_speed is not None:
        share = result.bytes_per_second / disk_speed
        print(f"the disk reads {_megabytes(disk_speed)} MB/s: the scrub has {share:.0%} of that")
    if result.marked:
        print(f"{result.marked:,} ledgers marked as under-replicated")


def _entries(finding: Any) -> str:
    return str(finding.first_entry) if finding.entries == 1 else f"{finding.first_entry}-{finding.last_entry}"


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f}"
