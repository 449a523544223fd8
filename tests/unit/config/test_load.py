"""Loading: which source wins, and what each mistake is answered with."""

from __future__ import annotations

import pytest

from magnetar.config.load import Assignment, Effective, load
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import KEYS, Config
from magnetar.errors import ConfigError
from tests.rows import every_row


def from_toml(text: str) -> Effective:
    return load(toml=text, toml_name="magnetar.toml")


def from_environment(**variables: str) -> Effective:
    return load(environment=variables)


def from_flags(*arguments: str) -> Effective:
    return load(flags=[Assignment.parse(argument) for argument in arguments])


def origin(effective: Effective, path: str) -> str:
    return next(setting.origin for setting in effective.settings() if setting.key.path == path)


# --- precedence -------------------------------------------------------------------------------------------------------


def test_without_any_source_everything_is_the_default() -> None:
    effective = load()
    assert effective.config == Config()
    assert {setting.origin for setting in effective.settings()} == {"default"}
    assert [setting.key.path for setting in effective.settings()] == list(KEYS)


def test_file_overrides_default_environment_overrides_file_and_flag_overrides_environment() -> None:
    toml = "[metadata]\nsession_timeout_ms = 1001\noperation_timeout_ms = 1001\nconnect_timeout_ms = 1001\n"
    environment = {"MAGNETAR_METADATA_OPERATION_TIMEOUT_MS": "1002", "MAGNETAR_METADATA_CONNECT_TIMEOUT_MS": "1002"}
    flags = [Assignment.parse("metadata.connect_timeout_ms=1003")]
    effective = load(toml=toml, toml_name="magnetar.toml", environment=environment, flags=flags)
    assert effective.config.metadata == MetadataConfig(
        session_timeout_ms=1001, operation_timeout_ms=1002, connect_timeout_ms=1003
    )
    assert origin(effective, "metadata.url") == "default"
    assert origin(effective, "metadata.session_timeout_ms") == "file magnetar.toml"
    assert origin(effective, "metadata.operation_timeout_ms") == "environment MAGNETAR_METADATA_OPERATION_TIMEOUT_MS"
    assert origin(effective, "metadata.connect_timeout_ms") == "flag --set"


def test_of_repeated_flags_the_last_one_counts() -> None:
    assert from_flags("logging.level=DEBUG", "logging.level=ERROR").config.logging.level == "ERROR"


def test_a_flag_of_a_command_says_its_own_name_as_origin() -> None:
    effective = load(flags=[Assignment("metadata.url", "memory:", "flag --url")])
    assert effective.config.metadata.url == "memory:"
    assert origin(effective, "metadata.url") == "flag --url"


def test_a_value_equal_to_the_default_still_says_who_set_it() -> None:
    assert origin(from_flags("logging.level=INFO"), "logging.level") == "flag --set"


def test_every_key_can_be_set_by_its_variable_and_by_its_flag() -> None:
    for path, key in KEYS.items():
        if key.knob.type is str and not key.knob.choices:
            continue  # Strings take part in relations, which have tests of their own.
        text = str(key.knob.default)
        assert origin(from_environment(**{key.variable: text}), path) == f"environment {key.variable}"
        assert origin(from_flags(f"{path}={text}"), path) == "flag --set"


# --- unknown names ----------------------------------------------------------------------------------------------------


def test_an_unknown_key_is_refused_with_the_nearest_one_and_its_file() -> None:
    with pytest.raises(ConfigError) as caught:
        from_toml("[metadata]\nsesion_timeout = 5\n")
    assert str(caught.value) == (
        "file magnetar.toml: unknown key metadata.sesion_timeout: the nearest known key is metadata.session_timeout_ms"
    )


def test_a_key_in_the_wrong_section_is_refused_with_the_right_section() -> None:
    with pytest.raises(ConfigError, match=r"unknown key zookeeper\.url: the nearest known key is metadata\.url"):
        from_toml('[zookeeper]\nurl = "memory:"\n')


def test_a_key_outside_of_any_section_is_refused_with_its_section() -> None:
    with pytest.raises(ConfigError, match=r"url outside of any section: the nearest known key is metadata\.url"):
        from_toml('url = "memory:"\n')


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("zkTimeout", "metadata.session_timeout_ms"),
        ("metadataStoreUrl", "metadata.url"),
        ("zookeeper.set.acl", "zookeeper.acl"),
    ],
)
def test_the_name_a_knob_has_elsewhere_leads_to_ours(theirs: str, ours: str) -> None:
    with pytest.raises(ConfigError, match=f"the nearest known key is {ours}"):
        from_toml(f'[metadata]\n"{theirs}" = 1\n')


def test_an_unknown_section_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"unknown section \[metdata\]: the nearest known section is \[metadata\]"):
        from_toml("[metdata]\n")


def test_an_unknown_variable_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"environment MAGNETAR_METADATA_URI: unknown.* is MAGNETAR_METADATA_URL"):
        from_environment(MAGNETAR_METADATA_URI="memory:")


def test_variables_of_others_and_the_path_of_the_file_are_left_alone() -> None:
    variables = {
        "PATH": "/bin",
        "MAGNETARX": "1",
        "magnetar_metadata_url": "x",
        "MAGNETAR_CONFIG": "/etc/magnetar.toml",
    }
    assert load(environment=variables).config == Config()


@pytest.mark.parametrize("path", ["metadata.urll", "urll", "meta.urll", ".url", "metadata.", "", "a.b.url"])
def test_an_unknown_key_in_a_flag_is_refused_with_a_known_one(path: str) -> None:
    with pytest.raises(ConfigError, match=r"^flag --set: unknown key .*: the nearest known key is \w+\.\w+$"):
        from_flags(f"{path}=x")


def test_a_flag_without_a_value_is_refused_with_an_example_and_without_being_repeated() -> None:
    with pytest.raises(ConfigError, match=r"section\.key=value") as caught:
        from_flags("hunter2")
    assert "hunter2" not in str(caught.value)


# --- values -----------------------------------------------------------------------------------------------------------


def test_a_value_out_of_range_is_refused_with_key_value_range_and_origin() -> None:
    with pytest.raises(ConfigError) as caught:
        from_environment(MAGNETAR_METADATA_VALUE_BYTES_MAX="2_000_000")
    assert str(caught.value) == (
        "environment MAGNETAR_METADATA_VALUE_BYTES_MAX: metadata.value_bytes_max: "
        "2000000 is out of range: allowed is 1_000 to 1_040_000"
    )


@pytest.mark.parametrize("literal", ['"1000"', "true", "1000.0", "1979-05-27", "[1000]", "{ a = 1000 }", "nan"])
def test_in_toml_nothing_else_is_taken_for_an_integer(literal: str) -> None:
    with pytest.raises(ConfigError, match=r"magnetar\.toml: metadata\.session_timeout_ms: .* is not an integer"):
        from_toml(f"[metadata]\nsession_timeout_ms = {literal}\n")


@pytest.mark.parametrize("literal", ['"true"', "1", "0"])
def test_in_toml_nothing_else_is_taken_for_a_boolean(literal: str) -> None:
    with pytest.raises(ConfigError, match=r"zookeeper\.tls: .* is not true or false"):
        from_toml(f"[zookeeper]\ntls = {literal}\n")


@pytest.mark.parametrize("literal", ["1", "true", '["memory:"]'])
def test_in_toml_nothing_else_is_taken_for_a_string(literal: str) -> None:
    with pytest.raises(ConfigError, match=r"metadata\.url: .* is not a string"):
        from_toml(f"[metadata]\nurl = {literal}\n")


@pytest.mark.parametrize("text", ["metadata = 1", "[[metadata]]\nurl = 'memory:'"])
def test_a_section_that_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"metadata is a section: write its keys below a line \[metadata\]"):
        from_toml(text)


@pytest.mark.parametrize(("text", "value"), [("10_000", 10_000), ("+500", 500), (" 500 ", 500)])
def test_an_integer_in_a_variable_may_have_underscores(text: str, value: int) -> None:
    effective = from_environment(MAGNETAR_METADATA_SESSION_TIMEOUT_MS=text)
    assert effective.config.metadata.session_timeout_ms == value


@every_row("text", ["", "30s", "1e4", "0x10", "1__0", "_1", "1_", "١٢٣٤", "1 000", "9" * 5000, "- 5"])
def test_text_that_is_no_integer_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an integer") as caught:
        from_environment(MAGNETAR_METADATA_SESSION_TIMEOUT_MS=text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(("text", "value"), [(t, True) for t in ("true", "1", "yes", "on", "TRUE", "Yes")])
def test_words_for_true(text: str, value: bool) -> None:
    assert from_flags(f"zookeeper.tls={text}").config.zookeeper.tls is value


@pytest.mark.parametrize("text", ["false", "0", "no", "off", "False"])
def test_words_for_false(text: str) -> None:
    assert from_flags(f"zookeeper.tls_verify={text}").config.zookeeper.tls_verify is False


@pytest.mark.parametrize("text", ["", "2", "ja", "truee"])
def test_other_words_are_no_booleans(text: str) -> None:
    with pytest.raises(ConfigError, match=r"flag --set: zookeeper\.tls: .* is not true or false"):
        from_flags(f"zookeeper.tls={text}")


def test_a_string_is_taken_as_it_is_equals_signs_and_spaces_included() -> None:
    effective = from_flags("zookeeper.auth_digest=user:a=b ")
    assert effective.config.zookeeper.auth_digest == "user:a=b "


# --- the file as a whole ----------------------------------------------------------------------------------------------


def test_a_syntax_error_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"file magnetar\.toml is not valid TOML: .*line 2, column"):
        from_toml("[metadata]\nurl =\n")


@pytest.mark.parametrize(
    "text",
    ["[metadata]\n[metadata]\n", "\x00", "a = " + "[" * 100_000, "a = " + "1" * 10_000, "[metadata]\nurl='a'\nurl='b'"],
)
def test_a_hostile_file_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^file magnetar\.toml"):
        from_toml(text)


def test_a_broken_relation_says_who_set_the_values() -> None:
    with pytest.raises(ConfigError) as caught:
        load(
            toml="[zookeeper]\ntls = false\n",
            toml_name="magnetar.toml",
            environment={"MAGNETAR_ZOOKEEPER_TLS_CA_FILE": "ca.pem"},
        )
    assert str(caught.value) == (
        "zookeeper.tls_ca_file is set but zookeeper.tls is false: set tls = true, or drop tls_ca_file "
        "(tls from file magnetar.toml, tls_ca_file from environment MAGNETAR_ZOOKEEPER_TLS_CA_FILE)"
    )


def test_a_relation_may_be_satisfied_from_several_sources() -> None:
    effective = load(
        toml='[zookeeper]\ntls_ca_file = "ca.pem"\n', toml_name="m.toml", flags=[Assignment.parse("zookeeper.tls=on")]
    )
    assert effective.config.zookeeper.tls_ca_file == "ca.pem"


def test_a_secret_is_masked_where_it_is_shown_and_whole_where_it_is_used() -> None:
    effective = from_environment(MAGNETAR_ZOOKEEPER_AUTH_DIGEST="magnetar:hunter2")
    shown = {setting.key.path: setting.shown for setting in effective.settings()}
    assert shown["zookeeper.auth_digest"] == "****"
    assert effective.config.zookeeper.auth_digest == "magnetar:hunter2"


def test_a_secret_of_the_wrong_type_in_the_file_is_not_repeated() -> None:
    with pytest.raises(ConfigError, match=r"\*\*\*\* is not a string") as caught:
        from_toml('[zookeeper]\nauth_digest = ["hunter2"]\n')
    assert "hunter2" not in str(caught.value)
