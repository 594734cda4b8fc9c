"""TLS failures: a name, a sentence and a remedy for OpenSSL's reason."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from spark_rocket.errors import RocketError
from spark_rocket.remoting.tls.settings import TlsMode


class Problem(NamedTuple):
    """``kind`` is stable, for tables and tests; ``text`` follows the name of the peer."""

    kind: str
    text: str
    remedy: str

    @property
    def error_code(self) -> str:
        """The code of the error."""
        return f"TLS_{self.kind}"

    @property
    def is_lasting(self) -> bool:
        """Whether a retry will fail the same way until something is changed."""
        return self.kind in ("NOT_TLS", "WRONG_CA", "WRONG_NAME", "CERTIFICATE")


NOT_TLS = Problem(
    "NOT_TLS",
    "does not use TLS on this port",
    "Start the server with TLS (tls.server.mode=permissive or enforcing), or connect without TLS.",
)
ENDED = Problem(
    "ENDED",
    "closed the connection during the handshake",
    "Check that the server uses TLS on this port (tls.server.mode); its log has the reason.",
)
_LEFT = Problem(
    "ENDED",
    "disconnected during the handshake",
    "If it is a client, its error has the reason; usually it does not trust the CA of tls.server.certPath.",
)
HANDSHAKE = 0x16
"""The first byte of a TLS connection; no plaintext protocol served here starts with it."""
_DISABLED = Problem("DISABLED", "uses TLS, which is disabled here (tls.server.mode)", "")
_PLAINTEXT = Problem("PLAINTEXT", "does not use TLS, and tls.server.mode=enforcing", "Set tls.enable in that client.")
_NO_CERTIFICATE = "Present a certificate of a CA that it trusts (tls.client.certPath and tls.client.keyPath)."
_OUR_CERTIFICATE = "Use a certificate of a CA in its tls.server.trustCertPath (tls.client.certPath)."
_NOT_TRUSTED = "Set the CA that signed it (tls.client.trustCertPath, tlsCaFile, --tls-ca); verify=none trusts all."

# Alerts of the peer, by OpenSSL's name.
_ALERTS = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": Problem(
        "CLIENT_CERTIFICATE", "requires a client certificate", _NO_CERTIFICATE
    ),
    "SSLV3_ALERT_HANDSHAKE_FAILURE": Problem(
        "HANDSHAKE_FAILURE", "rejected the handshake (no client certificate, or no shared cipher)", _NO_CERTIFICATE
    ),
    "TLSV1_ALERT_UNKNOWN_CA": Problem("REFUSES_US", "does not trust the CA of our certificate", _OUR_CERTIFICATE),
    "SSLV3_ALERT_BAD_CERTIFICATE": Problem("REFUSES_US", "rejected our certificate", _OUR_CERTIFICATE),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": Problem("REFUSES_US", "rejected our certificate", _OUR_CERTIFICATE),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": Problem("REFUSES_US", "rejected our certificate: expired", "Renew it."),
    "SSLV3_ALERT_CERTIFICATE_REVOKED": Problem("REFUSES_US", "rejected our certificate: revoked", "Renew it."),
    "TLSV1_ALERT_PROTOCOL_VERSION": Problem("PROTOCOL_VERSION", "supports neither TLS 1.2 nor TLS 1.3", "Update it."),
}
_REASONS = {
    "WRONG_VERSION_NUMBER": NOT_TLS,
    "HTTP_REQUEST": NOT_TLS,
    "PACKET_LENGTH_TOO_LONG": NOT_TLS,
    "RECORD_LAYER_FAILURE": NOT_TLS,
    "UNEXPECTED_EOF_WHILE_READING": ENDED,
    "UNSUPPORTED_PROTOCOL": _ALERTS["TLSV1_ALERT_PROTOCOL_VERSION"],
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": Problem(
        "CLIENT_CERTIFICATE",
        "presented no certificate, and tls.server.need.client.auth=require",
        "Configure a certificate in that client (tls.client.certPath and tls.client.keyPath).",
    ),
    "NO_SHARED_CIPHER": Problem("NO_CIPHER", "has no shared cipher", "Update it."),
}
# X509_V_ERR_…
_EXPIRED, _NOT_YET, _NAME, _ADDRESS = 10, 9, 62, 64
_UNTRUSTED = {2, 18, 19, 20, 21, 27}


def refusal_of(is_tls: bool, mode: TlsMode) -> Problem | None:
    """Return why a server in this mode rejects a connection with or without TLS; None if it does not."""
    if is_tls:
        return _DISABLED if mode is TlsMode.DISABLED else None
    return _PLAINTEXT if mode is TlsMode.ENFORCING else None


def problem_of(error: BaseException, *, server: bool, name: str = "") -> Problem:
    """Return why TLS with a peer failed. ``server``: this side is the server; ``name``: the address of the peer."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate(error, server, name)
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError)):
        return _LEFT if server else ENDED
    if isinstance(error, TimeoutError):
        return Problem("TIMEOUT", "did not complete the TLS handshake in time", "Check that the port uses TLS.")
    reason = (getattr(error, "reason", None) or "") if isinstance(error, ssl.SSLError) else ""
    known = _ALERTS.get(reason) or _REASONS.get(reason)
    if known is None:
        return Problem(reason or "TLS", f"failed in the TLS handshake ({reason or error})", "")
    if server and reason in _ALERTS:
        return Problem(
            "REFUSES_US",
            f"rejected our certificate ({reason})",
            "Check that it trusts the CA of tls.server.certPath, and that the certificate is valid for the used name.",
        )
    if server and known is NOT_TLS:
        return Problem("NOT_TLS", "sent an invalid TLS record", "")
    if server and known is ENDED:
        return _LEFT
    return known


def _certificate(error: ssl.SSLCertVerificationError, server: bool, name: str) -> Problem:
    code = error.verify_code
    if code == _EXPIRED:
        return Problem("EXPIRED", "has an expired certificate", "Renew it, or correct the clock of this host.")
    if code == _NOT_YET:
        return Problem("NOT_YET_VALID", "has a certificate that is not valid yet", "Compare the clocks of both hosts.")
    if code in (_NAME, _ADDRESS):
        return Problem(
            "WRONG_NAME",
            f"has a certificate that is not valid for {name or 'the used name'}",
            "Issue it for the address that brokers advertise (subjectAltName), or set tls.client.verify=ca.",
        )
    if code in _UNTRUSTED:
        remedy = "Add the CA that signed it to tls.server.trustCertPath." if server else _NOT_TRUSTED
        return Problem("WRONG_CA", f"has a certificate that is not trusted ({error.verify_message})", remedy)
    return Problem("CERTIFICATE", f"has an invalid certificate ({error.verify_message})", "")


def error_text(error: RocketError) -> str:
    """Return the message of an error, with its remedy for TLS errors, because the server's address is correct."""
    return f"{error.message} {error.remedy}".rstrip() if error.code.startswith("TLS_") else error.message
