"""A bookie's answers. One enum for both protocol versions: its values are v2's numbers, `status` gives v3's.

Failure:   an unknown number is a protocol error of the peer: a guess could turn "not stored" into "stored".
"""

from __future__ import annotations

import enum

from magnetar.errors import RemoteProtocolError


class Code(enum.IntEnum):
    """Named as in BookKeeper, so that its logs and ours can be searched for the same word."""

    EOK = 0
    ENOLEDGER = 1
    """No entry of this ledger was ever stored here."""
    ENOENTRY = 2
    EBADREQ = 100
    """The request is invalid, or for an operation that the server lacks."""
    EIO = 101
    EUA = 102
    """Unauthorised: wrong or missing master key, or not authenticated."""
    EBADVERSION = 103
    EFENCED = 104
    """Another client has taken the ledger over; only its recovery adds are accepted."""
    EREADONLY = 105
    ETOOMANYREQUESTS = 106
    EUNKNOWNLEDGERSTATE = 107
    """Limbo: this bookie may have lost entries of the ledger, so "no such entry" would be a guess."""

    @property
    def status(self) -> int:
        """The number of this code in v3."""
        return _STATUS[self]


_STATUS = {
    Code.EOK: 0,
    Code.ENOLEDGER: 402,
    Code.ENOENTRY: 403,
    Code.EBADREQ: 404,
    Code.EIO: 501,
    Code.EUA: 502,
    Code.EBADVERSION: 503,
    Code.EFENCED: 504,
    Code.EREADONLY: 505,
    Code.ETOOMANYREQUESTS: 506,
    Code.EUNKNOWNLEDGERSTATE: 507,
}
_BY_NUMBER = {int(code): code for code in Code}
_BY_STATUS = {status: code for code, status in _STATUS.items()}


def code_of_number(number: int) -> Code:
    """Decodes the code of a v2 response."""
    code = _BY_NUMBER.get(number)
    if code is None:
        raise RemoteProtocolError(f"response code {number} is unknown in protocol v2")
    return code


def code_of_status(status: int) -> Code:
    """Decodes the code of a v3 response."""
    code = _BY_STATUS.get(status)
    if code is None:
        raise RemoteProtocolError(f"status code {status} is unknown in protocol v3")
    return code
