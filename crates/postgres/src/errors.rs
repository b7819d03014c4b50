//! Errors between csalock and PostgreSQL: kind and hint, and whether a retry may help.

use lock::error::{Error, ErrorKind};
use lock::name::escape;
use net::{CallError, Cause, NetError, Retry};

pub(super) type SqlError = CallError<SqlCause>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SqlCause {
    /// SQLSTATE and message.
    Said(String, String),
    /// The server has committed, but its synchronous standby has not confirmed that.
    NotReplicated,
}

/// SQLSTATE of errors that may pass, beside those of class 08: the server or the pooler starts, stops, is silent or has no
/// connection left, or undid the transaction because of another one.
const PASSING: [&str; 8] = ["40001", "40P01", "53300", "55P03", "57014", "57P01", "57P02", "57P03"];

impl Cause for SqlCause {
    fn retry(&self) -> Retry {
        match self {
            SqlCause::Said(code, _) if !code.starts_with("08") && !PASSING.contains(&&code[..]) => Retry::Answered,
            SqlCause::Said(..) | SqlCause::NotReplicated => Retry::Always,
        }
    }
}

pub(super) fn strange(what: &str) -> SqlError {
    NetError::Strange(what.to_string()).into()
}

pub(super) fn said(code: &str, message: String) -> SqlError {
    CallError::Server(SqlCause::Said(code.to_string(), message))
}

pub(super) fn code(error: &SqlError) -> &str {
    if let CallError::Server(SqlCause::Said(code, _)) = error { code } else { "" }
}

pub(super) fn is_standby(error: &SqlError) -> bool {
    code(error) == "25006"
}

/// True for a failure that another attempt, with TLS instead of without or the other way round, may avoid: TLS fails, or
/// pg_hba.conf refuses the connection before a login.
pub(super) fn depends_on_tls(error: &SqlError) -> bool {
    matches!(error, CallError::Net(NetError::Tls(_))) || code(error) == "28000"
}

pub(super) fn is_missing(error: &SqlError) -> bool {
    matches!(code(error), "3F000" | "42P01" | "42883")
}

/// True if another process was faster to create the schema.
pub(super) fn is_taken(error: &SqlError) -> bool {
    matches!(code(error), "42P06" | "42P07" | "42710" | "42723" | "23505" | "XX000")
}

/// True if another transaction created the same record first, which a strict isolation hides.
pub(super) fn is_conflict(error: &SqlError) -> bool {
    code(error) == "23505"
}

/// True for a refusal that ends the call. The connection stays usable.
pub(super) fn ends_call(error: &SqlError) -> bool {
    matches!(error, CallError::Server(_)) && error.retry() == Retry::Answered
}

/// `place` is the URL of the store.
pub(super) fn explain(error: &SqlError, place: &str, schema: &str) -> Error {
    let (code, message) = match error {
        CallError::Net(line) => {
            let what = format!("PostgreSQL cannot be reached: {place}: {line}");
            return Error::new(ErrorKind::Unavailable, what, unreachable_hint(line));
        }
        CallError::Server(SqlCause::NotReplicated) => {
            let what = format!("PostgreSQL at {place}: the synchronous standby does not confirm commits");
            let hint = "start the standby, or change synchronous_standby_names, then try again";
            return Error::new(ErrorKind::Unavailable, what, hint);
        }
        CallError::Server(SqlCause::Said(code, message)) => (&code[..], escape(message.as_bytes())),
    };
    let (kind, hint) = match code {
        "28P01" | "28000" => (ErrorKind::Denied, "check the user, ~/.pgpass or PGPASSWORD, and pg_hba.conf"),
        "3D000" => (ErrorKind::Unavailable, "create it with createdb(1), or name another one in the store's URL"),
        "42501" => (ErrorKind::Denied, "grant the privileges in docs/postgres.md to this user"),
        "53100" => (ErrorKind::InputOutput, "free some space on the server, then try again"),
        "53300" => (ErrorKind::Unavailable, "raise max_connections, or put pgbouncer before the server"),
        "25006" | "55000" => {
            (ErrorKind::Unavailable, "it is a standby or read-only; name the primary server in the store's URL")
        }
        "CSA01" => (
            ErrorKind::Corrupt,
            "use the csalock that made it; or end all holders and DROP SCHEMA; or name another schema: ?schema=NAME",
        ),
        "CSA02" => (
            ErrorKind::Unavailable,
            "a crash of the server could lose a lock; ALTER ROLE or ALTER DATABASE ... SET synchronous_commit = on",
        ),
        _ if error.retry() == Retry::Always => {
            (ErrorKind::Unavailable, "check whether the server is up, then try again")
        }
        _ => (ErrorKind::System, "check the server's log, and whether it is PostgreSQL 13 or later"),
    };
    let what = if code == "CSA01" { format!("schema {schema} {message}") } else { message };
    Error::new(kind, format!("PostgreSQL at {place}: {what}"), hint)
}

fn unreachable_hint(line: &NetError) -> &'static str {
    match line {
        NetError::Unresolved => "check the spelling of the store's URL, and the name service",
        NetError::NamesSilent | NetError::NamesFailed(_) => "check the name service, or name the host by its address",
        NetError::Tls(why) if why.contains("UnknownIssuer") => {
            "set PGSSLROOTCERT to the certificate of the authority that signed the server's certificate"
        }
        NetError::Tls(why) if why.contains("UnsupportedCertVersion") => {
            "csalock refuses certificates of version 1: give the server one of version 3"
        }
        NetError::Tls(_) => "check the server's certificate, ssl in postgresql.conf, and sslmode",
        _ => "check whether PostgreSQL runs there and whether the store's URL has the right host and port",
    }
}
