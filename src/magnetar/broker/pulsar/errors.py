"""The protocol's names for our errors. The nearest class of an error that has a name there counts.

`ServiceNotReady` makes clients look the topic up again and retry; `ProducerFenced` and similar errors are final.
"""

from __future__ import annotations

from typing import Final

from magnetar import errors
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import ServerError

_CODES: Final[dict[type[BaseException], int]] = {
    errors.MagnetarError: ServerError.UnknownError,
    errors.InvalidNameError: ServerError.InvalidTopicName,
    errors.MetadataError: ServerError.MetadataError,
    errors.MetadataUnavailableError: ServerError.ServiceNotReady,
    errors.SessionExpiredError: ServerError.ServiceNotReady,
    errors.OutcomeUnknownError: ServerError.ServiceNotReady,
    errors.LedgerError: ServerError.PersistenceError,
    errors.NotEnoughBookiesError: ServerError.PersistenceError,
    errors.DigestMismatchError: ServerError.ChecksumError,
    errors.ServiceNotReadyError: ServerError.ServiceNotReady,
    errors.ClosedError: ServerError.ServiceNotReady,
    errors.TooManyRequestsError: ServerError.TooManyRequests,
    errors.NotAllowedError: ServerError.NotAllowedError,
    errors.UnsupportedRequestError: ServerError.UnsupportedVersionError,
    errors.TopicNotFoundError: ServerError.TopicNotFound,
    errors.TopicTerminatedError: ServerError.TopicTerminatedError,
    errors.ProducerBusyError: ServerError.ProducerBusy,
    errors.ProducerFencedError: ServerError.ProducerFenced,
    errors.DuplicateUndecidedError: ServerError.PersistenceError,
    errors.MessageTooLargeError: ServerError.NotAllowedError,
    errors.EntryTooLargeError: ServerError.NotAllowedError,
    errors.LogBusyError: ServerError.TooManyRequests,
    errors.CursorError: ServerError.PersistenceError,
    errors.CursorMissingError: ServerError.SubscriptionNotFound,
    errors.CursorFencedError: ServerError.ServiceNotReady,
    errors.CursorClosedError: ServerError.ServiceNotReady,
    errors.ConsumerBusyError: ServerError.ConsumerBusy,
    errors.SubscriptionTypeError: ServerError.ConsumerBusy,
    errors.SubscriptionFencedError: ServerError.ServiceNotReady,
    errors.ConsumerAssignError: ServerError.ConsumerAssignError,
    errors.ResourceMissingError: ServerError.TopicNotFound,
    errors.ResourceLimitError: ServerError.NotAllowedError,
    errors.PoliciesUnavailableError: ServerError.ServiceNotReady,
    errors.SchemaError: ServerError.IncompatibleSchema,
    errors.SchemaMissingError: ServerError.TopicNotFound,
    errors.SchemaUnavailableError: ServerError.ServiceNotReady,
    TimeoutError: ServerError.ServiceNotReady,
}

_QUOTA_CODES: Final = {
    "producer_request_hold": ServerError.ProducerBlockedQuotaExceededError,
    "producer_exception": ServerError.ProducerBlockedQuotaExceededException,
}


def code_of(error: BaseException) -> int:
    """Returns a `ServerError`."""
    if isinstance(error, errors.BacklogQuotaExceededError):
        return _QUOTA_CODES.get(error.policy, ServerError.ProducerBlockedQuotaExceededException)
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    return ServerError.UnknownError


def publish_code_of(error: BaseException) -> int:
    """Returns the error of a refused message, where clients know few: what is not final makes them send it again."""
    if isinstance(error, errors.TopicTerminatedError):
        return ServerError.TopicTerminatedError
    if isinstance(error, errors.DigestMismatchError):
        return ServerError.ChecksumError
    if isinstance(error, errors.NotAllowedError):
        return ServerError.NotAllowedError
    return ServerError.PersistenceError


def message_of(error: BaseException) -> str:
    return str(error) or type(error).__name__
