from __future__ import annotations

from magnetar.broker.cluster import decisions
from magnetar.broker.cluster.decisions import Decision, Decisions, Why
from magnetar.broker.resources.bundles import Bundles, NamespaceBundle
from magnetar.names import NamespaceName


def test_the_oldest_decisions_are_forgotten_beyond_a_number() -> None:
    kept = decisions._KEPT
    book = Decisions()
    bundle = NamespaceBundle(NamespaceName.parse("public/default"), Bundles.equal(1).all()[0])
    others = [NamespaceBundle(NamespaceName.parse(f"public/{number}"), bundle.bundle) for number in range(kept)]
    for each in [bundle, *others]:
        book.note(each, Decision("b", 1, Why.LOAD, ""))
    assert book.on(bundle) is None
    assert book.on(others[0]) is not None
    book.forget(others[0])
    assert book.on(others[0]) is None
