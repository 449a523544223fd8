"""`magnetar groups`: list, describe, move and delete consumer groups of Kafka clients.

The commands speak Kafka's protocol, so that they show what clients of a group see, and work with brokers of Apache
Kafka as well.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias

import typer

from magnetar.cli.output import EXIT_INTERRUPTED, AsJson, Yes, confirm, print_json, print_table
from magnetar.client.kafka import END, START, GroupState, KafkaClient, Place
from magnetar.errors import ArgumentError, BrokerUnavailableError, NotAllowedError, ResourceMissingError
from magnetar.runtime.event_loop import run
from magnetar.topic.position import EARLIEST, LATEST
from magnetar.topic.seek_targets import (
    AtIndex,
    AtMessage,
    AtTime,
    MessagesAgo,
    SeekTarget,
    TimeAgo,
    parse_seek_target,
)

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"

Bootstrap: TypeAlias = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT",
        envvar="MAGNETAR_KAFKA",
        help="A broker's address for Kafka clients, or several with commas between them.",
    ),
]
GroupArgument: TypeAlias = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]

app = typer.Typer(no_args_is_help=True, help="List, describe, move and delete consumer groups of Kafka clients.")


def _run(command: Callable[[KafkaClient], Awaitable[None]], bootstrap: str) -> None:
    async def main() -> bool:
        async with KafkaClient(bootstrap) as client:
            try:
                await command(client)
            except BrokerUnavailableError as error:
                raise BrokerUnavailableError(
                    f"{error}: start a broker with kafka.enabled=true, or say where it is with --bootstrap or "
                    "MAGNETAR_KAFKA"
                ) from error
        return True

    if run(main) is None:
        raise typer.Exit(EXIT_INTERRUPTED)


@app.command(name="list")
def list_(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """List the groups of all brokers."""

    async def command(client: KafkaClient) -> None:
        groups = await client.list_groups()
        if as_json:
            print_json(groups)
        else:
            print_table(["group", "state", "type"], [list(group.values()) for group in groups])

    _run(command, bootstrap)


@app.command()
def describe(group: GroupArgument, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show what a group has read of each partition, how much is left, and which member reads it."""

    async def command(client: KafkaClient) -> None:
        found = await client.describe(group)
        committed = await client.committed(group)
        if not found.exists and not committed:
            raise _missing(group)
        places = sorted({*committed, *(place for member in found.members for place in member.assigned)})
        ends = await client.list_offsets(dict.fromkeys(places, END))
        rows = [_row(place, committed, ends, found) for place in places]
        if as_json:
            print_json(
                {"group": group, "state": found.state, "members": len(found.members), "partitions": rows},
            )
            return
        print(f"group {group}: {found.state}, members: {len(found.members)}")
        columns = ["topic", "partition", "committed", "end", "lag", "member", "host"]
        print_table(columns, [["-" if cell is None else cell for cell in row.values()] for row in rows])

    _run(command, bootstrap)


def _row(
    place: Place, committed: Mapping[Place, int], ends: Mapping[Place, int], group: GroupState
) -> dict[str, object]:
    """What is not known is None: nothing was committed, or the partition does not exist any more."""
    offset, end = committed.get(place), ends.get(place)
    member = next((member for member in group.members if place in member.assigned), None)
    return {
        "topic": place[0],
        "partition": place[1],
        "committed": offset,
        "end": end,
        "lag": None if offset is None or end is None else max(0, end - offset),
        "member": member and member.member_id,
        "host": member and member.host,
    }


@app.command()
def reset_offsets(
    group: GroupArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="POSITION",
            help="Position: earliest, latest, -1000 (messages before the end), -10m (minutes ago), a time, or index:42 "
            "(an offset).",
        ),
    ],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="TOPIC", help="Topic to move; may be repeated. Default: all that the group has read."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the new offsets, and change nothing.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Move a group without members to another position, on all partitions of its topics."""
    target = _target(to)

    async def command(client: KafkaClient) -> None:
        members = (await client.describe(group)).members
        if members and not dry_run:
            raise NotAllowedError(f"group {group} has members, which commit their own offsets: end them first")
        before = await client.committed(group)
        if not before and not topics:
            raise _missing(group)
        names = topics or sorted({topic for topic, _ in before})
        places = [place for topic in names for place in await client.partitions(topic)]
        after = await _offsets(client, target, places)
        if not dry_run:
            await client.commit(group, after)
        rows: list[dict[str, Any]] = [
            {"topic": place[0], "partition": place[1], "before": before.get(place), "after": after[place]}
            for place in places
        ]
        if as_json:
            print_json(rows)
        else:
            columns = ["topic", "partition", "before", "after"]
            print_table(columns, [["-" if cell is None else cell for cell in row.values()] for row in rows])

    _run(command, bootstrap)


def _target(text: str) -> SeekTarget:
    target = parse_seek_target(text)
    if isinstance(target, AtMessage) and target.position not in (EARLIEST, LATEST):
        raise ArgumentError(f"{text} is the id of a message, which Kafka's groups do not have: write index:OFFSET")
    return target


async def _offsets(client: KafkaClient, target: SeekTarget, places: Sequence[Place]) -> dict[Place, int]:
    """Returns where the target is in each partition: at least its first offset, at most the next one."""
    starts = await client.list_offsets(dict.fromkeys(places, START))
    ends = await client.list_offsets(dict.fromkeys(places, END))
    if missing := [f"{topic}-{index}" for topic, index in places if (topic, index) not in starts.keys() & ends.keys()]:
        raise BrokerUnavailableError(f"{', '.join(missing)} has no leader now: try again later")
    match target:
        case AtIndex(index):
            wanted = dict.fromkeys(places, index)
        case MessagesAgo(count):
            wanted = {place: ends[place] - count for place in places}
        case AtTime(ms):
            wanted = await client.list_offsets(dict.fromkeys(places, ms))
        case TimeAgo(ms):
            wanted = await client.list_offsets(dict.fromkeys(places, max(0, round(time.time() * 1000) - ms)))
        case AtMessage(position):
            wanted = starts if position == EARLIEST else ends
    is_time = isinstance(target, AtTime | TimeAgo)
    return {
        place: ends[place] if is_time and wanted[place] < 0 else min(max(wanted[place], starts[place]), ends[place])
        for place in places
    }


@app.command()
def delete(group: GroupArgument, yes: Yes = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Delete a group without members, with the offsets that it has committed."""
    confirm(f"Delete group {group}?", yes)

    async def command(client: KafkaClient) -> None:
        await client.delete(group)

    _run(command, bootstrap)


def _missing(group: str) -> ResourceMissingError:
    return ResourceMissingError(f"group {group} does not exist: `magnetar groups list` shows those that do")
