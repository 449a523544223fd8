"""Differences between magnetar and Apache Pulsar that are known and intended, each with its reason.

docs/interop.md shows this table, and a unit test holds that. A row has a rule that says whether a value that differs
is this difference; what no rule covers is a finding. Rules are narrow: one that hides more than its reason explains
would hide defects. A row without a rule is left out of programs or of what is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from interop.differential.program import Step

ABSENT = "(absent)"
_UNLOADS_MAX = 3  # Of one program; few have more.


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value that differs, and where it is."""

    path: tuple[str, ...]
    apache: Any
    magnetar: Any

    def __str__(self) -> str:
        return f"{', '.join(self.path)}: Apache {self.apache!r}, magnetar {self.magnetar!r}"


@dataclass(frozen=True, slots=True)
class Intended:
    what: str
    reason: str
    covers: Callable[[Step, Step, Leaf], bool] | None = None
    """Given the step, the program's setup, and what differs; None if the comparison leaves it out."""


def unintended(step: Step, setup: Step, what: str, apache: Any, magnetar: Any) -> list[Leaf]:
    """What differs, without what is intended."""
    leaves = _leaves((what,), apache, magnetar)
    return [leaf for leaf in leaves if not any(row.covers and row.covers(step, setup, leaf) for row in TABLE)]


def table_markdown() -> str:
    """The table as docs/interop.md has it."""
    rows = [f"| {row.what} | {row.reason} |" for row in TABLE]
    return "\n".join(["| Here | Why it differs |", "|---|---|", *rows])


def _leaves(path: tuple[str, ...], apache: Any, magnetar: Any) -> list[Leaf]:
    if apache == magnetar:
        return []
    if not isinstance(apache, dict) or not isinstance(magnetar, dict):
        return [Leaf(path, apache, magnetar)]
    return [
        leaf
        for key in sorted(apache.keys() | magnetar.keys(), key=str)
        for leaf in _leaves((*path, str(key)), apache.get(key, ABSENT), magnetar.get(key, ABSENT))
    ]


def _answers(verb: str, apache: Any, magnetar: Any) -> Callable[[Step, Step, Leaf], bool]:
    def covers(step: Step, _setup: Step, leaf: Leaf) -> bool:
        return step.verb == verb and leaf.path == ("outcome",) and (leaf.apache, leaf.magnetar) == (apache, magnetar)

    return covers


def _asks_for_partitions(_step: Step, setup: Step, leaf: Leaf) -> bool:
    return bool(setup.get("partitions")) and (leaf.apache, leaf.magnetar) in (
        (404, 405),
        ((204, 404, ""), (204, 405, "")),
    )


def _fails(_step: Step, _setup: Step, leaf: Leaf) -> bool:
    return leaf.path == ("outcome",) and _status(leaf.apache) == 500 and _status(leaf.magnetar) < 500


def _status(outcome: Any) -> int:
    """That of REST, with or without what came with it; 0 for another outcome."""
    found = outcome[0] if isinstance(outcome, tuple) and outcome else outcome
    return found if isinstance(found, int) else 0


def _counts_duplicates(_step: Step, setup: Step, leaf: Leaf) -> bool:
    return bool(setup.get("dedup")) and leaf.path[-1] == "messages in" and leaf.apache > leaf.magnetar


def _counts_what_is_gone(_step: Step, _setup: Step, leaf: Leaf) -> bool:
    return leaf.path[-1] == "delayed" and leaf.apache > leaf.magnetar


def _counts_ends_of_ledgers(_step: Step, _setup: Step, leaf: Leaf) -> bool:
    return leaf.path[-1] == "expired" and 0 < leaf.apache - leaf.magnetar <= _UNLOADS_MAX


def _begins_in_the_compacted_view(step: Step, _setup: Step, leaf: Leaf) -> bool:
    begins = step.verb == "read" and step.get("compacted") and step.get("start") == "message" and step.get("inclusive")
    return bool(begins) and leaf.path[0] == "outcome" and len(leaf.path) == 2 and leaf.apache == ABSENT


TABLE = (
    Intended(
        "`peek` and `skip` with a subscription that does not exist: 404",
        "Pulsar creates the subscription then, which keeps messages from that moment on; reading should not write",
    ),
    Intended(
        "a partitioned topic where one partition must be named, such as the status of compaction: 405",
        "Pulsar answers that the topic does not exist (404)",
        _asks_for_partitions,
    ),
    Intended(
        "`unsubscribe` beside other consumers: ConsumerBusy",
        "Pulsar calls it an error of its metadata store (MetadataError)",
        _answers("unsubscribe", "BrokerMetadataError", "ConsumerBusy"),
    ),
    Intended(
        "`expireMessages` by age, when nothing is that old: 204",
        "Pulsar answers 409, as if another expiry were running",
        _answers("expire", 409, 204),
    ),
    Intended(
        "`expireMessages` by position with `excluded`: the message itself is not expired",
        "by its code, which no program here runs, Pulsar moves to the next message first, and expires that, too",
    ),
    Intended(
        "`expireMessages` by position expires everything up to it",
        "with an acknowledged message after that position, Pulsar expired only the first of five messages",
    ),
    Intended(
        "a message that was given back and then expired is not delivered",
        "Pulsar delivers it once more to another consumer",
    ),
    Intended(
        "`totalMsgExpired` counts the entries that expired",
        "Pulsar subtracts two approximate backlogs, and counted one more where a ledger had ended, as after an unload",
        _counts_ends_of_ledgers,
    ),
    Intended(
        "the last message id of a topic that was unloaded and then terminated is that of its last message",
        "Pulsar answers that there is none",
    ),
    Intended(
        "`examinemessage` counts back to the first message at most; other calls also answer where Pulsar fails",
        "Pulsar answers 500, an error of its own, such as for the second last of one message",
        _fails,
    ),
    Intended(
        "`truncate` also drops the ledger that is being written",
        "Pulsar keeps its entries until the next ledger begins",
    ),
    Intended(
        "`expireMessages/0` expires everything",
        "Pulsar expired nothing for a connected consumer with a few messages, and answered 409",
    ),
    Intended(
        "compaction of a topic without keys succeeds, and keeps nothing",
        "Pulsar's compaction ends with the status ERROR",
    ),
    Intended(
        "compaction keeps all chunks of a message that has a key, or none",
        "Pulsar keeps only the last chunk: a reader hears of a message, and never gets it",
    ),
    Intended(
        "compaction after an unload, when no message came since the last compaction: its status is SUCCESS",
        "Pulsar's is NOT_RUN",
        _answers("compact", (204, 200, "NOT_RUN"), (204, 200, "SUCCESS")),
    ),
    Intended(
        "a reader of the compacted view that seeks a time begins there",
        "Pulsar's begins with the first message",
    ),
    Intended(
        "a reader of the compacted view that begins with a message gets that message, even if it was a batch of one",
        "Pulsar makes a message without a batch of it, whose id the client takes for an earlier one",
        _begins_in_the_compacted_view,
    ),
    Intended(
        "`msgInCounter` counts messages that were stored",
        "Pulsar counts duplicates that deduplication dropped, too",
        _counts_duplicates,
    ),
    Intended(
        "limits of unacknowledged messages are kept exactly",
        "Pulsar checks the limit before it reads, and delivers everything that it has read",
    ),
    Intended(
        "permits are counted in messages",
        "Pulsar counts entries, and delivers more batches than were requested",
    ),
    Intended(
        "`Key_Shared` keeps the order of the entries of one key; a batch has the key of its first message",
        "Pulsar promises no more, and delivers entries of different keys to a single consumer in the order of the log",
    ),
    Intended(
        "a redelivery count stays when a part of a batch is acknowledged",
        "Pulsar forgets it then",
    ),
    Intended(
        "`unackedMessages` counts the messages of a batch that are not acknowledged",
        "Pulsar's count is wrong, even below zero, after a part of a batch was acknowledged by index; it then stops at"
        " limits that are not reached",
    ),
    Intended(
        "an acknowledged part of a batch stays acknowledged when a topic is unloaded",
        "Pulsar stores such acknowledgements with the cursor's node, and 4.2.4 does not read them again: the messages"
        " come once more (apache/pulsar 20585, 26474)",
    ),
    Intended(
        "a subscription that reads the compacted view continues after an unload where its acknowledgements end",
        "Pulsar begins with the first message of the view again, if all or none of it was acknowledged",
    ),
    Intended(
        "`msgDelayed` counts delayed messages of the backlog",
        "Pulsar continues to count those that were skipped or expired, if the backlog had nothing else",
        _counts_what_is_gone,
    ),
    Intended(
        "a chunk that is given back alone is delivered again",
        "Pulsar holds it until its consumer leaves. The Python client gives back the last chunk only, and drops it when"
        " it comes alone: a chunked message of a Shared subscription does not come again on either server",
    ),
    Intended(
        "a topic without retention is trimmed at intervals",
        "Pulsar also trims when a ledger begins, such as after an unload",
    ),
)
