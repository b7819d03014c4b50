//! Errors between csalock and PostgreSQL: exit code and hint, and whether a retry may help.

use std::io;

use crate::error::{Error, ErrorKind};
use crate::name::escape;
use crate::store::net::retry::CallError;
use crate::store::net::retry::{Retry, Trouble};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SqlError {
    /// The server cannot be reached, or its answer is invalid.
    Line(CallError),
    Said(String, String),
    /// The server has committed, but its synchronous standby has not confirmed that.
    NotReplicated,
}

impl SqlError {
    pub(super) fn strange(what: &str) -> SqlError {
        SqlError::Line(CallError::Strange(what.to_string()))
    }

    pub(super) fn code(&self) -> &str {
        if let SqlError::Said(code, _) = self { code } else { "" }
    }

    pub(super) fn is_standby(&self) -> bool {
        self.code() == "25006"
    }

    /// Returns true for a trouble that another attempt, with TLS instead of without or the other way round, may avoid: TLS
    /// fails, or pg_hba.conf refuses the connection before a login.
    pub(super) fn depends_on_tls(&self) -> bool {
        matches!(self, SqlError::Line(CallError::Tls(_))) || self.code() == "28000"
    }

    pub(super) fn is_missing(&self) -> bool {
        matches!(self.code(), "3F000" | "42P01" | "42883")
    }

    /// Returns true if another process was faster to create the schema.
    pub(super) fn is_taken(&self) -> bool {
        matches!(self.code(), "42P06" | "42P07" | "42710" | "42723" | "23505" | "XX000")
    }

    /// Returns true if another transaction created the same record first, which a strict isolation hides.
    pub(super) fn is_conflict(&self) -> bool {
        self.code() == "23505"
    }

    /// Returns true for a refusal that ends the call. The connection stays usable.
    pub(super) fn ends_call(&self) -> bool {
        matches!(self, SqlError::Said(..)) && !self.may_pass()
    }

    /// Returns the error for the user. `place` is the URL of the store.
    pub(super) fn error(&self, place: &str, schema: &str) -> Error {
        let (code, message) = match self {
            SqlError::Line(line) => {
                let what = format!("PostgreSQL cannot be reached: {place}: {line}");
                return Error::new(ErrorKind::Unavailable, what, unreachable_hint(line));
            }
            SqlError::NotReplicated => {
                let what = format!("PostgreSQL at {place}: the synchronous standby does not confirm commits");
                let hint = "start the standby, or change synchronous_standby_names, then try again";
                return Error::new(ErrorKind::Unavailable, what, hint);
            }
            SqlError::Said(code, message) => (&code[..], escape(message.as_bytes())),
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
            _ if self.may_pass() => (ErrorKind::Unavailable, "check whether the server is up, then try again"),
            _ => (ErrorKind::System, "check the server's log, and whether it is PostgreSQL 13 or later"),
        };
        let what = if code == "CSA01" { format!("schema {schema} {message}") } else { message };
        Error::new(kind, format!("PostgreSQL at {place}: {what}"), hint)
    }
}

impl Trouble for SqlError {
    fn retry(&self) -> Retry {
        match self {
            SqlError::Line(line) => line.retry(),
            _ if self.may_pass() => Retry::Always,
            _ => Retry::Answered,
        }
    }

    /// The server or the pooler starts, stops, is silent or has no connection left, or undid the transaction because of
    /// another one.
    fn may_pass(&self) -> bool {
        match self {
            SqlError::Line(line) => line.may_pass(),
            SqlError::NotReplicated => true,
            SqlError::Said(code, _) => {
                let passes = ["40001", "40P01", "53300", "55P03", "57014", "57P01", "57P02", "57P03"];
                code.starts_with("08") || passes.contains(&&code[..])
            }
        }
    }
}

fn unreachable_hint(line: &CallError) -> &'static str {
    match line {
        CallError::Unresolved => "check the spelling of the store's URL, and the name service",
        CallError::NamesSilent | CallError::NamesFailed(_) => "check the name service, or name the host by its address",
        CallError::Tls(why) if why.contains("UnknownIssuer") => {
            "set PGSSLROOTCERT to the certificate of the authority that signed the server's certificate"
        }
        CallError::Tls(why) if why.contains("UnsupportedCertVersion") => {
            "csalock refuses certificates of version 1: give the server one of version 3"
        }
        CallError::Tls(_) => "check the server's certificate, ssl in postgresql.conf, and sslmode",
        _ => "check whether PostgreSQL runs there and whether the store's URL has the right host and port",
    }
}

impl From<io::Error> for SqlError {
    fn from(error: io::Error) -> SqlError {
        SqlError::Line(CallError::from(error))
    }
}
