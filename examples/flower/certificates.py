"""Certificates and keys of a cluster: its own certificate authority, the SuperLink's certificate,
and a key for each SuperNode.

For loopback and for tests, and as an example: the authority of a federation signs the SuperLink's
certificate, each node gets ``ca.pem`` and a private key, and the SuperLink gets the public keys by
``flwr supernode register``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from bayesfed.errors import MissingExtraError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder

AUTHORITY, CERTIFICATE, KEY = "ca.pem", "superlink.pem", "superlink.key"


def make_certificates(folder: Path, address: str = "127.0.0.1", *, days: int = 30) -> None:
    """Write the certificate of a new authority (``ca.pem``) and of a SuperLink with one IP address
    (``superlink.pem``, ``superlink.key``).

    The key of the authority is not kept.

    Parameters
    ----------
    folder
        Folder to write to.
    address
        IP address of the SuperLink.
    days
        Days for which the certificates are valid.

    Raises
    ------
    MissingExtraError
        If ``cryptography``, which Flower depends on, is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise MissingExtraError("cryptography", "flower") from None
    authority, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))

    def signed(builder: CertificateBuilder) -> Certificate:
        return builder.sign(authority, hashes.SHA256())

    names = {
        who: x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, who)])
        for who in ("federation", "superlink")
    }
    start = datetime.now(UTC) - timedelta(minutes=5)

    def begun(who: str, key: EllipticCurvePrivateKey) -> CertificateBuilder:
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[who])
            .issuer_name(names["federation"])
            .public_key(key.public_key())
        )
        return (
            builder.serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + timedelta(days=days))
        )

    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    root = (
        begun("federation", authority)
        .add_extension(x509.BasicConstraints(True, None), True)
        .add_extension(usage, True)
    )
    root = root.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), False
    )
    server = begun("superlink", own).add_extension(x509.BasicConstraints(False, None), True)
    server = server.add_extension(
        x509.SubjectAlternativeName(
            [x509.IPAddress(ip_address(address)), x509.DNSName("localhost")]
        ),
        False,
    )
    server = server.add_extension(
        x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), False
    )
    server = server.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, builder in ((AUTHORITY, root), (CERTIFICATE, server)):
        (folder / name).write_bytes(_pem(signed(builder)))
    _write_key(folder / KEY, own)


def make_node_key(path: Path) -> Path:
    """Write the private key of a SuperNode (OpenSSH, P-384) and return the path of its public key,
    ``NAME.pub``.
    """
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    _write_key(path, key)
    public = path.with_name(path.name + ".pub")
    public.write_bytes(
        key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH) + b"\n"
    )
    return public


def _pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return bytes(certificate.public_bytes(Encoding.PEM))


def _write_key(path: Path, key: EllipticCurvePrivateKey) -> None:
    from cryptography.hazmat.primitives import serialization as form

    openssh = path.suffix != ".key"
    kind = form.PrivateFormat.OpenSSH if openssh else form.PrivateFormat.PKCS8
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(form.Encoding.PEM, kind, form.NoEncryption()))
