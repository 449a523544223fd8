"""Publishing what was staged, over REST: done, refused with a reason, or sent to the right broker."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.broker.ownership import BrokerAddress, Owner
from magnetar.broker.staged.publishing import StagedPublishing
from magnetar.errors import StillPublishingError
from tests.unit.admin.admin_world import AdminWorld
from tests.unit.broker.test_staged_publishing import decide
from tests.unit.staging.staging_world import OWNER, StagingWorld, staging_world

pytestmark = pytest.mark.virtual_time

PATH = "/admin/v2/persistent/public/default/out/staged"
WHO = "?owner=spark%2F5f0c-query"


def admin(world: StagingWorld) -> AdminWorld:
    return AdminWorld(world.broker_world)


async def test_an_intent_is_published_by_asking_and_asking_again_is_harmless() -> None:
    async with staging_world() as world:
        await decide(world, ["a", "b"])
        rest = admin(world)
        answers = await asyncio.gather(*(rest.call("POST", f"{PATH}/0{WHO}") for _ in range(3)))
        assert [answer.status for answer in answers] == [204, 204, 204]
        assert await world.texts() == ["a", "b"]
        await world.sink().recover(OWNER)
        assert (await rest.call("DELETE", f"{PATH}{WHO}")).status == 204
        assert (await rest.call("POST", f"{PATH}/0{WHO}")).status == 204
        assert await world.texts() == ["a", "b"]


async def test_what_cannot_be_published_is_refused_with_a_reason() -> None:
    async with staging_world() as world:
        rest = admin(world)
        nobody = await rest.call("POST", f"{PATH}/0")
        assert (nobody.status, "owner" in nobody.reason) == (400, True)
        nothing = await rest.call("POST", f"{PATH}/0{WHO}")
        assert (nothing.status, "has not committed epoch" in nothing.reason) == (409, True)
        assert (await rest.call("POST", f"{PATH}/x{WHO}")).status == 400


async def test_a_copy_that_takes_long_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def publish(*_args: object, **_named: object) -> None:
        raise StillPublishingError("ask again")

    async with staging_world() as world:
        monkeypatch.setattr(StagedPublishing, "publish", publish)
        assert (await admin(world).call("POST", f"{PATH}/0{WHO}")).status == 202


async def test_another_brokers_topic_is_asked_for_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async with staging_world() as world:
        elsewhere = Owner(BrokerAddress("b:8080", "http://b:8080", {}), is_here=False)

        async def owner_of(_topic: object, **_named: object) -> Owner:
            return elsewhere

        monkeypatch.setattr(world.broker_world.broker.service.ownership, "owner_of", owner_of)
        answer = await admin(world).call("POST", f"{PATH}/0{WHO}")
        location = f"http://b:8080{PATH}/0{WHO}&authoritative=false"
        assert (answer.status, answer.headers["location"]) == (307, location)
