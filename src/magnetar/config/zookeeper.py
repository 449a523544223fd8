"""Settings of the connection to ZooKeeper: encryption, authentication, access to what we create."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperConfig:
    """How to connect when `metadata.url` begins with `zk://`.

    Files may differ per process. All nodes of a cluster must agree on `acl`, and with `creator` also on `auth_digest`:
    what one creates would else be closed to the others. Changes need a restart.
    """

    tls: bool = knob(
        False,
        "Encrypt the connection; the URL then names the servers' secure ports.",
        kafka="zookeeper.ssl.client.enable",
    )
    tls_ca_file: str = knob(
        "",
        "PEM file of the authorities that may have signed a server's certificate; empty: those the system trusts.",
        kafka="zookeeper.ssl.truststore.location",
    )
    tls_cert_file: str = knob(
        "",
        "PEM file of our own certificate, for servers that ask for one.",
        kafka="zookeeper.ssl.keystore.location",
    )
    tls_key_file: str = knob(
        "",
        "PEM file of the certificate's private key, unless `tls_cert_file` holds both.",
        kafka="zookeeper.ssl.keystore.location",
    )
    tls_verify: bool = knob(
        True,
        "Refuse a server whose certificate does not prove its name. Turning it off protects from nobody on the way.",
        kafka="zookeeper.ssl.endpoint.identification.algorithm",
    )
    auth_digest: str = knob(
        "",
        "`user:password` for ZooKeeper's digest scheme; empty: no authentication. "
        "Better from the file or the environment than from a flag, which other users of the machine can see.",
        secret=True,
    )
    acl: str = knob(
        "open",
        "Who may touch the nodes we create: everybody (`open`), or only who has our `auth_digest` (`creator`).",
        choices=("open", "creator"),
        bookkeeper="zkEnableSecurity",
        kafka="zookeeper.set.acl",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        self._check_tls()
        self._check_authentication()

    def _check_tls(self) -> None:
        for name in ("tls_ca_file", "tls_cert_file", "tls_key_file"):
            if getattr(self, name) and not self.tls:
                raise ConfigError(f"zookeeper.{name} is set but zookeeper.tls is false: set tls = true, or drop {name}")
        if self.tls_key_file and not self.tls_cert_file:
            raise ConfigError("zookeeper.tls_key_file is set without zookeeper.tls_cert_file: name the certificate too")

    def _check_authentication(self) -> None:
        user, _, password = self.auth_digest.partition(":")
        if self.auth_digest and not (user and password):
            raise ConfigError("zookeeper.auth_digest is not of the form user:password")
        if self.acl == "creator" and not self.auth_digest:
            raise ConfigError(
                "zookeeper.acl is creator but zookeeper.auth_digest is empty: "
                "without it nobody could read what we create; set auth_digest, or acl = open"
            )
