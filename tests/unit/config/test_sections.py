"""Sections made directly: bounds and relations hold however a section comes to be."""

from __future__ import annotations

import dataclasses

import pytest

from magnetar.config.balance import BalanceConfig
from magnetar.config.metadata import MetadataConfig, SqliteConfig, ZooKeeperConfig
from magnetar.config.process import LoggingConfig
from magnetar.config.pulsar import PulsarConfig
from magnetar.config.root import KEYS, Config
from magnetar.errors import ConfigError
from tests.rows import every_row


def test_the_defaults_are_valid_and_fit_their_bounds() -> None:
    Config()
    for path, key in KEYS.items():
        assert key.knob.complaint(key.knob.default) is None, path


def test_every_key_says_what_it_does_in_a_sentence() -> None:
    for path, key in KEYS.items():
        assert key.knob.what.endswith("."), path


def test_every_integer_has_a_lower_bound() -> None:
    for path, key in KEYS.items():
        assert key.knob.type is not int or key.knob.within is not None, path


def test_no_two_keys_share_an_environment_variable() -> None:
    variables = [key.variable for key in KEYS.values()]
    assert len(set(variables)) == len(variables)


def test_a_section_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        MetadataConfig().url = "memory:"  # type: ignore[misc]


@pytest.mark.parametrize("value", [0, -1, 99, 3_600_001])
def test_a_value_out_of_range_is_refused_with_the_range(value: int) -> None:
    with pytest.raises(ConfigError, match=rf"session_timeout_ms: {value} is out of range: allowed is 100 to 3_600_000"):
        MetadataConfig(session_timeout_ms=value)


@pytest.mark.parametrize("value", [100, 3_600_000])
def test_the_bounds_themselves_are_allowed(value: int) -> None:
    assert MetadataConfig(session_timeout_ms=value).session_timeout_ms == value


def test_a_value_that_zookeeper_could_not_carry_is_refused() -> None:
    with pytest.raises(ConfigError, match="value_bytes_max: 1048576 is out of range"):
        MetadataConfig(value_bytes_max=2**20)


def test_true_is_not_taken_for_the_integer_one() -> None:
    with pytest.raises(ConfigError, match="group_operations_max: True is not an integer"):
        SqliteConfig(group_operations_max=True)


def test_a_value_that_is_not_among_the_choices_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="'LOUD' is not one of DEBUG, INFO, WARNING, ERROR"):
        LoggingConfig(level="LOUD")


@every_row(
    "root", ["", "/", "ledgers", "/ledgers/", "//ledgers", "/a//b", "/a/../b", "/./a", "/a/.", "/a\x00b", "/a\n"]
)
def test_a_ledgers_root_that_is_no_absolute_normalised_path_is_refused(root: str) -> None:
    with pytest.raises(ConfigError, match=r"metadata\.ledgers_root"):
        MetadataConfig(ledgers_root=root)


@pytest.mark.parametrize("root", ["/ledgers", "/pulsar/ledgers", "/a.b/..c"])
def test_a_ledgers_root_may_be_any_absolute_path(root: str) -> None:
    assert MetadataConfig(ledgers_root=root).ledgers_root == root


def test_an_empty_url_is_refused_with_the_forms_it_may_have() -> None:
    with pytest.raises(ConfigError, match="use memory:, sqlite:PATH or zk://"):
        MetadataConfig(url="")


@pytest.mark.parametrize("name", ["tls_ca_file", "tls_cert_file", "tls_key_file"])
def test_a_tls_file_without_tls_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"zookeeper\.{name} is set but zookeeper\.tls is false"):
        ZooKeeperConfig(**{name: "x.pem"})


def test_a_private_key_without_a_certificate_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"without zookeeper\.tls_cert_file"):
        ZooKeeperConfig(tls=True, tls_key_file="key.pem")


def test_a_certificate_file_may_hold_the_key_too() -> None:
    ZooKeeperConfig(tls=True, tls_cert_file="both.pem")
    ZooKeeperConfig(tls=True, tls_cert_file="cert.pem", tls_key_file="key.pem", tls_ca_file="ca.pem")


def test_nodes_for_their_creator_need_somebody_to_be_the_creator() -> None:
    with pytest.raises(ConfigError, match=r"acl is creator but zookeeper\.auth_digest is empty"):
        ZooKeeperConfig(acl="creator")
    ZooKeeperConfig(acl="creator", auth_digest="user:pass:word")


@pytest.mark.parametrize("digest", ["hunter2", ":hunter2", "hunter2:"])
def test_a_malformed_digest_is_refused_without_being_repeated(digest: str) -> None:
    with pytest.raises(ConfigError, match="user:password") as caught:
        ZooKeeperConfig(auth_digest=digest)
    assert "hunter2" not in str(caught.value)


def test_a_secret_is_not_in_the_representation_of_its_section() -> None:
    assert "hunter2" not in repr(Config(zookeeper=ZooKeeperConfig(auth_digest="magnetar:hunter2")))


def test_a_secret_of_the_wrong_type_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        ZooKeeperConfig(auth_digest=4711)  # type: ignore[arg-type]
    assert str(caught.value) == "ZooKeeperConfig.auth_digest: **** is not a string"


@pytest.mark.parametrize(
    "listeners", ["a", "a:http://b:1", "a:pulsar://b", "a:pulsar://b:x", "a:pulsar://[::1", "a:pulsar://:1"]
)
def test_a_listener_that_is_none_says_what_one_looks_like(listeners: str) -> None:
    with pytest.raises(ConfigError, match="write name:pulsar://host:port"):
        PulsarConfig(advertised_listeners=listeners)


def test_a_broker_does_not_begin_to_shed_below_the_load_at_which_it_ends() -> None:
    with pytest.raises(ConfigError, match=r"excess_end_percent is 30, more than balance\.excess_begin_percent, 25"):
        BalanceConfig(excess_end_percent=30)
