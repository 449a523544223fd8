"""Group: the members of one consumer group, their rebalances, and the offsets that the group has committed.

A rebalance begins when a member joins, leaves, changes its subscription, or is silent for its session timeout. All
members join again; the first one is the leader, and gets the subscriptions of all. It sends an assignment for each
member, which is stored before any member gets it.

    EMPTY → PREPARING → COMPLETING → STABLE      members join · the leader assigns · all have their assignments

Order:     A generation is the number of a rebalance. Requests of another generation are refused, so a member that was
           removed cannot commit what its successor has read.
Limits:    Members of a group. An empty group waits `initial_delay_s` for more members before its first assignment; a
           rebalance waits for its members up to the longest of their rebalance timeouts.
Failure:   A member whose connection ends while it joins is removed. One with an instance id (a static member) that
           comes back gets a new member id without a rebalance, and the old id is fenced.
Read next: coordinator.py
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from magnetar.errors import KafkaRefusedError, MagnetarError
from magnetar.wire.kafka.codec import Value
from magnetar.wire.kafka.error_codes import ErrorCode

MEMBERS_MAX: Final = 1_000
NO_GENERATION: Final = -1


class State(enum.Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Committed(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int


class Identity(NamedTuple):
    """How a request names its member."""

    member_id: str
    instance_id: str | None = None


@dataclass(slots=True, eq=False)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    session_s: float
    rebalance_s: float
    protocols: Sequence[tuple[str, bytes]]
    assignment: bytes = b""
    joining: asyncio.Future[Value] | None = None
    syncing: asyncio.Future[bytes] | None = None
    session: asyncio.TimerHandle | None = None

    def subscription(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


@dataclass(frozen=True, slots=True)
class Settings:
    initial_delay_s: float
    new_id: Callable[[], str]
    save: Callable[[Group], Coroutine[Any, Any, None]]
    """Stores the members and the generation; returns when they are durable."""
    run: Callable[[Coroutine[Any, Any, None]], object]
    """Begins work that no request waits for."""


@dataclass(slots=True, eq=False)
class Group:
    name: str
    settings: Settings
    state: State = State.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    offsets: dict[tuple[str, int], Committed] = field(default_factory=dict)
    empty_since_ms: int | None = None
    """When its last member left; None while it has members, and if it never had any."""
    _reserved: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    """Member ids that were given to clients which have not joined with them yet."""
    _timer: asyncio.TimerHandle | None = None
    _is_gathering: bool = False
    """Whether an empty group waits for more members."""
    _has_grown: bool = False

    @property
    def is_unused(self) -> bool:
        """Whether it never had a member or an offset, and no client is about to join."""
        is_new = self.state is State.EMPTY and self.generation == 0 and self.empty_since_ms is None
        return is_new and not (self.members or self.offsets or self._reserved)

    # --- joining ------------------------------------------------------------------------------------------------------

    async def join(self, member: Member, protocol_type: str, *, needs_id: bool) -> Value:
        """Returns the answer's fields when the rebalance is complete. The member has no id yet if it is new.
        `needs_id`: a client that has none gets one first, and joins with it."""
        self._require_compatible(member, protocol_type)
        known = self._known(member)
        if known is None and len(self.members) + len(self._reserved) >= MEMBERS_MAX and not self._is_reserved(member):
            raise KafkaRefusedError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"group {self.name} has {MEMBERS_MAX} members")
        if known is None and not member.member_id:
            member.member_id = f"{member.client_id}-{self.settings.new_id()}"
            if needs_id and member.instance_id is None:
                self._reserve(member)
                raise MemberIdRequiredError(member.member_id)
        if known is not None and not member.member_id:
            return await self._replace(known, member)
        self.protocol_type = protocol_type
        if known is not None:
            if self._is_unchanged(known, member):
                self._touch(known)
                return self._joined(known)
            known.protocols = member.protocols
            known.session_s, known.rebalance_s = member.session_s, member.rebalance_s
            member = known
        else:
            self._take(member)
        return await self._rejoin(member)

    def _require_compatible(self, member: Member, protocol_type: str) -> None:
        others = [each for each in self.members.values() if each.member_id != member.member_id]
        names = {name for name, _ in member.protocols}
        common = _common(others)
        if not names or not protocol_type or (others and (protocol_type != self.protocol_type or not names & common)):
            raise KafkaRefusedError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the members of group {self.name} have no protocol in common with this one",
            )

    def _known(self, member: Member) -> Member | None:
        """Returns the member that joins again; None if it is new. KafkaRefusedError for an id that is not known."""
        if member.instance_id is not None:
            found = self._by_instance(member.instance_id)
            if found is not None and member.member_id and found.member_id != member.member_id:
                raise _fenced(member.instance_id)
            if found is None and member.member_id:
                raise _unknown(member.member_id)
            return found
        if not member.member_id or self._is_reserved(member):
            return None
        return self.find(Identity(member.member_id))

    def _is_reserved(self, member: Member) -> bool:
        return member.member_id in self._reserved

    def _reserve(self, member: Member) -> None:
        loop = asyncio.get_running_loop()
        self._reserved[member.member_id] = loop.call_later(member.session_s, self._on_not_used, member.member_id)

    def _on_not_used(self, member_id: str) -> None:
        self._reserved.pop(member_id, None)
        self._complete_if_all_joined()

    def _take(self, member: Member) -> None:
        reserved = self._reserved.pop(member.member_id, None)
        if reserved is not None:
            reserved.cancel()
        self.members[member.member_id] = member
        self._has_grown = True

    def _is_unchanged(self, known: Member, member: Member) -> bool:
        """Whether a member joins again that needs no rebalance: it has not got the last answer, for example."""
        return (
            self.state in (State.STABLE, State.COMPLETING)
            and list(known.protocols) == list(member.protocols)
            and (known.member_id != self.leader or self.state is State.COMPLETING)
        )

    async def _replace(self, old: Member, new: Member) -> Value:
        """Gives a static member that has come back the place of its former self."""
        new.member_id = f"{new.instance_id}-{self.settings.new_id()}"
        is_unchanged = self.state is State.STABLE and list(old.protocols) == list(new.protocols)
        new.assignment = old.assignment
        self.members = {
            (new.member_id if each is old else each.member_id): (new if each is old else each)
            for each in self.members.values()
        }
        _fail(old, _fenced(old.instance_id))
        self._stop_session(old)
        if is_unchanged and self.leader != old.member_id:
            self._touch(new)
            await self.settings.save(self)
            return self._joined(new)
        if self.leader == old.member_id:
            self.leader = new.member_id
        return await self._rejoin(new)

    async def _rejoin(self, member: Member) -> Value:
        _set_error(member.joining, _rebalancing())  # Of its former connection.
        joining = member.joining = asyncio.get_running_loop().create_future()
        self._stop_session(member)
        if self.state is State.PREPARING:
            self._complete_if_all_joined()
        else:
            self._prepare()
        try:
            joined: Value = await joining
        except asyncio.CancelledError:
            if member.joining is joining and self.members.get(member.member_id) is member:
                self.remove(member)
            raise
        return joined

    # --- rebalancing --------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        loop = asyncio.get_running_loop()
        self._is_gathering = self.state is State.EMPTY and self.settings.initial_delay_s > 0
        for member in self.members.values():
            _set_error(member.syncing, _rebalancing())
            member.syncing = None
        self.state = State.PREPARING
        self._cancel_timer()
        if self._is_gathering:
            self._has_grown = False
            self._gather(self._rebalance_s)
            return
        self._timer = loop.call_later(self._rebalance_s, self._complete)
        self._complete_if_all_joined()

    @property
    def _rebalance_s(self) -> float:
        return max((member.rebalance_s for member in self.members.values()), default=0.0)

    def _gather(self, left_s: float) -> None:
        delay_s = min(self.settings.initial_delay_s, left_s)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_gathered, left_s - delay_s)

    def _on_gathered(self, left_s: float) -> None:
        if self._has_grown and left_s > 0:
            self._has_grown = False
            self._gather(left_s)
            return
        self._is_gathering = False
        self._complete()

    def _complete_if_all_joined(self) -> None:
        has_all = all(member.joining is not None for member in self.members.values())
        if self.state is State.PREPARING and not self._is_gathering and has_all and not self._reserved:
            self._complete()

    def _complete(self) -> None:
        """Begins a generation with the members that have joined."""
        self._cancel_timer()
        for member in [each for each in self.members.values() if each.joining is None]:
            self._forget(member)
        self.generation += 1
        if not self.members:
            self._become_empty()
            return
        self.state = State.COMPLETING
        self.protocol = self._choose_protocol()
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        for member in self.members.values():
            joining, member.joining = member.joining, None
            if joining is not None and not joining.done():
                joining.set_result(self._joined(member))
            self._touch(member)

    def _become_empty(self) -> None:
        self.state, self.protocol, self.leader = State.EMPTY, None, None
        self.settings.run(self.settings.save(self))

    def _choose_protocol(self) -> str:
        """Returns the protocol that most members prefer, of those that all have."""
        common = _common(list(self.members.values()))
        votes: dict[str, int] = {}
        for member in self.members.values():
            preferred = next(name for name, _ in member.protocols if name in common)
            votes[preferred] = votes.get(preferred, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def _joined(self, member: Member) -> Value:
        is_leader = member.member_id == self.leader and self.state is State.COMPLETING
        members = self.members.values() if is_leader else ()
        return {
            "generation_id": self.generation,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol or "",
            "leader": self.leader or "",
            "member_id": member.member_id,
            "members": [
                {
                    "member_id": each.member_id,
                    "group_instance_id": each.instance_id,
                    "metadata": each.subscription(self.protocol),
                }
                for each in members
            ],
        }

    async def sync(self, identity: Identity, generation: int, assignments: Mapping[str, bytes]) -> bytes:
        """Returns the member's assignment when the leader has sent it and it is stored."""
        member = self._require_current(identity, generation)
        if self.state is State.PREPARING:
            raise _rebalancing()
        self._touch(member)
        if self.state is State.STABLE:
            return member.assignment
        if member.member_id != self.leader:
            _set_error(member.syncing, _rebalancing())  # Of its former connection.
            member.syncing = asyncio.get_running_loop().create_future()
            return await member.syncing
        for each in self.members.values():
            each.assignment = assignments.get(each.member_id, b"")
        try:
            await self.settings.save(self)
        except MagnetarError:
            if self.generation == generation and self.state is State.COMPLETING:
                self._prepare()
            raise
        if self.generation != generation or self.state is not State.COMPLETING:
            raise _rebalancing()
        self.state = State.STABLE
        for each in self.members.values():
            syncing, each.syncing = each.syncing, None
            if syncing is not None and not syncing.done():
                syncing.set_result(each.assignment)
        return member.assignment

    # --- members ------------------------------------------------------------------------------------------------------

    def find(self, identity: Identity) -> Member:
        """KafkaRefusedError for a member that is not known, or was replaced."""
        if identity.instance_id is not None:
            found = self._by_instance(identity.instance_id)
            if found is not None and identity.member_id and found.member_id != identity.member_id:
                raise _fenced(identity.instance_id)
        else:
            found = self.members.get(identity.member_id)
        if found is None:
            raise _unknown(identity.member_id)
        return found

    def _by_instance(self, instance_id: str) -> Member | None:
        return next((each for each in self.members.values() if each.instance_id == instance_id), None)

    def _require_current(self, identity: Identity, generation: int) -> Member:
        member = self.find(identity)
        if generation != self.generation:
            raise KafkaRefusedError(
                ErrorCode.ILLEGAL_GENERATION, f"group {self.name} is in generation {self.generation}, not {generation}"
            )
        return member

    def heartbeat(self, identity: Identity, generation: int) -> None:
        member = self._require_current(identity, generation)
        self._touch(member)
        if self.state is State.PREPARING:
            raise _rebalancing()

    def leave(self, identity: Identity) -> None:
        reserved = self._reserved.pop(identity.member_id, None)
        if reserved is not None:
            reserved.cancel()
            self._complete_if_all_joined()
            return
        self.remove(self.find(identity))

    def remove(self, member: Member) -> None:
        self._forget(member)
        if self.state in (State.STABLE, State.COMPLETING):
            self._prepare()
        else:
            self._complete_if_all_joined()

    def _forget(self, member: Member) -> None:
        self._stop_session(member)
        _fail(member, _unknown(member.member_id))
        del self.members[member.member_id]

    def require_may_commit(self, identity: Identity, generation: int) -> None:
        """KafkaRefusedError if it must not. Without members, any client may commit."""
        if generation < 0 and not identity.member_id and identity.instance_id is None:
            if self.members:
                raise _unknown("")
            return
        member = self._require_current(identity, generation)
        self._touch(member)
        if self.state is State.COMPLETING:
            raise _rebalancing()

    def _touch(self, member: Member) -> None:
        """Begins the member's session anew."""
        self._stop_session(member)
        if member.joining is None:
            loop = asyncio.get_running_loop()
            member.session = loop.call_later(member.session_s, self._on_silent, member)

    def _on_silent(self, member: Member) -> None:
        if self.members.get(member.member_id) is member:
            self.remove(member)

    def _stop_session(self, member: Member) -> None:
        if member.session is not None:
            member.session.cancel()
            member.session = None

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- restoring and ending -----------------------------------------------------------------------------------------

    def restore(self, fields: Value, members: Sequence[Member]) -> None:
        """Takes what is stored of the members. Their sessions begin with `resume`."""
        self.protocol_type, self.generation = fields["protocol_type"], fields["generation"]
        self.protocol, self.leader = fields["protocol"], fields["leader"]
        self.members = {member.member_id: member for member in members}
        self.state = State.STABLE if members else State.EMPTY

    def resume(self) -> None:
        for member in self.members.values():
            self._touch(member)

    def close(self, error: BaseException) -> None:
        """Ends what waits: another broker coordinates the group."""
        self._cancel_timer()
        for reserved in self._reserved.values():
            reserved.cancel()
        for member in self.members.values():
            self._stop_session(member)
            _fail(member, error)


class MemberIdRequiredError(KafkaRefusedError):
    """A client is to join again with the id that it got."""

    def __init__(self, member_id: str) -> None:
        super().__init__(ErrorCode.MEMBER_ID_REQUIRED, "join again with the member id of this answer")
        self.member_id = member_id


def _common(members: Sequence[Member]) -> set[str]:
    """Returns the names of the protocols that all of them have."""
    each = [{name for name, _ in member.protocols} for member in members]
    return set.intersection(*each) if each else set()


def _fail(member: Member, error: BaseException) -> None:
    for waiting in (member.joining, member.syncing):
        _set_error(waiting, error)
    member.joining = member.syncing = None


def _set_error(future: asyncio.Future[Any] | None, error: BaseException) -> None:
    if future is not None and not future.done():
        future.set_exception(error)


def _rebalancing() -> KafkaRefusedError:
    return KafkaRefusedError(ErrorCode.REBALANCE_IN_PROGRESS, "the group rebalances: join it again")


def _unknown(member_id: str) -> KafkaRefusedError:
    return KafkaRefusedError(ErrorCode.UNKNOWN_MEMBER_ID, f"the group has no member {member_id!r}: join it again")


def _fenced(instance_id: str | None) -> KafkaRefusedError:
    return KafkaRefusedError(ErrorCode.FENCED_INSTANCE_ID, f"another member has the instance id {instance_id!r}")
