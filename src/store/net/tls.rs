//! Certificates for TLS: trusted authorities, revocations, and that of the client.

use std::path::Path;

use nix::errno::Errno;
use rustls::client::WantsClientCert;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use crate::error::{Error, ErrorKind, Result};
use crate::name::escape_path;

/// Returns the configuration with a certificate and a key of this client: their variables and files.
pub(in crate::store) fn with_own(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    (certificate, path): (&str, &Path),
    (key, of_key): (&str, &Path),
) -> Result<ClientConfig> {
    let own = certificates(certificate, path)?;
    let secret = PrivateKeyDer::from_pem_file(of_key).map_err(|error| wrong(key, of_key, &error))?;
    let config = builder.with_client_auth_cert(own, secret);
    config.map_err(|error| useless(certificate, path, &format!("it does not go with its key: {error}")))
}

pub(in crate::store) fn revoked(variable: &str, path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>> {
    let read = || CertificateRevocationListDer::pem_file_iter(path)?.collect::<std::result::Result<Vec<_>, _>>();
    match read() {
        Ok(found) if found.is_empty() => Err(wrong(variable, path, &pem::Error::NoItemsFound)),
        Ok(found) => Ok(found),
        Err(error) => Err(wrong(variable, path, &error)),
    }
}

/// Returns the authorities in the file that this variable names, or those of this system.
/// Fails if there are none.
pub(in crate::store) fn roots(file: Option<&Path>, variable: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match file {
        Some(path) => {
            for certificate in certificates(variable, path)? {
                roots.add(certificate).map_err(|error| useless(variable, path, &error.to_string()))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        let what = "this system knows no certificate authorities";
        let cure =
            format!("set {variable} to the one that signed the server's certificate, or install ca-certificates");
        return Err(Error::new(ErrorKind::Unavailable, what, cure));
    }
    Ok(roots)
}

fn certificates(variable: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = || CertificateDer::pem_file_iter(path)?.collect::<std::result::Result<Vec<_>, _>>();
    match read() {
        Ok(found) if found.is_empty() => Err(wrong(variable, path, &pem::Error::NoItemsFound)),
        Ok(found) => Ok(found),
        Err(error) => Err(wrong(variable, path, &error)),
    }
}

fn wrong(variable: &str, path: &Path, error: &pem::Error) -> Error {
    match error {
        pem::Error::Io(error) => {
            let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
            let found = Error::os(errno, "read", path);
            Error::new(
                found.kind(),
                format!("{variable}: cannot read {}: {}", escape_path(path), errno.desc()),
                "set it right",
            )
        }
        _ => useless(variable, path, "it has nothing of that kind in PEM"),
    }
}

fn useless(variable: &str, path: &Path, why: &str) -> Error {
    let what = format!("{variable} is {}, which is of no use: {why}", escape_path(path));
    Error::new(ErrorKind::Unavailable, what, "set it to the right file")
}
