//! HTTP/1.1 as far as the JSON gateway needs it, over a connection with or without TLS: requests that can be sent together,
//! and answers of limited size.
//!
//! A server answers the requests on one connection one after the other, in their order. A request that only prepares
//! another one therefore needs no round trip of its own.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use httparse::{EMPTY_HEADER, Status, parse_chunk_size};
use rustls::ClientConfig;
use serde_json::Value;

use lock::error::{self, Error, ErrorKind};
use net::{NetError, Wire, is_readable, tls_versions, trusted_roots, with_client_certificate};
use store::Variables;

/// Maximum size of an answer in bytes. The largest record takes a third of it, and a scan can ask for fewer records.
const MOST_OF_ANSWER: usize = 16 << 20;

/// Maximum size of a head, of the size of a chunk and of a trailer, in bytes.
const MOST_OF_HEAD: usize = 1 << 16;
const MOST_HEADERS: usize = 100;

const PIECE: usize = 1 << 14;

pub(super) struct Connection(BufReader<Wire>);

impl Connection {
    pub(super) fn new(wire: Wire) -> Connection {
        Connection(BufReader::with_capacity(PIECE, wire))
    }

    /// Sends requests, and returns their answers: at least one, and the last one that precedes the end of the connection.
    pub(super) fn exchange(
        &mut self,
        server: &str,
        requests: &[HttpRequest<'_>],
        token: Option<&str>,
    ) -> Result<Vec<Answer>, NetError> {
        // All bytes are sent at once, because small segments would wake the server several times.
        let bytes: String = requests.iter().map(|request| request.encode(server, token)).collect();
        self.0.get_mut().send(bytes.as_bytes())?;
        let mut answers = Vec::new();
        for _ in requests {
            answers.push(read_answer(&mut self.0)?);
            if answers.last().is_some_and(|answer: &Answer| !answer.keeps_open) {
                break;
            }
        }
        Ok(answers)
    }

    /// Unexpected data mean that the connection has ended.
    pub(super) fn is_idle(&self) -> bool {
        self.0.buffer().is_empty() && !is_readable(self.0.get_ref().socket().as_fd())
    }
}

pub(super) struct HttpRequest<'a> {
    path: &'a str,
    body: String,
}

impl HttpRequest<'_> {
    pub(super) fn new<'a>(path: &'a str, question: &Value) -> HttpRequest<'a> {
        HttpRequest { path, body: question.to_string() }
    }

    pub(super) fn encode(&self, server: &str, token: Option<&str>) -> String {
        let HttpRequest { path, body } = self;
        let login = token.map_or(String::new(), |token| format!("authorization: {token}\r\n"));
        let head = format!("POST {path} HTTP/1.1\r\nhost: {server}\r\n{login}content-type: application/json\r\n");
        format!("{head}content-length: {}\r\n\r\n{body}", body.len())
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
    pub(super) keeps_open: bool,
    /// Time of the server since 1970, in whole seconds, if the answer has it.
    pub(super) date: Option<Duration>,
}

enum Framing {
    Length(usize),
    Chunks,
    EndOfConnection,
}

fn read_answer(from: &mut impl BufRead) -> Result<Answer, NetError> {
    let (framing, mut answer) = loop {
        let (framing, answer) = read_head(from)?;
        // An interim answer precedes the final one.
        if answer.status >= 200 {
            break (framing, answer);
        }
    };
    match framing {
        Framing::Length(length) => read_part(from, length, &mut answer.body)?,
        Framing::Chunks => read_chunks(from, &mut answer.body)?,
        Framing::EndOfConnection => {
            let ended = from.take(MOST_OF_ANSWER as u64 + 1).read_to_end(&mut answer.body).map_err(NetError::from);
            match ended {
                _ if answer.body.len() > MOST_OF_ANSWER => return Err(NetError::TooLong),
                Ok(_) | Err(NetError::Closed) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(answer)
}

/// The bytes after the head stay in the buffer.
fn read_head(from: &mut impl BufRead) -> Result<(Framing, Answer), NetError> {
    let mut bytes = Vec::new();
    loop {
        let earlier = bytes.len();
        bytes.extend_from_slice(from.fill_buf()?);
        if bytes.len() == earlier {
            return Err(NetError::Closed);
        }
        let found = head(&bytes)?;
        from.consume(found.as_ref().map_or(bytes.len(), |(length, ..)| *length) - earlier);
        match found {
            Some((_, framing, answer)) => return Ok((framing, answer)),
            None if bytes.len() >= MOST_OF_HEAD => return Err(NetError::TooLong),
            None => {}
        }
    }
}

fn read_part(from: &mut impl BufRead, length: usize, body: &mut Vec<u8>) -> Result<(), NetError> {
    if length > MOST_OF_ANSWER - body.len() {
        return Err(NetError::TooLong);
    }
    if from.take(length as u64).read_to_end(body)? < length { Err(NetError::Closed) } else { Ok(()) }
}

fn read_chunks(from: &mut impl BufRead, body: &mut Vec<u8>) -> Result<(), NetError> {
    loop {
        let Ok(Status::Complete((_, size))) = parse_chunk_size(&read_line(from)?) else {
            return Err(strange("a chunk without a size"));
        };
        if size == 0 {
            // Trailers end with an empty line, as a head does.
            while read_line(from)? != b"\r\n" {}
            return Ok(());
        }
        read_part(from, usize::try_from(size).unwrap_or(usize::MAX), body)?;
        if read_line(from)? != b"\r\n" {
            return Err(strange("a chunk that is longer than its size"));
        }
    }
}

/// With its end.
fn read_line(from: &mut impl BufRead) -> Result<Vec<u8>, NetError> {
    let mut line = Vec::new();
    match from.take(MOST_OF_HEAD as u64).read_until(b'\n', &mut line)? {
        MOST_OF_HEAD => Err(NetError::TooLong),
        _ if line.ends_with(b"\n") => Ok(line),
        _ => Err(NetError::Closed),
    }
}

/// Length of a complete head, and the answer without its body.
fn head(bytes: &[u8]) -> Result<Option<(usize, Framing, Answer)>, NetError> {
    let mut headers = [EMPTY_HEADER; MOST_HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let Status::Complete(length) = head.parse(bytes).map_err(|error| strange(&error.to_string()))? else {
        return Ok(None);
    };
    let status = head.code.unwrap_or_default();
    let values = |name: &'static str| {
        let named = head.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
        named.map(|header| String::from_utf8_lossy(header.value).trim().to_ascii_lowercase())
    };
    let lengths: Vec<_> = values("content-length").map(|value| value.parse::<usize>()).collect();
    let framing = match &lengths[..] {
        _ if status < 200 || matches!(status, 204 | 304) => Framing::Length(0),
        _ if values("transfer-encoding").any(|value| value.ends_with("chunked")) => Framing::Chunks,
        [] => Framing::EndOfConnection,
        [Ok(length), others @ ..] if others.iter().all(|other| other.as_ref() == Ok(length)) => {
            Framing::Length(*length)
        }
        _ => return Err(strange("an answer without a valid length")),
    };
    let closes = values("connection").any(|value| value.split(',').any(|option| option.trim() == "close"));
    let keeps_open = head.version == Some(1) && !closes && !matches!(framing, Framing::EndOfConnection);
    let date = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case("date"));
    let date = date.and_then(|header| seconds(header.value));
    Ok(Some((length, framing, Answer { status, body: Vec::new(), keeps_open, date })))
}

/// Time since 1970 of a text such as `Tue, 24 Nov 2026 15:11:29 GMT`.
fn seconds(text: &[u8]) -> Option<Duration> {
    let time = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    u64::try_from(time.as_second()).ok().map(Duration::from_secs)
}

fn strange(what: &str) -> NetError {
    NetError::Strange(format!("a strange answer: {what}"))
}

/// The variables name PEM files: the accepted authorities, by default those of the system; and a client certificate.
pub(super) fn tls_config(variables: &Variables<'_>) -> error::Result<ClientConfig> {
    let [authorities, cert, key] =
        ["CSALOCK_ETCD_CACERT", "CSALOCK_ETCD_CERT", "CSALOCK_ETCD_KEY"].map(|name| variables(name).map(PathBuf::from));
    let roots = trusted_roots(authorities.as_deref(), "CSALOCK_ETCD_CACERT")?;
    let builder = tls_versions(rustls::ALL_VERSIONS)?.with_root_certificates(roots);
    match (&cert, &key) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(cert), key) => {
            // One file may contain both the certificate and the key.
            let key = key.as_ref().unwrap_or(cert);
            with_client_certificate(builder, ("CSALOCK_ETCD_CERT", cert), ("CSALOCK_ETCD_KEY", key))
        }
        (None, Some(_)) => {
            let what = "CSALOCK_ETCD_KEY is set, and CSALOCK_ETCD_CERT is not";
            Err(Error::new(ErrorKind::InvalidInput, what, "set both, or none"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads answers from a connection that delivers these bytes in pieces of this size, until the first error.
    fn answers(bytes: &[u8], piece: usize) -> (Vec<Answer>, NetError) {
        let (mut from, mut answers) = (BufReader::with_capacity(piece, bytes), Vec::new());
        loop {
            match read_answer(&mut from) {
                Ok(answer) => answers.push(answer),
                Err(error) => return (answers, error),
            }
        }
    }

    fn answer(status: u16, body: &str, keeps_open: bool) -> Answer {
        Answer { status, body: body.as_bytes().to_vec(), keeps_open, date: None }
    }

    #[test]
    fn answers_follow_each_other_in_pieces_of_any_size() {
        let bytes = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}\
            HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n\
            3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX: y\r\n\r\n\
            HTTP/1.1 204 None\r\n\r\nHTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 1\r\n\r\nx\
            HTTP/1.0 200 OK\r\n\r\nto the end";
        let expected = [
            answer(200, "{}", true),
            answer(404, "abcde", true),
            answer(204, "", true),
            answer(200, "x", false),
            answer(200, "to the end", false),
        ];
        for piece in 1..bytes.len() {
            assert_eq!(answers(bytes, piece), (expected.iter().map(clone).collect(), NetError::Closed), "{piece}");
        }
        // Each answer but the last, which ends with the connection, needs all of its bytes.
        let last = bytes.len() - b"HTTP/1.0 200 OK\r\n\r\nto the end".len();
        for length in 0..last {
            let (found, error) = answers(&bytes[..length], 7);
            assert!(error == NetError::Closed && found.len() < 4, "{length}");
        }
    }

    fn clone(answer: &Answer) -> Answer {
        Answer { body: answer.body.clone(), ..*answer }
    }

    #[test]
    fn an_answer_has_the_time_of_its_server() {
        for (date, expected) in [
            ("Date: Tue, 24 Nov 2026 15:11:29 GMT\r\n", Some(1_795_533_089)),
            ("date:Thu, 01 Jan 1970 00:00:00 GMT\r\n", Some(0)),
            ("Date: Wed, 31 Dec 1969 23:59:59 GMT\r\n", None),
            ("Date: soon\r\n", None),
            ("Date: \u{fe0f}\r\n", None),
            ("", None),
        ] {
            let bytes = format!("HTTP/1.1 200 OK\r\n{date}Content-Length: 0\r\n\r\n");
            assert_eq!(answers(bytes.as_bytes(), 7).0[0].date, expected.map(Duration::from_secs), "{date:?}");
        }
    }

    #[test]
    fn an_answer_has_limits() {
        let endless = |begin: &str, more: &str| begin.to_string() + &more.repeat((MOST_OF_ANSWER + PIECE) / more.len());
        for long in [
            "HTTP/1.1 200 OK\r\nContent-Length: 16777217\r\n\r\n".to_string(),
            "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n".to_string(),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n".to_string(),
            endless("HTTP/1.1 200 OK\r\n\r\n", "x"),
            endless("HTTP/1.1 200 OK\r\nX: ", "x"),
            endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "x"),
            endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "100\r\n") + &"x".repeat(300),
        ] {
            let (found, error) = answers(long.as_bytes(), PIECE);
            let is_bounded = error == NetError::TooLong || matches!(error, NetError::Strange(_));
            assert!(found.is_empty() && is_bounded, "{error:?} {}", &long[..60]);
        }
        let large =
            format!("HTTP/1.1 200 OK\r\nContent-Length: {MOST_OF_ANSWER}\r\n\r\n{}", "x".repeat(MOST_OF_ANSWER));
        assert_eq!(answers(large.as_bytes(), PIECE).0[0].body.len(), MOST_OF_ANSWER);
    }

    #[test]
    fn other_protocols_are_strange() {
        for strange in [
            "\0\x7f\x1b]0;x\r\n\r\n",
            "SSH-2.0-OpenSSH_9.2\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
        ] {
            let (found, error) = answers(strange.as_bytes(), 5);
            assert!(found.is_empty() && matches!(error, NetError::Strange(_)), "{strange:?} {error:?}");
        }
    }

    #[test]
    fn a_request_is_complete() {
        let encoded = [
            HttpRequest { path: "/v3/kv/range", body: "{}".to_string() }.encode("h:1", Some("a.b")),
            HttpRequest { path: "/v3/watch", body: String::new() }.encode("h:1", None),
        ];
        let expected = "POST /v3/kv/range HTTP/1.1\r\nhost: h:1\r\nauthorization: a.b\r\n\
            content-type: application/json\r\ncontent-length: 2\r\n\r\n{}POST /v3/watch HTTP/1.1\r\nhost: h:1\r\n\
            content-type: application/json\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(encoded.concat(), expected);
    }
}
