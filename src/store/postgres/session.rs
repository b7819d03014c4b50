//! Connection to a server: start, TLS, and statements of the frontend/backend protocol 3.0.
//!
//! Each request is one batch of the extended protocol with unnamed objects, so any server behind a pooler may run it.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::auth;
use super::errors::Trouble;
use super::settings::{Settings, SslMode};
use crate::error::describe;
use crate::store::etcd::connection::{Socket, Wire, is_readable};
use crate::store::etcd::dial::Connector;
use crate::store::etcd::errors::CallError;

/// Maximum length of a message and of all rows of an answer, in bytes.
const LONGEST: usize = 1 << 26;

/// Function of the server that warns if a wait for a synchronous standby was cut short. The commit stands on this server.
const WAIT_FOR_STANDBY: &str = "SyncRepWaitForLSN";

pub(super) type Done<T> = Result<T, Trouble>;

/// Row of an answer: its columns in binary format.
pub(super) type Row = Vec<Option<Vec<u8>>>;

/// Connection to one server.
pub(super) struct Session {
    wire: BufReader<Wire>,
    /// Process of the server, or a random number from a pooler.
    pub(super) pid: i32,
    pub(super) is_encrypted: bool,
}

impl Session {
    /// Connects and logs in.
    pub(super) fn open(connector: &Connector, settings: &Settings) -> Done<Session> {
        let wire = match settings.host.starts_with('/') {
            true => {
                let path = format!("{}/.s.PGSQL.{}", settings.host, settings.port);
                let stream = UnixStream::connect(&path)
                    .map_err(|error| Trouble::Line(CallError::Refused(format!("{path}: {}", describe(&error)))))?;
                let stream = TcpStream::from(OwnedFd::from(stream));
                Wire::Plain(Socket::new(stream, connector.call_deadline.clone())?)
            }
            false => dial(connector, settings)?,
        };
        Session::over(wire, settings)
    }

    /// Logs in on a connection.
    pub(super) fn over(wire: Wire, settings: &Settings) -> Done<Session> {
        let is_encrypted = matches!(wire, Wire::Tls(_));
        let mut session = Session { wire: BufReader::new(wire), pid: 0, is_encrypted };
        let mut start = 0x0003_0000_i32.to_be_bytes().to_vec();
        let pairs = [("user", &settings.user[..]), ("database", &settings.database), ("application_name", "csalock")];
        for text in pairs.iter().flat_map(|(key, value)| [*key, *value]).chain([""]) {
            text_into(&mut start, text)?;
        }
        session.write(&framed(None, &start))?;
        auth::log_in(&mut session, settings)?;
        loop {
            match session.receive()? {
                (b'K', key) => session.pid = i32::from_be_bytes(Fields(&key).array()?),
                (b'Z', _) => return Ok(session),
                _ => {}
            }
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Done<()> {
        Ok(self.wire.get_mut().send(bytes)?)
    }

    /// Returns the next message: its type and content.
    fn message(&mut self) -> Done<(u8, Vec<u8>)> {
        let mut head = [0; 5];
        self.wire.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let length = length.checked_sub(4).filter(|length| *length <= LONGEST);
        let length = length.ok_or_else(|| Trouble::strange("it does not speak PostgreSQL's protocol"))?;
        // A length is only a claim, so it allocates nothing.
        let mut body = Vec::new();
        (&mut self.wire).take(length as u64).read_to_end(&mut body)?;
        if body.len() == length { Ok((head[0], body)) } else { Err(Trouble::Line(CallError::Closed)) }
    }

    /// Returns the next message of the login. Fails if that is an error.
    pub(super) fn receive(&mut self) -> Done<(u8, Vec<u8>)> {
        match self.message()? {
            (b'E', body) => Err(said(&body)?.0),
            message => Ok(message),
        }
    }

    /// Sends a request, and returns the rows of the answer to its last statement.
    pub(super) fn exchange(&mut self, request: &[u8]) -> Done<Vec<Row>> {
        self.write(request)?;
        let (mut rows, mut failed, mut size) = (Vec::new(), None, 0);
        let mut is_certain = true;
        loop {
            let (kind, body) = self.message()?;
            size += body.len();
            match kind {
                _ if size > LONGEST => return Err(Trouble::Line(CallError::TooLong)),
                // The rows of the next statement begin.
                b'2' | b'T' => rows.clear(),
                b'D' => rows.push(row(&body)?),
                b'N' => is_certain &= field(&body, b'R') != WAIT_FOR_STANDBY,
                b'E' => match said(&body)? {
                    (trouble, true) => return Err(trouble),
                    (trouble, false) => failed = Some(trouble),
                },
                b'Z' if !is_certain => return Err(Trouble::NotReplicated),
                b'Z' => return failed.map_or(Ok(rows), Err),
                _ => {}
            }
        }
    }

    /// Returns true if the connection can be used again. Unexpected data may be a farewell.
    pub(super) fn is_idle(&self) -> bool {
        self.wire.buffer().is_empty() && !is_readable(self.socket())
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.wire.get_ref().socket().as_fd()
    }
}

/// Connects over TCP, and starts TLS as far as the mode asks for it.
fn dial(connector: &Connector, settings: &Settings) -> Done<Wire> {
    let server = settings.server();
    let mut socket = Socket::new(connector.connect(&server)?, connector.call_deadline.clone())?;
    if settings.mode == SslMode::Disable {
        return Ok(Wire::Plain(socket));
    }
    socket.write_all(&framed(None, &80_877_103_i32.to_be_bytes()))?;
    let mut answer = [0];
    socket.read_exact(&mut answer)?;
    match answer {
        [b'S'] => Ok(connector.encrypt(&server, socket)?),
        [b'N'] if settings.mode == SslMode::Prefer => Ok(Wire::Plain(socket)),
        [b'N'] => Err(Trouble::Line(CallError::Tls("the server does not offer it".to_string()))),
        _ => Err(Trouble::strange("it does not speak PostgreSQL's protocol")),
    }
}

/// Returns a message of this type; the first one has none.
pub(super) fn framed(kind: Option<u8>, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX).to_be_bytes();
    kind.into_iter().chain(length).chain(body.iter().copied()).collect()
}

fn text_into(bytes: &mut Vec<u8>, text: &str) -> Done<()> {
    if text.contains('\0') {
        return Err(Trouble::strange("a name with NUL"));
    }
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(0);
    Ok(())
}

/// Returns the settings of a transaction whose client waits for this time. Each request begins with them: another role may
/// create functions and operators in the schemas of the usual search_path, and the warning that a wait for a standby was
/// cut short must arrive. These names themselves are qualified, and the arguments fit one function exactly.
fn settings(left: Duration) -> String {
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

/// Returns the request for a statement with these parameters in binary format.
pub(super) fn statement(sql: &str, parameters: &[Vec<u8>], left: Duration) -> Vec<u8> {
    let mut request = one(&settings(left), &[]);
    request.extend(one(sql, parameters));
    request.extend(framed(Some(b'S'), b""));
    request
}

fn one(sql: &str, parameters: &[Vec<u8>]) -> Vec<u8> {
    let parse = [b"\0", sql.as_bytes(), b"\0\0\0"].concat();
    // Unnamed portal and statement; all parameters, then all columns, in binary format.
    let mut bind = b"\0\0\0\x01\0\x01".to_vec();
    bind.extend((parameters.len() as u16).to_be_bytes());
    for parameter in parameters {
        bind.extend((parameter.len() as u32).to_be_bytes());
        bind.extend(parameter);
    }
    bind.extend(b"\0\x01\0\x01");
    let parts = [(b'P', &parse[..]), (b'B', &bind), (b'E', b"\0\0\0\0\0")];
    parts.iter().flat_map(|(kind, body)| framed(Some(*kind), body)).collect()
}

/// Returns the request for these statements, which form one transaction.
pub(super) fn script(sql: &str, left: Duration) -> Vec<u8> {
    framed(Some(b'Q'), format!("{}; {sql}\0", settings(left)).as_bytes())
}

/// Returns a parameter of type bytea[] or bigint[].
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

/// Returns a field of an error or a warning.
fn field(body: &[u8], kind: u8) -> String {
    let mut fields = body.split(|byte| *byte == 0).filter(|field| field.first() == Some(&kind));
    let text = fields.next().map_or(String::new(), |field| String::from_utf8_lossy(&field[1..]).into_owned());
    text.chars().take(300).collect()
}

/// Returns severity, code and text of an error, and true if the server has closed the connection.
fn said(body: &[u8]) -> Done<(Trouble, bool)> {
    let field = |kind| field(body, kind);
    let is_fatal = !matches!(&field(b'V')[..], "ERROR");
    let (code, message) = (field(b'C'), field(b'M'));
    // pgbouncer has one code for everything.
    let code = match &code[..] {
        "08P01" if message.contains("authentication failed") || message.contains("no such user") => "28P01".to_string(),
        "08P01" if message.contains("no such database") => "3D000".to_string(),
        _ => code,
    };
    Ok((Trouble::Said(code, message), is_fatal))
}

/// Reader of the fields of a message.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> Done<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(count).ok_or_else(|| Trouble::strange("a message is too short"))?;
        self.0 = rest;
        Ok(first)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Done<[u8; N]> {
        self.bytes(N).map(|bytes| bytes.try_into().unwrap_or([0; N]))
    }
}

fn row(body: &[u8]) -> Done<Row> {
    let mut fields = Fields(body);
    let count = u16::from_be_bytes(fields.array()?);
    (0..count)
        .map(|_| match i32::from_be_bytes(fields.array()?) {
            -1 => Ok(None),
            length => fields.bytes(length as usize).map(|bytes| Some(bytes.to_vec())),
        })
        .collect()
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

    #[test]
    fn a_message_of_any_program_is_an_error_or_a_row() {
        assert_eq!(row(b"\0\x02\0\0\0\x01a\xff\xff\xff\xff"), Ok(vec![Some(b"a".to_vec()), None]));
        for wrong in [&b""[..], b"\0", b"\0\x01", b"\0\x01\0\0\0\x02a", b"\0\x01\x80\0\0\0a", b"\xff\xff"] {
            assert!(row(wrong).is_err(), "{wrong:?}");
        }
        let refused = said(b"VERROR\0C42501\0Mno\0\0").unwrap();
        assert_eq!(refused, (Trouble::Said("42501".to_string(), "no".to_string()), false));
        let long = [b"M", &[b'x'; 1000][..], b"\0"].concat();
        assert_eq!(said(&long).unwrap(), (Trouble::Said(String::new(), "x".repeat(300)), true));
    }
}
