"""TLS of connections: who is trusted, who speaks none, and files that change."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from logtx.coordinator.protocol.frames import MAGIC
from logtx.coordinator.protocol.strangers import Role
from logtx.coordinator.transport import tls_files
from logtx.coordinator.transport.tls import Tls
from logtx.journal.errors import ConfigError, TlsError
from logtx.journal.tls import TlsConfig

from ...waiting import eventually
from .served import CERTIFICATES, LOOPS, TIMEOUT_S, Client, Served, echo, raw_client, read_all, tls


@pytest.mark.parametrize("loop", LOOPS)
def test_each_end_knows_the_others_name(loop: str) -> None:
    with (
        Served(echo, tls=tls(Role.COORDINATOR, "coordinator"), loop=loop) as served,
        Client(served.address, tls=tls(Role.CLIENT, "client")) as client,
    ):
        assert client.ask(b"x") == b"x"
        assert client.connection.peer == "CN=coordinator,O=logtx"
        assert served.seen[0].peer == "CN=client,O=logtx,C=DE"


def test_a_client_without_a_certificate_has_no_name() -> None:
    with (
        Served(echo, tls=tls(Role.COORDINATOR, "coordinator", None)) as served,
        Client(served.address, tls=tls(Role.CLIENT, None)) as client,
    ):
        assert client.ask(b"x") == b"x"
        assert served.seen[0].peer == ""


@pytest.mark.parametrize(
    ("ours", "theirs", "sentence"),
    [
        ("stranger", None, "set coordinator.ssl.ca.location to a file with the CA"),
        ("elsewhere", None, "coordinator.ssl.endpoint.identification.algorithm to none"),
        ("expired", None, "certificate has expired): renew it there"),
        ("coordinator", None, "(--ssl-client-auth): set coordinator.ssl.certificate.location"),
        ("coordinator", "stranger", "its CA in the coordinator's --ssl-ca-location"),
    ],
)
@pytest.mark.parametrize("loop", LOOPS)
def test_who_is_not_trusted_is_refused_before_it_says_anything(
    ours: str,
    theirs: str | None,
    sentence: str,
    loop: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It expires while it is used: a coordinator does not start with it.
    monkeypatch.setattr(tls_files, "_check_valid", lambda *_: None)
    ca = "expired" if ours == "expired" else "ca"
    with Served(echo, tls=tls(Role.COORDINATOR, ours), loop=loop) as served:
        with Client(served.address, tls=tls(Role.CLIENT, theirs, ca)) as client:
            client.send(b"secret")
            error = client.end()
            assert isinstance(error, TlsError), error
            assert sentence in str(error)
        eventually(lambda: served.listener.connections == 0)
        assert not served.seen
    assert "stranger" in caplog.text


@pytest.mark.parametrize("loop", LOOPS)
def test_who_speaks_no_tls_is_told_so(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    with Served(echo, tls=tls(Role.COORDINATOR, "coordinator"), loop=loop) as served:
        with Client(served.address) as client:
            error = client.end()
            assert isinstance(error, TlsError), error
            assert "the coordinator's port speaks TLS and this client does not" in str(error)
        eventually(lambda: served.listener.connections == 0)
    assert "this port speaks TLS and the client does not" in caplog.text


@pytest.mark.parametrize("loop", LOOPS)
def test_tls_to_a_port_that_speaks_none(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    with Served(echo, loop=loop) as served:
        with Client(served.address, tls=tls(Role.CLIENT, None)) as client:
            error = client.end()
            assert isinstance(error, TlsError), error
            assert "this client speaks TLS and the coordinator's port does not" in str(error)
        eventually(lambda: served.listener.connections == 0)
    assert "the client speaks TLS and this port does not" in caplog.text


@pytest.mark.parametrize("loop", LOOPS)
def test_other_libraries_are_answered_in_their_words(loop: str) -> None:
    with Served(echo, loop=loop) as served:
        with raw_client(served.address, hello=b"GET /metrics HTTP/1.1\r\n\r\n") as raw:
            assert read_all(raw).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        context = ssl.create_default_context()
        host, port = served.address.split(":")
        with (
            socket.create_connection((host, int(port)), TIMEOUT_S) as plain,
            pytest.raises(ssl.SSLError, match="WRONG_VERSION_NUMBER"),
        ):
            context.wrap_socket(plain, server_hostname="localhost")


def test_an_open_connection_that_brings_no_tls_any_more_ends() -> None:
    """Something between changed bytes."""
    with (
        Served(echo, tls=tls(Role.COORDINATOR, "coordinator", None)) as served,
        Client(served.address, tls=tls(Role.CLIENT, None)) as client,
    ):
        assert client.ask(b"x") == b"x"
        connection = client.connection
        with connection._lock:
            assert connection._socket is not None
            connection._socket.send(MAGIC * 10)
        assert "ended TLS" in str(client.end())
        eventually(lambda: served.listener.connections == 0)
        assert isinstance(served.seen[0].error, TlsError)


# ---- files ---------------------------------------------------------------------------------------


def test_a_renewed_certificate_is_for_new_connections(tmp_path: Path) -> None:
    """Trap 220, too: between the writing of two files, what was read before is used on."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"

    def write(name: str, to: Path) -> None:
        new = tmp_path / "new"
        shutil.copy(CERTIFICATES / f"{name}.pem", new)
        new.rename(to)

    def name(address: str) -> str:
        with Client(address, tls=tls(Role.CLIENT, None)) as client:
            assert client.ask(b"x") == b"x"
            return client.connection.peer

    for each in (certificate, key):
        write("coordinator", each)
    ours = Tls(Role.COORDINATOR, TlsConfig(certificate=certificate, key=key))
    trusting = tls(Role.CLIENT, None)
    with Served(echo, tls=ours) as served, Client(served.address, tls=trusting) as old:
        assert old.ask(b"x") == b"x"
        write("renewed", certificate)
        assert name(served.address) == "CN=coordinator,O=logtx", "the key does not fit yet"
        key.unlink()
        assert name(served.address) == "CN=coordinator,O=logtx"
        write("renewed", key)
        assert name(served.address) == "CN=renewed,O=logtx"
        assert name(served.address) == "CN=renewed,O=logtx"
        assert old.ask(b"y") == b"y"
        assert old.connection.peer == "CN=coordinator,O=logtx"


def test_trap_220_files_that_do_not_fit_each_other_end_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    for each in (certificate, key):
        shutil.copy(CERTIFICATES / "coordinator.pem", each)
    ours = Tls(Role.COORDINATOR, TlsConfig(certificate=certificate, key=key))
    before = ours.context()
    assert ours.context() is before
    shutil.copy(CERTIFICATES / "renewed.pem", certificate)
    assert ours.context() is before
    assert "tls_not_renewed" in caplog.text
    shutil.copy(CERTIFICATES / "renewed.pem", key)
    assert ours.context() is not before


@pytest.mark.parametrize(
    ("role", "files", "sentence"),
    [
        ("coordinator", {}, "needs a certificate: name its file by --ssl-certificate-location"),
        ("client", {"ca": "nowhere"}, r"^coordinator.ssl.ca.location: can't read .*No such file"),
        ("client", {"ca": "."}, "^coordinator.ssl.ca.location: can't read .*Is a directory"),
        ("client", {"ca": "none"}, "^coordinator.ssl.ca.location: there is no certificate in"),
        ("client", {"ca": "broken"}, "^coordinator.ssl.ca.location: .* can't be used"),
        ("coordinator", {"certificate": "nowhere"}, "^--ssl-certificate-location: can't read"),
        ("coordinator", {"certificate": "broken"}, "^--ssl-certificate-location: .*can't be used"),
        ("coordinator", {"certificate": "ca"}, "^--ssl-key-location: there is no private key in"),
        ("coordinator", {"certificate": "expired"}, "^--ssl-certificate-location: .* has expired"),
        ("client", {"certificate": "expired"}, "^coordinator.ssl.cert.*: .* has expired"),
        (
            "coordinator",
            {"certificate": "client", "key": "renewed"},
            "^--ssl-key-location: .* is not that of the certificate",
        ),
        ("coordinator", {"certificate": "locked"}, "has a password: set --ssl-key-password"),
        (
            "client",
            {"certificate": "locked", "key_password": "other"},
            "^coordinator.ssl.key.password: .* can't be read with this password",
        ),
    ],
)
def test_files_that_can_not_be_used_are_named_at_once(
    role: str, files: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    begin, end = "-----BEGIN {}-----\n", "-----END {}-----\n"
    what = ("CERTIFICATE", "PRIVATE KEY")
    (tmp_path / "broken.pem").write_text("".join((begin + "x\n" + end).format(w, w) for w in what))
    (tmp_path / "none.pem").write_text("nothing\n")
    (tmp_path / "..pem").mkdir()
    given: dict[str, Any] = {}
    for name, file in files.items():
        ours = CERTIFICATES / f"{file}.pem"
        path = ours if ours.exists() else tmp_path / f"{file}.pem"
        given[name] = file if name == "key_password" else path
    is_coordinator = role == "coordinator"
    with pytest.raises(ConfigError, match=sentence):
        Tls(Role(role), TlsConfig(**given, of_coordinator=is_coordinator))


def test_a_certificate_for_servers_alone_is_one_of_coordinators_that_ask_for_none() -> None:
    pem = {"certificate": CERTIFICATES / "server-only.pem", "ca": CERTIFICATES / "ca.pem"}
    for client_auth in ("none", "required"):
        config = TlsConfig(**pem, client_auth=client_auth, of_coordinator=True)
        Tls(Role.COORDINATOR, config)
        if client_auth == "none":
            Tls(Role.CLIENT, config)
            continue
        with pytest.raises(ConfigError, match="can't be used for a client"):
            Tls(Role.CLIENT, config)
    with pytest.raises(ConfigError, match="can't be used for a client"):
        Tls(Role.CLIENT, TlsConfig(**pem))


def test_a_key_with_a_password_is_used() -> None:
    ours = Tls(
        Role.COORDINATOR,
        TlsConfig(certificate=CERTIFICATES / "locked.pem", key_password="secret"),
    )
    unchecked = Tls(Role.CLIENT, TlsConfig(ca=CERTIFICATES / "ca.pem", checks_host=False))
    with Served(echo, tls=ours) as served:
        with Client(served.address, tls=unchecked) as client:
            assert client.ask(b"x") == b"x"
        with Client(served.address, tls=tls(Role.CLIENT, None)) as client:
            assert "for '127.0.0.1'" in str(client.end()), "the name is checked, if nobody says so"


@pytest.mark.parametrize(
    ("mode", "name", "password", "warns"),
    [
        *((mode, "coordinator", None, True) for mode in (0o644, 0o640)),
        (0o600, "coordinator", None, False),
        (0o644, "locked", "secret", False),
    ],
)
def test_a_key_that_others_may_read_is_warned_of(
    *,
    mode: int,
    name: str,
    password: str | None,
    warns: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "key.pem"
    shutil.copyfile(CERTIFICATES / f"{name}.pem", path)
    path.chmod(mode)
    for _ in range(2):  # A process may open many clients.
        Tls(Role.COORDINATOR, TlsConfig(certificate=path, key_password=password))
    warned = [record.getMessage() for record in caplog.records]
    assert warned == [f"others may read the private key in {path}: chmod 600 it"] * warns


def test_the_certificates_of_the_docs_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.13 and later check strictly: there the key of a CA must say what it is for."""
    page = (Path(__file__).parents[3] / "docs/security.md").read_text("utf-8")
    [commands] = re.findall(r"```sh\n(.*?openssl.*?)```", page, re.DOTALL)
    subprocess.run(["sh", "-ec", commands], cwd=tmp_path, check=True, capture_output=True)
    default = ssl.create_default_context

    def strict(*args: Any, **more: Any) -> ssl.SSLContext:
        context = default(*args, **more)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)

    def files(name: str, **more: Any) -> TlsConfig:
        certificate, key = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
        return TlsConfig(ca=tmp_path / "ca.pem", certificate=certificate, key=key, **more)

    ours = Tls(Role.COORDINATOR, files("coordinator-1", client_auth="required"))
    theirs = Tls(Role.CLIENT, files("ledger"))
    named = theirs.filter("coordinator-1.example")
    monkeypatch.setattr(theirs, "filter", lambda _host: named)
    with Served(echo, tls=ours) as served, Client(served.address, tls=theirs) as client:
        assert client.ask(b"x") == b"x"
        assert served.seen[0].peer == "CN=ledger"


def test_a_certificate_that_is_asked_for_may_be_missing() -> None:
    pem = {"certificate": CERTIFICATES / "coordinator.pem", "ca": CERTIFICATES / "ca.pem"}
    ours = Tls(Role.COORDINATOR, TlsConfig(**pem, client_auth="requested"))
    with Served(echo, tls=ours) as served:
        for certificate in (None, "client"):
            with Client(served.address, tls=tls(Role.CLIENT, certificate)) as client:
                assert client.ask(b"x") == b"x"
        with Client(served.address, tls=tls(Role.CLIENT, "stranger")) as client:
            assert isinstance(client.end(), TlsError)
        assert [each.peer for each in served.seen] == ["", "CN=client,O=logtx,C=DE"]


def test_a_certificate_that_expires_is_not_taken_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate = tmp_path / "certificate.pem"
    shutil.copy(CERTIFICATES / "coordinator.pem", certificate)
    ours = Tls(Role.COORDINATOR, TlsConfig(certificate=certificate))
    before = ours.context()
    shutil.copy(CERTIFICATES / "expired.pem", certificate)
    assert ours.context() is before
    assert "has expired" in caplog.text
