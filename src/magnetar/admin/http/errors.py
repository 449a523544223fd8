"""From errors to HTTP: Pulsar's status codes, with `{"reason": …}` for a body.

Read next: app.py (where they are caught)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final, Self

from magnetar import errors
from magnetar.broker.ownership import Owner
from magnetar.errors import MagnetarError, MalformedMetadataError


class RestError(MagnetarError):
    """Is the answer to a request that cannot be done."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@contextlib.contextmanager
def refusing_malformed() -> Iterator[None]:
    """Makes malformed input inside an error of the request, which the client has to correct."""
    try:
        yield
    except MalformedMetadataError as error:
        raise RestError(BAD_REQUEST, str(error)) from None


class ElsewhereError(MagnetarError):
    """Names another broker, which serves what the request is about, or is to become its owner (`is_authoritative`), or
    chooses one."""

    def __init__(self, http_url: str, *, is_authoritative: bool = False) -> None:
        super().__init__(f"ask {http_url}")
        self.http_url = http_url
        self.is_authoritative = is_authoritative

    @classmethod
    def of(cls, owner: Owner) -> Self:
        is_chosen = owner.is_candidate and owner.is_authoritative
        return cls(owner.address.http_url, is_authoritative=is_chosen)


BAD_REQUEST: Final = 400
NOT_FOUND: Final = 404
NOT_ALLOWED: Final = 405
NOT_ACCEPTABLE: Final = 406
CONFLICT: Final = 409
PRECONDITION_FAILED: Final = 412
TOO_LARGE: Final = 413
UNPROCESSABLE: Final = 422
FAILED: Final = 500
NOT_IMPLEMENTED: Final = 501
UNAVAILABLE: Final = 503

_STATUS: Final[tuple[tuple[type[MagnetarError], int], ...]] = (  # The first class that fits.
    (errors.InvalidNameError, PRECONDITION_FAILED),
    (errors.ResourceMissingError, NOT_FOUND),
    (errors.TopicNotFoundError, NOT_FOUND),
    (errors.CursorMissingError, NOT_FOUND),
    (errors.SchemaMissingError, NOT_FOUND),
    (errors.ResourceExistsError, CONFLICT),
    (errors.CursorExistsError, CONFLICT),
    (errors.ResourceInUseError, CONFLICT),
    (errors.BadVersionError, CONFLICT),
    (errors.CompactionError, CONFLICT),
    (errors.EpochOrderError, CONFLICT),
    (errors.ResourceLimitError, PRECONDITION_FAILED),
    (errors.InvalidPolicyError, PRECONDITION_FAILED),
    (errors.InvalidCursorPositionError, PRECONDITION_FAILED),
    (errors.ConsumerBusyError, PRECONDITION_FAILED),
    (errors.SubscriptionFencedError, PRECONDITION_FAILED),
    (errors.TopicTerminatedError, NOT_ALLOWED),
    (errors.NotAllowedError, NOT_ALLOWED),
    (errors.UnsupportedRequestError, NOT_IMPLEMENTED),
    (errors.IncompatibleSchemaError, CONFLICT),
    (errors.InvalidSchemaError, UNPROCESSABLE),
)


def status_of(error: MagnetarError) -> int:
    if isinstance(error, RestError):
        return error.status
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return UNAVAILABLE if error.retryable else FAILED
