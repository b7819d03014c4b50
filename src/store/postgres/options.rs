//! The settings of libpq (PostgreSQL 18), and what csalock does with each of them.
//!
//! A user who asks for protection must not get less than from psql(1). So a setting that restricts the connection is
//! implemented or refused; only the others may be ignored.

use crate::error::{Error, ErrorKind, Result};
use crate::name::escape;

pub(super) enum Treatment {
    /// csalock does what libpq does.
    Implemented,
    /// The other values restrict the connection in a way that csalock does not know, or ask for more than it has.
    Only(&'static [&'static str], &'static str),
    Ignored,
}

use Treatment::{Ignored, Implemented, Only};

/// A setting: its key in URLs and service files, its environment variable, and what csalock does with it.
pub(super) struct Setting(pub(super) &'static str, pub(super) &'static str, pub(super) Treatment);

/// All settings. An empty name means that there is none of that kind.
pub(super) const SETTINGS: [Setting; 57] = [
    Setting("application_name", "PGAPPNAME", Implemented),
    Setting("channel_binding", "PGCHANNELBINDING", Implemented),
    Setting("dbname", "PGDATABASE", Implemented),
    Setting("host", "PGHOST", Implemented),
    Setting("hostaddr", "PGHOSTADDR", Implemented),
    Setting("options", "PGOPTIONS", Implemented),
    Setting("passfile", "PGPASSFILE", Implemented),
    Setting("password", "PGPASSWORD", Implemented),
    Setting("port", "PGPORT", Implemented),
    Setting("require_auth", "PGREQUIREAUTH", Implemented),
    Setting("requirepeer", "PGREQUIREPEER", Implemented),
    Setting("requiressl", "PGREQUIRESSL", Implemented),
    Setting("service", "PGSERVICE", Implemented),
    Setting("servicefile", "PGSERVICEFILE", Implemented),
    Setting("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION", Implemented),
    Setting("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION", Implemented),
    Setting("sslcert", "PGSSLCERT", Implemented),
    Setting("sslcrl", "PGSSLCRL", Implemented),
    Setting("sslkey", "PGSSLKEY", Implemented),
    Setting("sslmode", "PGSSLMODE", Implemented),
    Setting("sslrootcert", "PGSSLROOTCERT", Implemented),
    Setting("sslsni", "PGSSLSNI", Implemented),
    Setting("user", "PGUSER", Implemented),
    Setting("", "PGSYSCONFDIR", Implemented),
    Setting("gssencmode", "PGGSSENCMODE", Only(&["disable", "prefer"], "csalock has no GSSAPI encryption")),
    Setting("min_protocol_version", "PGMINPROTOCOLVERSION", Only(&["3.0"], "csalock speaks version 3.0")),
    Setting("replication", "", Only(&["false", "off", "no", "0"], "csalock does not replicate")),
    Setting("scram_client_key", "", Only(&[], "csalock logs in with a password")),
    Setting("scram_server_key", "", Only(&[], "csalock logs in with a password")),
    Setting("sslcertmode", "PGSSLCERTMODE", Only(&["disable", "allow"], "csalock cannot insist on its certificate")),
    Setting("sslcrldir", "PGSSLCRLDIR", Only(&[], "csalock reads no directories of revocations; use sslcrl")),
    Setting("sslnegotiation", "PGSSLNEGOTIATION", Only(&["postgres"], "csalock has no direct TLS")),
    Setting("sslpassword", "", Only(&[], "csalock cannot decrypt a key")),
    Setting(
        "target_session_attrs",
        "PGTARGETSESSIONATTRS",
        Only(&["any", "read-write", "primary"], "csalock always needs the primary server"),
    ),
    Setting("client_encoding", "PGCLIENTENCODING", Ignored),
    Setting("connect_timeout", "PGCONNECT_TIMEOUT", Ignored),
    Setting("fallback_application_name", "", Ignored),
    Setting("gssdelegation", "PGGSSDELEGATION", Ignored),
    Setting("gsslib", "PGGSSLIB", Ignored),
    Setting("keepalives", "", Ignored),
    Setting("keepalives_count", "", Ignored),
    Setting("keepalives_idle", "", Ignored),
    Setting("keepalives_interval", "", Ignored),
    Setting("krbsrvname", "PGKRBSRVNAME", Ignored),
    Setting("load_balance_hosts", "PGLOADBALANCEHOSTS", Ignored),
    Setting("max_protocol_version", "PGMAXPROTOCOLVERSION", Ignored),
    Setting("oauth_client_id", "", Ignored),
    Setting("oauth_client_secret", "", Ignored),
    Setting("oauth_issuer", "", Ignored),
    Setting("oauth_scope", "", Ignored),
    Setting("sslcompression", "PGSSLCOMPRESSION", Ignored),
    Setting("sslkeylogfile", "", Ignored),
    Setting("tcp_user_timeout", "", Ignored),
    Setting("", "PGDATESTYLE", Ignored),
    Setting("", "PGGEQO", Ignored),
    Setting("", "PGLOCALEDIR", Ignored),
    Setting("", "PGTZ", Ignored),
];

pub(super) fn is_known(key: &str) -> bool {
    !key.is_empty() && SETTINGS.iter().any(|Setting(known, ..)| *known == key)
}

/// Fails if a setting has a value that csalock refuses. `find` returns the value of a key or variable.
pub(super) fn check(find: &dyn Fn(&str, &str) -> Option<String>) -> Result<()> {
    for Setting(key, variable, treatment) in &SETTINGS {
        let Only(allowed, why) = treatment else { continue };
        let found = find(key, variable).unwrap_or_default();
        if !found.is_empty() && !allowed.contains(&&found[..]) {
            let what = format!("{key}={}: {why}", escape(found.as_bytes()));
            let variable = if variable.is_empty() { key } else { variable };
            return Err(Error::new(ErrorKind::InvalidInput, what, format!("leave out {key}, and unset {variable}")));
        }
    }
    Ok(())
}
