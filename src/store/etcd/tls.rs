//! TLS configuration: trusted authorities and client certificate.

use std::sync::Arc;

use rustls::ClientConfig;

use super::Access;
use crate::error::{Error, ErrorKind, Result};
use crate::store::net::tls::{roots, with_own};

pub(super) fn config(access: &Access) -> Result<ClientConfig> {
    let roots = roots(access.cacert.as_deref(), "CSALOCK_ETCD_CACERT")?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| Error::new(ErrorKind::Bug, format!("no TLS: {error}"), ""))?;
    let builder = builder.with_root_certificates(roots);
    match (&access.cert, &access.key) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(cert), key) => {
            // One file may contain both the certificate and the key.
            let key = key.as_ref().unwrap_or(cert);
            with_own(builder, ("CSALOCK_ETCD_CERT", cert), ("CSALOCK_ETCD_KEY", key))
        }
        (None, Some(_)) => {
            let what = "CSALOCK_ETCD_KEY is set, and CSALOCK_ETCD_CERT is not";
            Err(Error::new(ErrorKind::InvalidInput, what, "set both, or none"))
        }
    }
}
