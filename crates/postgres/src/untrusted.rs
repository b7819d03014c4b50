//! Interpretation of messages from any program, for the properties of the program's `untrusted` module, which cannot access this module otherwise.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::Database;
use super::errors::{SqlError, ends_call, explain, is_conflict, is_missing, is_taken};
use super::session::{Session, statement};
use super::settings::Settings;
use host::Fake;
use net::{CallDeadline, Socket, Wire};

/// Maximum size of an input, which the socket takes at once.
const LONGEST: usize = 1 << 16;

/// Reads the login and the answer to a statement. Returns the messages of the error.
pub fn read(bytes: &[u8]) -> Vec<String> {
    let (ours, mut theirs) = UnixStream::pair().expect("there are descriptors");
    theirs.write_all(&bytes[..bytes.len().min(LONGEST)]).expect("the socket takes it");
    theirs.shutdown(Shutdown::Write).expect("it can be shut down");
    let host = Arc::new(Fake::new(1));
    let socket = Socket::new(TcpStream::from(OwnedFd::from(ours)), Arc::new(CallDeadline::new(host)));
    let variables = |name: &str| (name == "PGPASSWORD").then(|| "sesame".into());
    let settings = Database::parse(b"//u@h/d").ok().and_then(|database| Settings::new(&database, &variables, 0).ok());
    let (Ok(socket), Some(settings)) = (socket, settings) else { return Vec::new() };
    let done = Session::over(Wire { socket, tls: None }, &settings, &settings.targets[0]).and_then(|mut session| {
        let rows = session.exchange(&statement("SELECT 1", &[], std::time::Duration::from_secs(1))?)?;
        let size: usize = rows.iter().flatten().flatten().map(Vec::len).sum();
        assert!(size <= bytes.len(), "the rows are longer than the answer");
        Ok(())
    });
    let said = |error: SqlError| {
        let _ = (is_missing(&error), is_taken(&error), is_conflict(&error), ends_call(&error));
        explain(&error, "postgres://h/d", "s").to_string()
    };
    done.err().map(said).into_iter().collect()
}
