from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from magnetar.config.metadata import ZooKeeperConfig
from magnetar.errors import AccessDeniedError, MetadataUnavailableError
from magnetar.metadata.zookeeper.store import Address, ZooKeeperStore
from magnetar.testing.processes.zookeeper import ServerTls, ZooKeeperServer
from tests.contracts.metadata_harness import CONTRACT_CONFIG
from tests.integration.zookeeper.harness import connect_to

OWNER = ZooKeeperConfig(auth_digest="broker:s3cret", acl="creator")


async def test_what_a_creator_closed_is_denied_to_a_stranger(zookeeper: ZooKeeperServer, chroot: str) -> None:
    async with await connect_to(f"{zookeeper.url}{chroot}", OWNER) as store:
        await store.create("/secret", b"42")
        assert await store.get("/secret") is not None
        async with await connect_to(zookeeper.url) as stranger:
            for attempt in (
                stranger.get(f"{chroot}/secret"),
                stranger.put(f"{chroot}/secret", b"0"),
                stranger.create(f"{chroot}/secret/below"),
                stranger.children(chroot),
            ):
                with pytest.raises(AccessDeniedError, match="auth_digest"):
                    await attempt
        friend = ZooKeeperConfig(auth_digest="broker:s3cret")
        async with await connect_to(f"{zookeeper.url}{chroot}", friend) as store_of_friend:
            assert await store_of_friend.put("/secret", b"43") == 1


async def test_a_stranger_is_told_at_connect_that_the_chroot_is_closed(zookeeper: ZooKeeperServer, chroot: str) -> None:
    async with await connect_to(f"{zookeeper.url}{chroot}", OWNER):
        pass
    with pytest.raises(AccessDeniedError):
        await connect_to(f"{zookeeper.url}{chroot}")


async def test_the_password_is_in_no_log_whatever_the_level(
    zookeeper: ZooKeeperServer, chroot: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(1)
    async with await connect_to(f"{zookeeper.url}{chroot}", OWNER) as store:
        await store.create("/a")
    assert "s3cret" not in caplog.text


async def test_credentials_that_the_server_refuses_are_named_at_connect(zookeeper: ZooKeeperServer) -> None:
    store = ZooKeeperStore(Address.parse(zookeeper.url), CONTRACT_CONFIG, ZooKeeperConfig())
    store.client.auth_data = {("no-such-scheme", "a:b")}
    with pytest.raises(AccessDeniedError, match="auth_digest"):
        await store.connect()
    await store.aclose()


class Certificates:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        authority = trustme.CA()
        self.authority = directory / "ca.pem"
        authority.cert_pem.write_to_path(self.authority)
        self.server = directory / "server.pem"
        self._write(authority.issue_cert("localhost"), self.server)
        self.client = directory / "client.pem"
        self._write(authority.issue_cert("broker@example.org"), self.client)
        self.other_authority = directory / "other.pem"
        trustme.CA().cert_pem.write_to_path(self.other_authority)

    @staticmethod
    def _write(issued: trustme.LeafCert, path: Path) -> None:
        """The server's reader wants the key in PKCS #8 form."""
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        parts = [key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())]
        path.write_bytes(b"".join(parts + [blob.bytes() for blob in issued.cert_chain_pems]))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure_server(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    tls = ServerTls(certificates.server, certificates.authority, client_must_authenticate=True)
    with ZooKeeperServer(tmp_path_factory.mktemp("secure"), tls=tls) as server:
        yield server


def client_tls(certificates: Certificates, **changes: object) -> ZooKeeperConfig:
    settings: dict[str, object] = {
        "tls": True,
        "tls_ca_file": str(certificates.authority),
        "tls_cert_file": str(certificates.client),
    }
    return ZooKeeperConfig(**{**settings, **changes})  # type: ignore[arg-type]


async def test_a_store_works_over_tls_with_certificates_on_both_sides(
    secure_server: ZooKeeperServer, certificates: Certificates
) -> None:
    async with await connect_to(f"zk://{secure_server.secure_address}/tls", client_tls(certificates)) as store:
        await store.create("/large", b"\xa5" * 900_000)
        node = await store.get("/large")
        assert node is not None
        assert node.value == b"\xa5" * 900_000


async def test_many_answers_in_one_tls_record_are_all_read(
    secure_server: ZooKeeperServer, certificates: Certificates
) -> None:
    async with await connect_to(f"zk://{secure_server.secure_address}/burst", client_tls(certificates)) as store:
        await store.create("/a", b"x")
        async with asyncio.timeout(5):
            nodes = await asyncio.gather(*(store.get("/a") for _ in range(2_000)))
        assert all(node is not None for node in nodes)


async def test_a_server_that_another_authority_signed_is_refused_with_the_reason(
    secure_server: ZooKeeperServer, certificates: Certificates
) -> None:
    wrong = client_tls(certificates, tls_ca_file=str(certificates.other_authority))
    with pytest.raises(MetadataUnavailableError, match="certificate verify failed"):
        await connect_to(f"zk://{secure_server.secure_address}", wrong, connect_timeout_ms=1_000)


async def test_a_server_under_another_name_than_its_certificate_is_refused(
    secure_server: ZooKeeperServer, certificates: Certificates
) -> None:
    address = f"zk://127.0.0.1:{secure_server.secure_port}"
    with pytest.raises(MetadataUnavailableError, match=r"IP address mismatch|not valid for"):
        await connect_to(address, client_tls(certificates), connect_timeout_ms=1_000)
    async with await connect_to(address, client_tls(certificates, tls_verify=False)) as store:
        assert await store.get("/") is not None


async def test_speaking_plainly_to_a_secure_port_hints_at_the_ports(secure_server: ZooKeeperServer) -> None:
    with pytest.raises(MetadataUnavailableError, match="not those for TLS"):
        await connect_to(f"zk://{secure_server.secure_address}", connect_timeout_ms=1_000)


async def test_a_certificate_file_that_is_missing_is_named_as_the_trouble(
    secure_server: ZooKeeperServer, certificates: Certificates
) -> None:
    missing = client_tls(certificates, tls_ca_file="/nowhere/ca.pem")
    with pytest.raises(MetadataUnavailableError, match="No such file"):
        await connect_to(f"zk://{secure_server.secure_address}", missing, connect_timeout_ms=500)
