"""Jobs that copy a topic are killed at every point of the exactly-once protocol, and others go on.

Nothing is lost, doubled or out of order. With the decisive step taken out, the same tests notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from interop.spark.kill_cases import (
    IN_TASKS,
    IN_THE_BROKER,
    ON_THE_DRIVER,
    KillTest,
    at_every_point,
    on_a_cluster,
    without_intent,
)
from interop.spark.messages import Verdict

pytestmark = pytest.mark.timeout(1_800)

Verdicts = Mapping[str, Verdict]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kills")


@pytest.fixture(scope="module")
def killed(directory: Path) -> Iterator[Callable[[Callable[[KillTest], Verdicts]], Verdicts]]:
    """Does a group once, when it is asked for first; one that failed is not done again for each of its tests."""
    done: dict[Callable[[KillTest], Verdicts], Verdicts | Exception] = {}
    with closing(KillTest(directory / "whole")) as test:

        def verdicts_of(group: Callable[[KillTest], Verdicts]) -> Verdicts:
            if group not in done:
                try:
                    done[group] = group(test)
                except Exception as error:
                    done[group] = error
            found = done[group]
            if isinstance(found, Exception):
                raise found
            return found

        yield verdicts_of


@pytest.fixture(scope="module")
def crippled(directory: Path) -> Verdicts:
    with closing(KillTest(directory / "without-intent", without_intent=True)) as test:
        return without_intent(test)


@pytest.mark.parametrize("point", [*IN_TASKS, *ON_THE_DRIVER, IN_THE_BROKER])
def test_a_job_killed_at_this_point_copies_every_message_once_and_in_order(killed, point: str) -> None:
    verdict = killed(at_every_point)[point]
    assert verdict.passed, verdict


@pytest.mark.parametrize("point", ["mid-append", "acked-not-returned", "intent-reply-lost"])
def test_on_a_cluster_a_loss_at_this_point_leaves_every_message_once_and_in_order(killed, point: str) -> None:
    verdict = killed(on_a_cluster)[point]
    assert verdict.passed, verdict


@pytest.mark.parametrize("point", ["intent-reply-lost", "mid-copy"])
def test_without_the_intent_a_kill_at_this_point_doubles_messages(crippled: Verdicts, point: str) -> None:
    verdict = crippled[point]
    assert verdict.doubled, f"this must fail, and did not: {verdict}"
