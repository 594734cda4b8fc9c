"""What went wrong with TLS: OpenSSL's reason becomes a name, a sentence and what to do.

Thread-safety: values.
"""

from __future__ import annotations

import ssl
from typing import NamedTuple

from spark_rocket.errors import RocketError
from spark_rocket.remoting.tls.settings import TlsMode


class Problem(NamedTuple):
    """``kind`` is stable, for tables and tests; ``text`` goes on after the peer's name."""

    kind: str
    text: str
    remedy: str

    @property
    def error_code(self) -> str:
        """Of the error that says so."""
        return f"TLS_{self.kind}"

    @property
    def is_lasting(self) -> bool:
        """Whether the next attempt will find the same, unless somebody changes something."""
        return self.kind in ("NOT_TLS", "WRONG_CA", "WRONG_NAME", "CERTIFICATE")


NOT_TLS = Problem(
    "NOT_TLS",
    "does not speak TLS there",
    "Start the server with TLS (tls.server.mode=permissive or enforcing), or call it without.",
)
ENDED = Problem(
    "ENDED",
    "closed the connection during the handshake",
    "Does that server speak TLS on this port (tls.server.mode)? Its log says why it refused.",
)
HANDSHAKE = 0x16
"""The first byte of a TLS connection; plaintext of any protocol served here begins otherwise."""
_DISABLED = Problem("DISABLED", "calls with TLS, which is disabled here (tls.server.mode)", "")
_PLAINTEXT = Problem(
    "PLAINTEXT", "calls without TLS, and tls.server.mode=enforcing", "Have it call with TLS (tls.enable)."
)
_NO_CERTIFICATE = "Show it a certificate of a CA that it trusts (tls.client.certPath and tls.client.keyPath)."
_OUR_CERTIFICATE = "Give this side a certificate that its tls.server.trustCertPath covers (tls.client.certPath)."
_NOT_TRUSTED = "Give the CA that signed it (tls.client.trustCertPath, tlsCaFile, --tls-ca); verify=none trusts anybody."

# What the peer says of us, by OpenSSL's name of the alert.
_ALERTS = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": Problem(
        "CLIENT_CERTIFICATE", "wants a certificate of its clients", _NO_CERTIFICATE
    ),
    "SSLV3_ALERT_HANDSHAKE_FAILURE": Problem(
        "HANDSHAKE_FAILURE", "refused the handshake (no certificate shown, or no cipher in common)", _NO_CERTIFICATE
    ),
    "TLSV1_ALERT_UNKNOWN_CA": Problem("REFUSES_US", "does not know the CA of our certificate", _OUR_CERTIFICATE),
    "SSLV3_ALERT_BAD_CERTIFICATE": Problem("REFUSES_US", "refuses our certificate", _OUR_CERTIFICATE),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": Problem("REFUSES_US", "refuses our certificate", _OUR_CERTIFICATE),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": Problem("REFUSES_US", "says that our certificate has expired", "Renew it."),
    "SSLV3_ALERT_CERTIFICATE_REVOKED": Problem("REFUSES_US", "says that our certificate was revoked", "Renew it."),
    "TLSV1_ALERT_PROTOCOL_VERSION": Problem(
        "PROTOCOL_VERSION", "speaks another version of TLS than 1.2 and 1.3", "Bring it up to date."
    ),
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
        "showed no certificate, and tls.server.need.client.auth=require",
        "Give that client a certificate (tls.client.certPath and tls.client.keyPath).",
    ),
    "NO_SHARED_CIPHER": Problem("NO_CIPHER", "has no cipher in common with us", "Bring it up to date."),
}
# X509_V_ERR_…
_EXPIRED, _NOT_YET, _NAME, _ADDRESS = 10, 9, 62, 64
_UNTRUSTED = {2, 18, 19, 20, 21, 27}


def refusal_of(is_tls: bool, mode: TlsMode) -> Problem | None:
    """Why a server in this mode refuses a connection with or without TLS; None if it does not."""
    if is_tls:
        return _DISABLED if mode is TlsMode.DISABLED else None
    return _PLAINTEXT if mode is TlsMode.ENFORCING else None


def problem_of(error: BaseException, *, server: bool, name: str = "") -> Problem:
    """Why there is no TLS with a peer. ``server``: we are; ``name``: what the peer was called by."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate(error, server, name)
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError)):
        return ENDED
    if isinstance(error, TimeoutError):
        return Problem("TIMEOUT", "did not end the TLS handshake in time", "Is that a TLS port?")
    reason = (getattr(error, "reason", None) or "") if isinstance(error, ssl.SSLError) else ""
    known = _ALERTS.get(reason) or _REASONS.get(reason)
    if known is None:
        return Problem(reason or "TLS", f"made no TLS connection ({reason or error})", "")
    if server and reason in _ALERTS:
        return Problem(
            "REFUSES_US",
            f"refuses our certificate ({reason})",
            "Has it the CA of tls.server.certPath, and is that certificate good for the name that was called?",
        )
    if server and known is NOT_TLS:
        return Problem("NOT_TLS", "sent what begins like TLS and is none", "")
    if server and known is ENDED:
        return Problem("ENDED", "went away during the handshake", "")
    return known


def _certificate(error: ssl.SSLCertVerificationError, server: bool, name: str) -> Problem:
    code = error.verify_code
    if code == _EXPIRED:
        return Problem("EXPIRED", "shows a certificate that has expired", "Renew it, or set this machine's clock.")
    if code == _NOT_YET:
        return Problem(
            "NOT_YET_VALID", "shows a certificate that is not valid yet", "Compare the two machines' clocks."
        )
    if code in (_NAME, _ADDRESS):
        return Problem(
            "WRONG_NAME",
            f"shows a certificate that is not for {name or 'the name that was called'}",
            "Have it issued for the address that brokers advertise (subjectAltName), or set tls.client.verify=ca.",
        )
    if code in _UNTRUSTED:
        remedy = "Put the CA that signed it into tls.server.trustCertPath." if server else _NOT_TRUSTED
        return Problem("WRONG_CA", f"shows a certificate that is not trusted here ({error.verify_message})", remedy)
    return Problem("CERTIFICATE", f"shows a certificate that is refused here ({error.verify_message})", "")


def error_text(error: RocketError) -> str:
    """What an error says, with what to do where TLS is the matter: the server is there, and need not be looked for."""
    return f"{error.message} {error.remedy}".rstrip() if error.code.startswith("TLS_") else error.message
