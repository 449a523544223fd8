"""A broker's refusals as our errors. What is not in the table may help to try again, as Apache's client has it."""

from __future__ import annotations

from magnetar.errors import (
    BrokerError,
    BrokerUnavailableError,
    ConsumerAssignError,
    ConsumerBusyError,
    IncompatibleSchemaError,
    InvalidNameError,
    MagnetarError,
    NotAllowedError,
    ProducerBusyError,
    ProducerFencedError,
    ServiceNotReadyError,
    TooManyRequestsError,
    TopicNotFoundError,
    TopicTerminatedError,
    UnsupportedRequestError,
)
from magnetar.wire.pulsar.proto import pulsar_api_pb2 as api

_CLASSES: dict[int, type[MagnetarError]] = {
    api.AuthenticationError: BrokerError,
    api.AuthorizationError: BrokerError,
    api.ConsumerBusy: ConsumerBusyError,
    api.ServiceNotReady: ServiceNotReadyError,
    api.ChecksumError: BrokerError,
    api.UnsupportedVersionError: UnsupportedRequestError,
    api.TopicNotFound: TopicNotFoundError,
    api.SubscriptionNotFound: BrokerError,
    api.ConsumerNotFound: BrokerError,
    api.TooManyRequests: TooManyRequestsError,
    api.TopicTerminatedError: TopicTerminatedError,
    api.ProducerBusy: ProducerBusyError,
    api.InvalidTopicName: InvalidNameError,
    api.IncompatibleSchema: IncompatibleSchemaError,
    api.ConsumerAssignError: ConsumerAssignError,
    api.TransactionCoordinatorNotFound: BrokerError,
    api.InvalidTxnStatus: BrokerError,
    api.NotAllowedError: NotAllowedError,
    api.TransactionConflict: BrokerError,
    api.TransactionNotFound: BrokerError,
    api.ProducerFenced: ProducerFencedError,
}
_ENDS_OPENING = (ConsumerBusyError, ProducerBusyError)
"""Worth another try only when the application says so: somebody else is there, and may stay."""


def refusal(code: int, message: str) -> MagnetarError:
    """Of the error number and text in a broker's answer."""
    name = api.ServerError.Name(code) if code in api.ServerError.values() else f"error {code}"
    return _CLASSES.get(code, BrokerUnavailableError)(f"{name}: {message}" if message else name)


def is_worth_another_try(error: MagnetarError, *, is_opening: bool) -> bool:
    return error.retryable and not (is_opening and isinstance(error, _ENDS_OPENING))
