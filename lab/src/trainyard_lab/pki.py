"""Keys, certificates and kubeconfigs of a lab: one authority, everything signed by it, good for a year.

Kubernetes takes a client certificate's common name for the user and its organizations for the groups; that is all
there is to the identities below.
"""

import base64
import datetime
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = datetime.timedelta(days=365)
# A lab's clocks are one clock, but a certificate that is valid from "now" can still be a moment too young.
BACKDATED = datetime.timedelta(minutes=5)

_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a client certificate says one is: a Kubernetes user and its groups."""

    user: str
    groups: tuple[str, ...] = ()


ADMIN = Identity("trainyard-lab-admin", ("system:masters",))
CONTROLLER_MANAGER = Identity("system:kube-controller-manager")
SCHEDULER = Identity("system:kube-scheduler")
KUBE_PROXY = Identity("system:kube-proxy")


def kubelet(node: str) -> Identity:
    """Whom the Node authorizer and NodeRestriction know as the kubelet of this node."""
    return Identity(f"system:node:{node}", ("system:nodes",))


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes

    def save(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Writes NAME.crt and NAME.key (readable by the owner alone); returns their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        certificate.write_bytes(self.certificate)
        _write_private(key, self.key)
        return certificate, key


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority. Its folder holds ca.crt and ca.key."""

    folder: Path
    pair: Pair

    @property
    def certificate_path(self) -> Path:
        return self.folder / "ca.crt"

    def client(self, identity: Identity) -> Pair:
        return self._issue(identity.user, identity.groups, names=(), addresses=())

    def serving(self, name: str, *, names: Sequence[str] = (), addresses: Sequence[str] = ()) -> Pair:
        """A certificate for a server that is reached by these DNS names and addresses.

        It may act as a client too: a kubelet serves and calls with one certificate.
        """
        return self._issue(name, (), names=names, addresses=addresses)

    def _issue(self, common_name: str, groups: Sequence[str], names: Sequence[str], addresses: Sequence[str]) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        issuer = x509.load_pem_x509_certificate(self.pair.certificate).subject
        builder = (
            _certificate(_subject(common_name, groups), issuer, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(_load_key(self.pair.key).public_key()),
                critical=False,
            )
        )
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        return _signed(builder, key, _load_key(self.pair.key))


def authority(folder: Path) -> Authority:
    """The authority that is kept in this folder; made there if there is none."""
    if not (folder / "ca.key").exists():
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject("trainyard-lab", ())
        builder = (
            _certificate(subject, subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_SIGNS_CERTIFICATES, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        _signed(builder, key, key).save(folder, "ca")
    return Authority(folder, Pair((folder / "ca.crt").read_bytes(), (folder / "ca.key").read_bytes()))


def service_account_key(folder: Path) -> tuple[Path, Path]:
    """Paths of the key that signs the tokens of service accounts and of its public half; made if missing."""
    private, public = folder / "service-account.key", folder / "service-account.pub"
    if not (private.exists() and public.exists()):
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        public.write_bytes(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
        _write_private(private, _key_pem(key))
    return private, public


def kubeconfig(server: str, authority: Authority, identity: Identity) -> str:
    """A kubeconfig (JSON, which is YAML) with everything inside, for a fresh certificate of this identity."""
    pair = authority.client(identity)
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "lab",
                    "cluster": {"server": server, "certificate-authority-data": _base64(authority.pair.certificate)},
                }
            ],
            "users": [
                {
                    "name": identity.user,
                    "user": {
                        "client-certificate-data": _base64(pair.certificate),
                        "client-key-data": _base64(pair.key),
                    },
                }
            ],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": identity.user}}],
            "current-context": "lab",
        },
        indent=1,
    )


def write_kubeconfig(path: Path, server: str, authority: Authority, identity: Identity) -> Path:
    """The same, in a file that its owner alone may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_private(path, kubeconfig(server, authority, identity).encode())
    return path


def _certificate(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + VALID)
    )


def _signed(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, issuer_key: ec.EllipticCurvePrivateKey
) -> Pair:
    certificate = builder.sign(issuer_key, hashes.SHA256())
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key))


def _subject(common_name: str, groups: Sequence[str]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _write_private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_bytes(content)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
