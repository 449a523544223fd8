"""What a store reports of itself: operations by kind and outcome, how long they took, and the state of its session."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Counter, Histogram

from magnetar.metadata.requests import Request
from magnetar.metadata.session import Session, SessionState
from magnetar.runtime.metrics import Metrics


class StoreObservation:
    """Metadata operations are few, so each is counted as it ends. Looking a labelled counter up costs more than
    counting, so each is looked up once: kinds and outcomes are classes of ours, and few."""

    def __init__(self, metrics: Metrics, session: Session) -> None:
        self._operations = metrics.counter(
            "magnetar_metadata_operations_total",
            "Operations on the metadata store that ended, by kind and by outcome: ok or the name of the error.",
            ("operation", "outcome"),
        )
        self._seconds = metrics.histogram(
            "magnetar_metadata_operation_seconds",
            "From the call to the answer, waiting for a lost connection included.",
            ("operation",),
        )
        self._counts: dict[tuple[type[Request], type[BaseException] | None], Counter] = {}
        self._times: dict[type[Request], Histogram] = {}
        self._changes = metrics.counter(
            "magnetar_metadata_session_changes_total", "Times a session came into this state.", ("state",)
        )
        self._stop: tuple[Callable[[], None], ...] = (
            metrics.gauge_callback(
                "magnetar_metadata_sessions_usable",
                "Sessions that can be used now; the others are disconnected or expired.",
                lambda: float(session.state.is_usable),
            ),
            session.listen(self._on_state),
        )

    def finished(self, request: Request, error: BaseException | None, seconds: float) -> None:
        kind, outcome = type(request), None if error is None else type(error)
        count = self._counts.get((kind, outcome))
        if count is None:
            name = "ok" if outcome is None else outcome.__name__
            count = self._counts[kind, outcome] = self._operations.labels(kind.__name__.lower(), name)
            self._times.setdefault(kind, self._seconds.labels(kind.__name__.lower()))
        count.inc()
        self._times[kind].observe(seconds)

    def _on_state(self, state: SessionState) -> None:
        self._changes.labels(state.value).inc()
        if state is SessionState.CLOSED:
            for stop in self._stop:
                stop()
