//! Connection to a server: start, TLS, and statements of the frontend/backend protocol 3.0.
//!
//! Each request is one batch of the extended protocol with unnamed objects, so any server behind a pooler may run it.

use std::fmt::Display;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use postgres_protocol::IsNull;
use postgres_protocol::message::backend::{DataRowBody, ErrorFields, Header, Message};
use postgres_protocol::message::frontend;

use super::errors::{SqlCause, SqlError, depends_on_tls, ends_call, is_standby, said, strange};
use super::settings::{Settings, SslMode, Target};
use super::{auth, tls};
use host::user_name;
use lock::name::escape;
use net::{CallError, Connector, NetError, Socket, Wire, is_readable};

/// Maximum length of a message in bytes.
const LONGEST: usize = 8 << 20;

/// Maximum memory for all rows of an answer, in bytes.
const LARGEST: usize = 16 << 20;

/// Function of the server that warns if a wait for a synchronous standby was cut short. The commit stands on this server.
const WAIT_FOR_STANDBY: &str = "SyncRepWaitForLSN";

pub(super) type Done<T> = Result<T, SqlError>;

/// Row of an answer: its columns in binary format.
pub(super) type Row = Vec<Option<Vec<u8>>>;

pub(super) struct Session {
    pub(super) wire: Wire,
    incoming: BytesMut,
    /// Process of the server, or a random number from a pooler.
    pub(super) pid: i32,
}

impl Session {
    /// Connects to the first server that answers, and logs in. Of several servers, a standby does not count.
    pub(super) fn open(connector: &Connector, settings: &Settings) -> Done<Session> {
        let until = connector.host.boottime() + connector.call_deadline.left();
        let mut first = None;
        for (at, target) in settings.targets.iter().enumerate() {
            let left = until.saturating_sub(connector.host.boottime());
            let others = u32::try_from(settings.targets.len() - at).unwrap_or(1);
            connector.call_deadline.set(connector.host.boottime() + left / others);
            let opened = Session::open_at(connector, settings, target)
                .and_then(|session| if settings.targets.len() == 1 { Ok(session) } else { session.unless_standby() });
            connector.call_deadline.set(until);
            match opened {
                Err(error) if ends_call(&error) && !is_standby(&error) => return Err(error),
                Err(error) => drop(first.get_or_insert(error)),
                opened => return opened,
            }
        }
        Err(first.unwrap_or_else(|| strange("no server is named")))
    }

    /// Connects to this server, with and without TLS in the order that the mode asks for.
    fn open_at(connector: &Connector, settings: &Settings, target: &Target) -> Done<Session> {
        let order: &[bool] = match settings.mode {
            _ if target.is_socket() => &[false],
            SslMode::Disable => &[false],
            SslMode::Allow => &[false, true],
            SslMode::Prefer => &[true, false],
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => &[true],
        };
        let mut first = None;
        for encrypted in order {
            let opened =
                dial(connector, settings, target, *encrypted).and_then(|wire| Session::over(wire, settings, target));
            match opened {
                Err(error) if depends_on_tls(&error) => drop(first.get_or_insert(error)),
                Err(error) => return Err(first.unwrap_or(error)),
                opened => return opened,
            }
        }
        Err(first.unwrap_or_else(|| strange("no way to connect")))
    }

    pub(super) fn over(wire: Wire, settings: &Settings, target: &Target) -> Done<Session> {
        let mut session = Session { wire, incoming: BytesMut::new(), pid: 0 };
        let pairs = [
            ("user", &settings.user[..]),
            ("database", &settings.database),
            ("application_name", &settings.application),
            ("options", settings.options.as_deref().unwrap_or_default()),
        ];
        let pairs = pairs.into_iter().filter(|(_, value)| !value.is_empty());
        session.send(|buffer| frontend::startup_message(pairs, buffer).map_err(invalid))?;
        auth::log_in(&mut session, settings, target)?;
        loop {
            match session.receive()? {
                Message::BackendKeyData(key) => session.pid = key.process_id(),
                Message::ReadyForQuery(_) => return Ok(session),
                _ => {}
            }
        }
    }

    fn unless_standby(mut self) -> Done<Session> {
        let rows = self.exchange(&script("SELECT pg_is_in_recovery()", Duration::from_secs(4))?)?;
        let is_standby = rows.first().and_then(|row| row.first()) == Some(&Some(b"t".to_vec()));
        if is_standby { Err(said("25006", "it is a standby".into())) } else { Ok(self) }
    }

    /// Hash that stands for this connection in a login, if it is encrypted.
    pub(super) fn end_point(&self) -> Option<Vec<u8>> {
        tls::end_point(self.wire.tls.as_ref()?.peer_certificates()?.first()?)
    }

    pub(super) fn send(&mut self, make: impl FnOnce(&mut BytesMut) -> Done<()>) -> Done<()> {
        let mut buffer = BytesMut::new();
        make(&mut buffer)?;
        Ok(self.wire.send(&buffer)?)
    }

    fn message(&mut self) -> Done<Message> {
        loop {
            // A length is only a claim, so it is checked before the crate makes room for it.
            let length = Header::parse(&self.incoming).map_err(invalid)?.map_or(0, |header| header.len());
            if length as usize > LONGEST {
                return Err(strange("it does not speak PostgreSQL's protocol"));
            }
            if let Some(message) = Message::parse(&mut self.incoming).map_err(invalid)? {
                return Ok(message);
            }
            let mut buffer = [0; 16 << 10];
            match self.wire.read(&mut buffer)? {
                0 => return Err(NetError::Closed.into()),
                length => self.incoming.extend_from_slice(&buffer[..length]),
            }
        }
    }

    /// Next message of the login. Fails if that is an error.
    pub(super) fn receive(&mut self) -> Done<Message> {
        match self.message()? {
            Message::ErrorResponse(body) => Err(error_in(|| body.fields()).0),
            message => Ok(message),
        }
    }

    /// Sends a request, and returns the rows of the answer to its last statement.
    pub(super) fn exchange(&mut self, request: &[u8]) -> Done<Vec<Row>> {
        self.wire.send(request)?;
        let (mut rows, mut failed, mut size, mut is_certain) = (Vec::new(), None, 0, true);
        loop {
            match self.message()? {
                // The rows of the next statement begin.
                Message::BindComplete | Message::RowDescription(_) => rows.clear(),
                Message::DataRow(body) => {
                    size += cost(&body);
                    if size > LARGEST {
                        return Err(NetError::TooLong.into());
                    }
                    rows.push(row(&body)?);
                }
                Message::NoticeResponse(body) => is_certain &= field(&mut body.fields(), b'R') != WAIT_FOR_STANDBY,
                Message::ErrorResponse(body) => match error_in(|| body.fields()) {
                    (error, true) => return Err(error),
                    (error, false) => failed = Some(error),
                },
                Message::ReadyForQuery(_) if !is_certain => return Err(CallError::Server(SqlCause::NotReplicated)),
                Message::ReadyForQuery(_) => return failed.map_or(Ok(rows), Err),
                _ => {}
            }
        }
    }

    /// Unexpected data may be a farewell.
    pub(super) fn is_idle(&self) -> bool {
        self.incoming.is_empty() && !is_readable(self.socket())
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.wire.socket().as_fd()
    }

    /// Ends the connection for all processes that have it.
    pub(super) fn end(&mut self) {
        let _ = self.send(|buffer| {
            frontend::terminate(buffer);
            Ok(())
        });
        let _ = self.wire.socket().shutdown(std::net::Shutdown::Both);
    }
}

/// Connects, and starts TLS if `encrypted`. With the mode `prefer`, a server without TLS gets a plain connection.
fn dial(connector: &Connector, settings: &Settings, target: &Target, encrypted: bool) -> Done<Wire> {
    if target.is_socket() {
        let path = format!("{}/.s.PGSQL.{}", target.host, target.port);
        let stream = TcpStream::from(connector.connect_to_socket(&path)?);
        check_peer(&stream, settings)?;
        return Ok(Wire { socket: Socket::new(stream, connector.call_deadline.clone())?, tls: None });
    }
    let mut socket = Socket::new(connector.connect(&target.place())?, connector.call_deadline.clone())?;
    if !encrypted {
        return Ok(Wire { socket, tls: None });
    }
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    socket.write_all(&request)?;
    let mut answer = [0];
    socket.read_exact(&mut answer)?;
    match answer {
        [b'S'] => Ok(connector.encrypt(&target.server(), socket)?),
        [b'N'] if settings.mode == SslMode::Prefer => Ok(Wire { socket, tls: None }),
        [b'N'] => Err(NetError::Tls("the server does not offer it".to_string()).into()),
        _ => Err(strange("it does not speak PostgreSQL's protocol")),
    }
}

/// Fails if the server at the other end of a socket does not run as the user that the user named.
fn check_peer(stream: &TcpStream, settings: &Settings) -> Done<()> {
    let Some(wanted) = &settings.peer else { return Ok(()) };
    let found = getsockopt(stream, PeerCredentials).ok().and_then(|peer| user_name(peer.uid()));
    if found.as_ref() == Some(wanted) {
        return Ok(());
    }
    let found = escape(found.unwrap_or_else(|| "an unknown user".to_string()).as_bytes());
    let what = format!("it runs as {found}, and requirepeer demands {}", escape(wanted.as_bytes()));
    Err(said("28000", what))
}

pub(super) fn invalid(error: impl Display) -> SqlError {
    strange(&format!("an invalid message: {error}"))
}

/// Returns the settings of a transaction whose client waits for this time. Each request begins with them: another role may
/// create functions and operators in the schemas of the usual search_path, and the warning that a wait for a standby was
/// cut short must arrive. These names themselves are qualified, and the arguments fit one function exactly.
fn transaction_settings(left: Duration) -> String {
    let left = left.as_millis().max(1);
    let lock = (left * 9 / 10).max(1);
    let settings = [
        ("search_path", "pg_catalog, pg_temp".to_string()),
        ("client_min_messages", "warning".to_string()),
        ("lock_timeout", lock.to_string()),
        ("statement_timeout", left.to_string()),
    ];
    let calls = settings.map(|(name, value)| format!("pg_catalog.set_config('{name}', '{value}', true)"));
    format!("SELECT {}", calls.join(", "))
}

/// Request for a statement with parameters in binary format. The server has the time `left` for it.
pub(super) fn statement(sql: &str, parameters: &[Vec<u8>], left: Duration) -> Done<BytesMut> {
    let mut buffer = BytesMut::new();
    for (sql, parameters) in [(&transaction_settings(left)[..], &[][..]), (sql, parameters)] {
        frontend::parse("", sql, [], &mut buffer).map_err(invalid)?;
        let copy = |parameter: &Vec<u8>, buffer: &mut BytesMut| {
            buffer.extend_from_slice(parameter);
            Ok(IsNull::No)
        };
        // All parameters, then all columns, in binary format.
        let bound = frontend::bind("", "", [1], parameters, copy, [1], &mut buffer);
        bound.map_err(|_| strange("a parameter is too long"))?;
        frontend::execute("", 0, &mut buffer).map_err(invalid)?;
    }
    frontend::sync(&mut buffer);
    Ok(buffer)
}

/// The statements form one transaction. The server has the time `left` for them.
pub(super) fn script(sql: &str, left: Duration) -> Done<BytesMut> {
    let mut buffer = BytesMut::new();
    frontend::query(&format!("{}; {sql}", transaction_settings(left)), &mut buffer).map_err(invalid)?;
    Ok(buffer)
}

/// Parameter of type bytea[] or bigint[].
pub(super) fn array<T: AsRef<[u8]>>(elements: impl IntoIterator<Item = Option<T>>, is_bytes: bool) -> Vec<u8> {
    let mut count = 0_u32;
    let mut body = Vec::new();
    for element in elements {
        count += 1;
        body.extend(element.as_ref().map_or(-1, |element| element.as_ref().len() as i32).to_be_bytes());
        body.extend(element.iter().flat_map(AsRef::as_ref));
    }
    let oid: u32 = if is_bytes { 17 } else { 20 };
    let dimensions = u32::from(count > 0);
    let head = [dimensions, 1, oid].into_iter().chain((count > 0).then_some([count, 1]).into_iter().flatten());
    head.flat_map(u32::to_be_bytes).chain(body).collect()
}

fn field(fields: &mut ErrorFields<'_>, kind: u8) -> String {
    let found = fields.find(|field| Ok(field.type_() == kind)).ok().flatten();
    let text = found.map_or(String::new(), |field| String::from_utf8_lossy(field.value_bytes()).into_owned());
    text.chars().take(300).collect()
}

/// Also returns true if the server has closed the connection.
fn error_in<'a>(fields: impl Fn() -> ErrorFields<'a>) -> (SqlError, bool) {
    let field = |kind| field(&mut fields(), kind);
    let is_fatal = !matches!(&field(b'V')[..], "ERROR");
    let (code, message) = (field(b'C'), field(b'M'));
    // pgbouncer has one code for everything.
    let code = match &code[..] {
        "08P01" if message.contains("authentication failed") || message.contains("no such user") => "28P01",
        "08P01" if message.contains("no such database") => "3D000",
        "XX000" if message.to_lowercase().contains("max client") => "53300",
        code => code,
    };
    (said(code, message), is_fatal)
}

/// Memory of a row in bytes. A column of seven bytes costs ten times as much.
fn cost(body: &DataRowBody) -> usize {
    let columns = body.ranges().size_hint().0;
    64 + columns * 48 + body.buffer().len()
}

fn row(body: &DataRowBody) -> Done<Row> {
    let copy = |range: Option<std::ops::Range<usize>>| Ok(range.map(|range| body.buffer()[range].to_vec()));
    body.ranges().map(copy).collect().map_err(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_has_its_elements_and_its_nulls() {
        assert_eq!(array([None::<&[u8]>; 0], true), [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 17]);
        let two = [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 17, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, b'a', 255, 255, 255, 255];
        assert_eq!(array([Some(b"a"), None], true), two);
    }

    fn message(kind: u8, body: &[u8]) -> Message {
        let length = (body.len() as u32 + 4).to_be_bytes();
        let mut bytes = BytesMut::from(&[&[kind], &length[..], body].concat()[..]);
        Message::parse(&mut bytes).unwrap().unwrap()
    }

    #[test]
    fn a_message_of_any_program_is_an_error_or_a_row() {
        let row_of = |body: &[u8]| match message(b'D', body) {
            Message::DataRow(body) => row(&body),
            _ => panic!(),
        };
        assert_eq!(row_of(b"\0\x02\0\0\0\x01a\xff\xff\xff\xff"), Ok(vec![Some(b"a".to_vec()), None]));
        for wrong in [&b"\0\x01"[..], b"\0\x01\0\0\0\x02a", b"\xff\xff"] {
            assert!(row_of(wrong).is_err(), "{wrong:?}");
        }
        let said_in = |body: &[u8]| match message(b'E', body) {
            Message::ErrorResponse(body) => error_in(|| body.fields()),
            _ => panic!(),
        };
        let refused = said_in(b"VERROR\0C42501\0Mno\0\0");
        assert_eq!(refused, (said("42501", "no".to_string()), false));
        let long = [b"M", &[b'x'; 1000][..], b"\0\0"].concat();
        assert_eq!(said_in(&long), (said("", "x".repeat(300)), true));
    }

    #[test]
    fn the_memory_of_a_row_counts_its_columns() {
        let Message::DataRow(body) = message(b'D', &[&b"\x10\0"[..], &[0xff; 4 * 4096]].concat()) else { panic!() };
        assert!(cost(&body) > 4096 * 24);
        let Message::DataRow(body) = message(b'D', b"\0\0") else { panic!() };
        assert!(cost(&body) >= 64);
    }

    #[test]
    fn an_answer_that_does_not_end_is_refused_before_it_needs_much_memory() {
        use std::os::fd::OwnedFd;
        use std::os::unix::net::UnixStream;
        use std::sync::Arc;
        use std::sync::atomic::{AtomicUsize, Ordering};

        use host::{Host, Unix};
        use net::CallDeadline;

        for columns in [0_u16, 65535] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let host: Arc<dyn Host> = Arc::new(Unix::new());
            let deadline = Arc::new(CallDeadline::new(host.clone()));
            deadline.set(host.boottime() + Duration::from_secs(60));
            let sent = Arc::new(AtomicUsize::new(0));
            let counter = sent.clone();
            let server = std::thread::spawn(move || {
                let body = [&columns.to_be_bytes()[..], &vec![0xff; 4 * usize::from(columns)]].concat();
                let row = [&b"D"[..], &(body.len() as u32 + 4).to_be_bytes(), &body].concat();
                let block = row.repeat(1 + 4096 / row.len());
                while theirs.write_all(&block).is_ok() {
                    counter.fetch_add(block.len(), Ordering::SeqCst);
                }
            });
            let socket = Socket::new(TcpStream::from(OwnedFd::from(ours)), deadline).unwrap();
            let wire = Wire { socket, tls: None };
            let mut session = Session { wire, incoming: BytesMut::new(), pid: 0 };
            let refused = session.exchange(&script("", Duration::from_secs(1)).unwrap());
            assert_eq!(refused, Err(NetError::TooLong.into()));
            drop(session);
            server.join().unwrap();
            assert!(sent.load(Ordering::SeqCst) < 4 << 20, "columns {columns}: {sent:?}");
        }
    }
}
