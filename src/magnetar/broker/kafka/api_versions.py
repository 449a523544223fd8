"""ApiVersions: which requests this broker serves, and in which versions.

A request in a version that is not known here is answered in version 0, which every client can read, with the error
UNSUPPORTED_VERSION. Produce is listed from version 0 on, although it is served from 3 on: librdkafka does not
compress if the list begins later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from magnetar.broker.kafka.session import Session
from magnetar.wire.kafka.codec import Value
from magnetar.wire.kafka.error_codes import ErrorCode
from magnetar.wire.kafka.frames import RequestHead
from magnetar.wire.kafka.tables import API_VERSIONS, PRODUCE

_SOFTWARE_SINCE: Final = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", re.ASCII)


async def handle(session: Session, head: RequestHead, request: Value) -> Mapping[str, Any]:
    if not API_VERSIONS.serves(head.version):
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": [_range(API_VERSIONS)]}
    if head.version >= _SOFTWARE_SINCE and not (
        _SOFTWARE.fullmatch(request["client_software_name"]) and _SOFTWARE.fullmatch(request["client_software_version"])
    ):
        return {"error_code": ErrorCode.INVALID_REQUEST, "api_keys": []}
    return {"api_keys": [_range(api) for api, _ in session.shared.handlers.values()]}


def _range(api: Any) -> Mapping[str, int]:
    version_min = 0 if api is PRODUCE else api.version_min
    return {"api_key": api.key, "min_version": version_min, "max_version": api.version_max}
