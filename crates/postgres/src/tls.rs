//! TLS configuration for each mode of libpq, and the parts of a server's certificate (X.509, DER) that it and logins need.

use std::sync::Arc;

use ring::digest;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{VerifierBuilderError, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::version::{TLS12, TLS13};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, SignatureScheme, SupportedProtocolVersion,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::settings::{Settings, SslMode};
use lock::error::{Error, ErrorKind, Result};

/// `None` if the mode excludes TLS. Fails if a needed file cannot be read.
pub(super) fn config(settings: &Settings) -> Result<Option<ClientConfig>> {
    if settings.mode == SslMode::Disable {
        return Ok(None);
    }
    let versions: &[&SupportedProtocolVersion] = match settings.tls.versions {
        (3, _) => &[&TLS13],
        (_, 2) => &[&TLS12],
        _ => &[&TLS12, &TLS13],
    };
    let builder = net::tls_versions(versions)?;
    let provider = builder.crypto_provider().clone();
    let builder = match chain(settings, &provider)? {
        Some(chain) if settings.mode == SslMode::VerifyFull => builder.with_webpki_verifier(chain),
        chain => {
            let verifier = AnyHost { chain, algorithms: provider.signature_verification_algorithms };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
    };
    Ok(Some(match &settings.tls.own {
        Some((certificate, key)) => {
            net::with_client_certificate(builder, ("PGSSLCERT", certificate), ("PGSSLKEY", key))?
        }
        None => builder.with_no_client_auth(),
    }))
}

/// Returns the verifier of certificates, if the mode checks them. As in libpq, a given authority counts even if the mode
/// demands no check.
fn chain(settings: &Settings, provider: &Arc<CryptoProvider>) -> Result<Option<Arc<WebPkiServerVerifier>>> {
    let root = settings.tls.root.as_deref();
    if settings.mode < SslMode::Require || (settings.mode == SslMode::Require && root.is_none()) {
        return Ok(None);
    }
    let roots = Arc::new(net::trusted_roots(root, "PGSSLROOTCERT")?);
    let mut builder = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
    if let Some(path) = &settings.tls.revoked {
        builder = builder.with_crls(net::in_file("PGSSLCRL", path)?);
    }
    let wrong =
        |error: VerifierBuilderError| Error::new(ErrorKind::Unavailable, format!("PGSSLCRL: {error}"), "correct it");
    builder.build().map(Some).map_err(wrong)
}

/// Accepts a certificate for any host, and any certificate if there is no chain to check.
#[derive(Debug)]
struct AnyHost {
    chain: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
}

type Valid = std::result::Result<HandshakeSignatureValid, TlsError>;

impl ServerCertVerifier for AnyHost {
    fn verify_server_cert(
        &self,
        end: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, TlsError> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        match self.chain.as_ref().map(|chain| chain.verify_server_cert(end, between, name, ocsp, now)) {
            // The name is checked after the chain.
            None | Some(Err(TlsError::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }))) => {
                Ok(ServerCertVerified::assertion())
            }
            Some(done) => done,
        }
    }

    fn verify_tls12_signature(&self, said: &[u8], end: &CertificateDer<'_>, by: &DigitallySignedStruct) -> Valid {
        verify_tls12_signature(said, end, by, &self.algorithms)
    }

    fn verify_tls13_signature(&self, said: &[u8], end: &CertificateDer<'_>, by: &DigitallySignedStruct) -> Valid {
        verify_tls13_signature(said, end, by, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

const SEQUENCE: u8 = 0x30;
const OBJECT_ID: u8 = 0x06;

/// Identifiers of algorithms that sign with SHA-384 and SHA-512: RSA, ECDSA; and with SHA-256 or a weaker hash.
const SHA384: [&[u8]; 2] = [b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0c", b"\x2a\x86\x48\xce\x3d\x04\x03\x03"];
const SHA512: [&[u8]; 2] = [b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0d", b"\x2a\x86\x48\xce\x3d\x04\x03\x04"];
const SHA256: [&[u8]; 5] = [
    b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0b",
    b"\x2a\x86\x48\xce\x3d\x04\x03\x02",
    b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x05",
    b"\x2a\x86\x48\xce\x3d\x04\x01",
    b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x04",
];

/// Content of the next element if it has this tag, and the bytes after it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match *first {
        short @ 0..0x80 => (usize::from(short), rest),
        long => {
            let (bytes, rest) =
                rest.split_at_checked(usize::from(long & 0x7f)).filter(|(bytes, _)| bytes.len() <= 3)?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
    };
    (*found == tag).then(|| rest.split_at_checked(length))?
}

/// Hash of the certificate (RFC 5929, tls-server-end-point); `None` if its algorithm defines none.
pub(super) fn end_point(der: &[u8]) -> Option<Vec<u8>> {
    let (certificate, _) = element(der, SEQUENCE)?;
    let (_, after_signed) = element(certificate, SEQUENCE)?;
    let (signature, _) = element(after_signed, SEQUENCE)?;
    let (id, _) = element(signature, OBJECT_ID)?;
    let algorithm = match id {
        id if SHA256.contains(&id) => &digest::SHA256,
        id if SHA384.contains(&id) => &digest::SHA384,
        id if SHA512.contains(&id) => &digest::SHA512,
        _ => return None,
    };
    Some(digest::digest(algorithm, der).as_ref().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_are_no_certificate() {
        for bytes in [&b""[..], b"\x30", b"\x30\x80", b"\x30\x03\x30\x01\x00", b"\x30\x84\xff\xff\xff\xff", &[0x30; 40]]
        {
            assert!(end_point(bytes).is_none(), "{bytes:x?}");
        }
    }
}
