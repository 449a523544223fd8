"""The choice of a dispatcher: which one a consumer needs, and whether it fits the consumers that are connected."""

from __future__ import annotations

from magnetar.broker.dispatch.context import DispatchContext
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.single_active import SingleActiveDispatcher
from magnetar.broker.subscriptions.consumer import Consumer, SubscriptionType
from magnetar.errors import SubscriptionTypeError


def choose_dispatcher(context: DispatchContext, consumer: Consumer, before: Dispatcher | None) -> Dispatcher:
    """Returns `before` if it suits the consumer, because it may know of delayed entries, and otherwise a new one."""
    if before is not None and not _difference(before, consumer):
        return before
    if consumer.type is SubscriptionType.SHARED:
        return SharedDispatcher(context)
    if consumer.type is SubscriptionType.KEY_SHARED:
        return KeySharedDispatcher(context, consumer.key_shared)
    return SingleActiveDispatcher(context, consumer.type)


def check_compatible(dispatcher: Dispatcher, consumer: Consumer) -> None:
    """Raises SubscriptionTypeError if the consumer wants another kind of dispatch than the connected ones."""
    difference = _difference(dispatcher, consumer)
    if difference:
        raise SubscriptionTypeError(
            f"consumer {consumer.shown} {difference}: connect with the same settings, or wait until they are closed"
        )


def _difference(dispatcher: Dispatcher, consumer: Consumer) -> str:
    """Returns what the consumer wants and the dispatcher does not do; empty if nothing."""
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
