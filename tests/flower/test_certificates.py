"""Certificates of a federation: the authority is kept, and signs again."""

import stat

import pytest

from bayesfed.errors import ArgumentError
from examples.flower.certificates import main, make_certificates

x509 = pytest.importorskip("cryptography.x509")


def read(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def names_of(certificate):
    extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(name.value) for name in extension.value]


def test_a_renewed_certificate_is_signed_by_the_same_authority(tmp_path):
    make_certificates(tmp_path, ["fed.example.org", "10.0.0.1"], days=30)
    authority = (tmp_path / "ca.pem").read_bytes()
    first = read(tmp_path / "superlink.pem")
    main([str(tmp_path), "other.example.org", "--days", "90"])
    second = read(tmp_path / "superlink.pem")
    assert (tmp_path / "ca.pem").read_bytes() == authority
    for certificate in (first, second):
        certificate.verify_directly_issued_by(read(tmp_path / "ca.pem"))
    assert names_of(first) == ["fed.example.org", "10.0.0.1"]
    assert names_of(second) == ["other.example.org"]
    lifetimes = [one.not_valid_after_utc - one.not_valid_before_utc for one in (first, second)]
    assert [lifetime.days for lifetime in lifetimes] == [30, 90]


def test_keys_can_be_read_by_their_owner_alone_whatever_was_there_before(tmp_path):
    (tmp_path / "superlink.key").touch(mode=0o644)
    make_certificates(tmp_path)
    for name in ("ca.key", "superlink.key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_an_authority_whose_key_is_elsewhere_is_not_replaced(tmp_path):
    make_certificates(tmp_path)
    before = (tmp_path / "superlink.pem").read_bytes()
    (tmp_path / "ca.key").unlink()
    with pytest.raises(ArgumentError, match=r"ca\.key, the key of ca\.pem"):
        make_certificates(tmp_path)
    assert (tmp_path / "superlink.pem").read_bytes() == before
