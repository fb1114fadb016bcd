"""Certificates and keys of a federation: its own certificate authority, the SuperLink's
certificate, and a key for each SuperNode.

    python certificates.py FOLDER fed.example.org [another name or IP address ...]

writes ``ca.pem`` and ``ca.key`` (the authority, made once and kept), ``superlink.pem`` and
``superlink.key``. Every site gets ``ca.pem``. Called again, it writes a new certificate of the
SuperLink, signed by the same authority, and sites keep their ``ca.pem``: so a certificate is
renewed, and a second server gets its own. Who has ``ca.key`` can pretend to be the SuperLink.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from bayesfed.errors import ArgumentError, MissingExtraError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, GeneralName

AUTHORITY, AUTHORITY_KEY = "ca.pem", "ca.key"
CERTIFICATE, KEY = "superlink.pem", "superlink.key"
AUTHORITY_DAYS = 3650
# Clocks of other machines may be behind.
CLOCK_SKEW = timedelta(minutes=5)


def make_certificates(
    folder: Path, names: Sequence[str] = ("127.0.0.1", "localhost"), *, days: int = 365
) -> None:
    """Write the certificate of a SuperLink (``superlink.pem``, ``superlink.key``) that the
    authority in the folder signs (``ca.pem``, ``ca.key``); a new authority if there is none.

    Keys can be read by their owner only.

    Parameters
    ----------
    folder
        Folder to write to, created if needed.
    names
        Names and IP addresses by which the SuperLink is reached.
    days
        Days for which its certificate is valid. The authority's is valid for ten years.

    Raises
    ------
    ArgumentError
        If the folder has a certificate of an authority without its key.
    MissingExtraError
        If ``cryptography``, which Flower depends on, is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise MissingExtraError("cryptography", "flower") from None
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / AUTHORITY).exists():
        _make_authority(folder)
    elif not (folder / AUTHORITY_KEY).exists():
        raise ArgumentError(
            "make_certificates",
            f"{AUTHORITY_KEY}, the key of {AUTHORITY}",
            f"no such file in {folder}",
            f"putting it back from where it is kept; without {AUTHORITY} a new authority is made",
        )
    authority, authority_key = _read_authority(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _sign(
        key,
        [
            (x509.BasicConstraints(False, None), True),
            (x509.SubjectAlternativeName([_general_name(name) for name in names]), False),
            (x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
                False,
            ),
        ],
        subject=_named("superlink"),
        issuer=authority.subject,
        issuer_key=authority_key,
        days=days,
    )
    (folder / CERTIFICATE).write_bytes(_pem(certificate))
    _write_key(folder / KEY, key)


def make_node_key(path: Path) -> Path:
    """Write the private key of a SuperNode (OpenSSH, P-384) and return the path of its public key,
    ``NAME.pub``. ``ssh-keygen -t ecdsa -b 384`` makes the same.
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Write certificates of a federation.")
    parser.add_argument("folder", type=Path, help="where they are, or will be")
    parser.add_argument("names", nargs="+", help="names or IP addresses of the SuperLink")
    parser.add_argument("--days", type=int, default=365, help="how long its certificate is valid")
    chosen = parser.parse_args(arguments)
    make_certificates(chosen.folder, chosen.names, days=chosen.days)
    print(
        f"{chosen.folder}: {AUTHORITY} for every site; {CERTIFICATE} and {KEY} for the "
        f"SuperLink, valid for {chosen.days} days; {AUTHORITY_KEY} to be kept in a safe place"
    )


def _make_authority(folder: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
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
    certificate = _sign(
        key,
        [
            (x509.BasicConstraints(True, None), True),
            (usage, True),
            (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        ],
        subject=_named("federation"),
        issuer=_named("federation"),
        issuer_key=key,
        days=AUTHORITY_DAYS,
    )
    _write_key(folder / AUTHORITY_KEY, key)
    (folder / AUTHORITY).write_bytes(_pem(certificate))


def _read_authority(folder: Path) -> tuple[Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    return x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes()), key


def _sign(
    key: EllipticCurvePrivateKey,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
    *,
    subject: x509.Name,
    issuer: x509.Name,
    issuer_key: EllipticCurvePrivateKey,
    days: int,
) -> Certificate:
    """Return a certificate of a key with extensions and whether each is critical."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    start = datetime.now(UTC) - CLOCK_SKEW
    builder = x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=start,
        not_valid_after=start + timedelta(days=days),
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(issuer_key, hashes.SHA256())


def _named(name: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _general_name(name: str) -> GeneralName:
    """Return an IP address or a name of a machine as certificates have them."""
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return bytes(certificate.public_bytes(Encoding.PEM))


def _write_key(path: Path, key: EllipticCurvePrivateKey) -> None:
    """Write a private key that its owner alone can read, whatever the permissions of an older
    file.
    """
    from cryptography.hazmat.primitives import serialization as form

    openssh = path.suffix != ".key"
    kind = form.PrivateFormat.OpenSSH if openssh else form.PrivateFormat.PKCS8
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(form.Encoding.PEM, kind, form.NoEncryption()))


if __name__ == "__main__":
    main()
