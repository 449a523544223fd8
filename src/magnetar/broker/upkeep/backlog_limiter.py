"""BacklogLimiter: holds the backlog of a persistent topic within its quota, of bytes and of age.

If the backlog exceeds it, producers are refused, or the oldest messages of the slowest subscriptions are skipped until
the backlog fits. Size and age have a policy each. Readers have no backlog: nothing is retained for them.

Read next: upkeep.py (which runs the check), broker/topics/persistent.py
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from magnetar.broker.policies.registry import EffectivePolicies
from magnetar.broker.policies.values import QuotaPolicy
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.subscriptions.subscriptions import Subscriptions
from magnetar.errors import BacklogQuotaExceededError
from magnetar.names import TopicName
from magnetar.topic.log.index import time_of
from magnetar.topic.log.log import TopicLog

log = logging.getLogger(__name__)

_SIZE_TARGET: Final = 0.9  # Skipping goes below the quota by this factor, so that it is not exceeded at once again.


@dataclass(frozen=True, slots=True)
class _Exceeded:
    """Is a quota that the backlog exceeds; each kind has a policy of its own."""

    policy: QuotaPolicy
    why: str
    make_room: Callable[[], Awaitable[None]]

    @property
    def is_skipped(self) -> bool:
        return self.policy is QuotaPolicy.SKIP_OLDEST


class BacklogLimiter:
    def __init__(
        self, topic: TopicName, policies: EffectivePolicies, topic_log: TopicLog, subscriptions: Subscriptions
    ) -> None:
        self.error: BacklogQuotaExceededError | None = None
        """Why no producer is admitted now."""
        self._topic = topic
        self._policies = policies
        self._log = topic_log
        self._subscriptions = subscriptions

    def apply(self, policies: EffectivePolicies) -> None:
        """Applies policies from the next check on."""
        self._policies = policies

    def require_room(self) -> None:
        """Raises BacklogQuotaExceededError if the backlog exceeded its quota at the last check."""
        if self.error is not None:
            raise BacklogQuotaExceededError(str(self.error), policy=self.error.policy)

    async def check(self, now_ms: int) -> None:
        """Skips first, where that is the policy: producers are refused only for what still exceeds its quota."""
        exceeded = await self._exceeded(now_ms)
        if skipping := [each for each in exceeded if each.is_skipped]:
            for each in skipping:
                await each.make_room()
            exceeded = await self._exceeded(now_ms)
        self._refuse_for(exceeded)
        if self.error is not None:
            extra = {"topic": str(self._topic), "why": str(self.error)}
            log.warning("the backlog of a topic exceeds its quota", extra=extra)

    async def refresh(self, now_ms: int) -> None:
        """Measures the backlog now, for a producer that asks to be admitted. Skips nothing."""
        self._refuse_for(await self._exceeded(now_ms))

    def _refuse_for(self, exceeded: Sequence[_Exceeded]) -> None:
        refusing = next((each for each in exceeded if not each.is_skipped), None)
        self.error = None if refusing is None else BacklogQuotaExceededError(refusing.why, policy=str(refusing.policy))

    async def _exceeded(self, now_ms: int) -> list[_Exceeded]:
        quotas = self._policies.backlog_quotas
        size, age = quotas.storage, quotas.age
        found = []
        if size.limit_bytes > 0 and (held := self.backlog_bytes()) >= size.limit_bytes:
            why = f"topic {self._topic} has a backlog of {held} bytes: its quota is {size.limit_bytes}"
            found.append(_Exceeded(size.policy, why, partial(self._skip_to_size, size.limit_bytes)))
        if age.limit_s > 0 and (old_s := await self._oldest_age_s(now_ms)) >= age.limit_s:
            why = f"the oldest message of {self._topic} is {old_s:.0f} s old: its quota is {age.limit_s} s"
            before_ms = now_ms - age.limit_s * 1000
            found.append(_Exceeded(age.policy, why, partial(self._skip_to_time, before_ms)))
        return found

    def backlog_bytes(self) -> int:
        """Returns the backlog of the durable subscription that lags most."""
        return max((self._bytes_behind(each) for each in self._subscriptions.with_backlog()), default=0)

    def _bytes_behind(self, subscription: Subscription) -> int:
        return self._log.chain.bytes_between(subscription.mark_delete, self._log.last_confirmed)

    async def _oldest_age_s(self, now_ms: int) -> float:
        mark_deletes = [each.mark_delete for each in self._subscriptions.with_backlog()]
        if not mark_deletes:
            return 0.0
        first = self._log.chain.next_position(min(mark_deletes))
        if not self._log.chain.contains(first):
            return 0.0
        entries = await self._log.read(first, 1, 1)
        if not entries:
            return 0.0
        return (now_ms - time_of(entries[0])) / 1000

    async def _skip_to_size(self, limit_bytes: int) -> None:
        for subscription in self._subscriptions.with_backlog():
            behind = self._bytes_behind(subscription)
            if behind >= limit_bytes:
                entries = subscription.backlog_entries
                await subscription.skip(max(1, int(entries * (1 - _SIZE_TARGET * limit_bytes / behind))))

    async def _skip_to_time(self, before_ms: int) -> None:
        for subscription in self._subscriptions.with_backlog():
            await subscription.expire(before_ms)
