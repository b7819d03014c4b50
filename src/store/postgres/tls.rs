//! TLS configuration for each mode of libpq.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::settings::{Settings, SslMode};
use crate::error::{Error, ErrorKind, Result};
use crate::store::etcd::tls;

/// Returns the TLS configuration, if the mode may use TLS.
/// Fails if the certificates of the authorities are needed and cannot be read.
pub(super) fn config(settings: &Settings) -> Result<Option<Arc<ClientConfig>>> {
    // As in libpq, a given authority counts even if the mode demands no check.
    let is_checked =
        settings.mode >= SslMode::VerifyCa || (settings.mode == SslMode::Require && settings.root.is_some());
    let roots = is_checked.then(|| tls::roots(settings.root.as_deref(), "PGSSLROOTCERT")).transpose()?.map(Arc::new);
    if settings.mode == SslMode::Disable {
        return Ok(None);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let failed = |error: &dyn std::fmt::Display| Error::new(ErrorKind::Bug, format!("no TLS: {error}"), "");
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| failed(&error))?;
    let chain = match roots {
        Some(roots) if settings.mode == SslMode::VerifyFull => {
            return Ok(Some(Arc::new(builder.with_root_certificates(roots).with_no_client_auth())));
        }
        Some(roots) => {
            let chain = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build();
            Some(chain.map_err(|error| failed(&error))?)
        }
        None => None,
    };
    let verifier = AnyHost { chain, algorithms: provider.signature_verification_algorithms };
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    Ok(Some(Arc::new(builder.with_no_client_auth())))
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
