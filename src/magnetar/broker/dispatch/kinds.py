"""Which dispatcher a consumer needs, and whether it fits those that are connected already."""

from __future__ import annotations

from magnetar.broker.consumer import Consumer, SubscriptionType
from magnetar.broker.dispatch.context import DispatchContext
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.single_active import SingleActiveDispatcher
from magnetar.errors import SubscriptionTypeError


def make_dispatcher(context: DispatchContext, consumer: Consumer, before: Dispatcher | None) -> Dispatcher:
    """The one there was, if it does: it may know of delayed entries."""
    if before is not None and not _difference(before, consumer):
        return before
    if consumer.type is SubscriptionType.SHARED:
        return SharedDispatcher(context)
    if consumer.type is SubscriptionType.KEY_SHARED:
        return KeySharedDispatcher(context, consumer.key_shared)
    return SingleActiveDispatcher(context, consumer.type)


def check_compatible(dispatcher: Dispatcher, consumer: Consumer) -> None:
    """SubscriptionTypeError if not."""
    difference = _difference(dispatcher, consumer)
    if difference:
        raise SubscriptionTypeError(
            f"consumer {consumer.name!r} {difference}: connect with the same settings, or wait until they are closed"
        )


def _difference(dispatcher: Dispatcher, consumer: Consumer) -> str:
    """What the consumer wants otherwise; empty if nothing."""
    if consumer.type is not dispatcher.type:
        return (
            f"wants a subscription of type {consumer.type.shown}, the connected consumers have {dispatcher.type.shown}"
        )
    if not isinstance(dispatcher, KeySharedDispatcher):
        return ""
    wanted = consumer.key_shared
    if wanted.mode is not dispatcher.mode:
        return f"wants Key_Shared mode {wanted.mode.name}, the connected consumers have {dispatcher.mode.name}"
    if wanted.allow_out_of_order is dispatcher.is_ordered:
        return (
            "wants keys in order and the connected consumers do not"
            if not wanted.allow_out_of_order
            else ("allows keys out of order and the connected consumers do not")
        )
    return ""
