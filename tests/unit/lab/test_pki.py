"""Certificates say who one is, verify under strict rules, and their keys are nobody else's."""

import json
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from trainyard_lab import pki


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> pki.Authority:
    return pki.authority(tmp_path_factory.mktemp("pki"))


def test_a_client_certificate_names_its_user_and_groups(authority: pki.Authority):
    subject = x509.load_pem_x509_certificate(authority.client(pki.kubelet("n1")).certificate).subject
    assert [each.value for each in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["system:node:n1"]
    assert [each.value for each in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == ["system:nodes"]


def test_the_authority_of_a_folder_is_made_once(tmp_path: Path):
    assert pki.authority(tmp_path) == pki.authority(tmp_path)
    assert pki.service_account_key(tmp_path) == pki.service_account_key(tmp_path)


def test_private_keys_are_readable_by_their_owner_alone(tmp_path: Path):
    made = pki.authority(tmp_path)
    made.client(pki.ADMIN).save(tmp_path, "admin")
    pki.service_account_key(tmp_path)
    pki.write_kubeconfig(tmp_path / "admin.kubeconfig", "https://127.0.0.1:1", made, pki.ADMIN)
    secret = [*tmp_path.glob("*.key"), tmp_path / "admin.kubeconfig"]
    assert len(secret) == 4
    assert {path.stat().st_mode & 0o777 for path in secret} == {0o600}


def test_server_and_client_certificates_verify_each_other_under_strict_rules(authority: pki.Authority, tmp_path: Path):
    """Python 3.13 and later demand of every chain what VERIFY_X509_STRICT demands here."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(
        *authority.serving("server", names=["server.test"], addresses=["127.0.0.1"]).save(tmp_path, "s")
    )
    server.load_verify_locations(authority.certificate_path)
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=str(authority.certificate_path))
    client.load_cert_chain(*authority.client(pki.ADMIN).save(tmp_path, "c"))
    for context in (server, client):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    with socket.create_server(("127.0.0.1", 0)) as listener:
        seen: list[object] = []

        def serve() -> None:
            connection, _ = listener.accept()
            with server.wrap_socket(connection, server_side=True) as secured:
                seen.append(secured.getpeercert())
                secured.sendall(b"hello")

        thread = threading.Thread(target=serve)
        thread.start()
        with (
            socket.create_connection(listener.getsockname()) as plain,
            client.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            assert secured.recv(5) == b"hello"
        thread.join()
    assert "system:masters" in str(seen[0])


def test_a_kubeconfig_holds_everything_inside(authority: pki.Authority):
    config = json.loads(pki.kubeconfig("https://127.0.0.1:1", authority, pki.SCHEDULER))
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1"
    assert config["users"][0]["name"] == "system:kube-scheduler"
    assert set(config["users"][0]["user"]) == {"client-certificate-data", "client-key-data"}
