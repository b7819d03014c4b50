//! The etcd store.

use std::path::PathBuf;
use std::sync::Arc;

use super::Cluster;
use crate::error::Result;
use crate::host::Host;

/// How an etcd cluster is to be accessed, beside its URL.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// `CSALOCK_ETCD_CACERT`: whose signature its certificates have, as a file in PEM; else the system's authorities.
    pub cacert: Option<PathBuf>,
    /// `CSALOCK_ETCD_CERT`: our own certificate, as a file in PEM.
    pub cert: Option<PathBuf>,
    /// `CSALOCK_ETCD_KEY`: its key, as a file in PEM.
    pub key: Option<PathBuf>,
    /// `CSALOCK_ETCD_USER`
    pub user: Option<String>,
    /// `CSALOCK_ETCD_PASSWORD`
    pub password: Option<String>,
    /// `CSALOCK_ETCD_PASSWORD_FILE`: a file whose first line is the password.
    pub password_file: Option<PathBuf>,
    /// Where tokens are kept that a login gave: a directory of this user's, gone with the boot.
    pub runtime: Option<PathBuf>,
}

/// A store in an etcd cluster.
pub struct Etcd {}

impl Etcd {
    /// TODO
    pub fn open(_cluster: &Cluster, _access: &Access, _host: Arc<dyn Host>) -> Result<Etcd> {
        Ok(Etcd {})
    }
}
