//! End of an answer that is not needed: the next answer begins after it.
//!
//! etcd gives the length of every success, but sends refusals in chunks (RFC 9112, section 7.1). A client that could
//! not parse chunks would close a connection on which more requests are under way. etcd may drop a request whose
//! connection ends.

use std::io;

use httparse::{EMPTY_HEADER, Response, Status, parse_chunk_size, parse_headers};

/// Maximum length of an unneeded answer, in bytes.
pub(super) const MOST_UNWANTED: usize = 1 << 16;

const MOST_HEADERS: usize = 64;

/// Returns the length in bytes of the answer at the start of `read`; `None` if the answer is incomplete.
/// Fails if the end of the answer cannot be determined, or if the answer exceeds [`MOST_UNWANTED`].
pub(super) fn length_of_answer(read: &[u8]) -> io::Result<Option<usize>> {
    let mut headers = [EMPTY_HEADER; MOST_HEADERS];
    let mut answer = Response::new(&mut headers);
    let Status::Complete(head) = answer.parse(read).map_err(|_| strange())? else { return Ok(None) };
    let said = |name: &str| {
        let header = answer.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(header.value).ok()
    };
    let body = match (said("transfer-encoding"), said("content-length")) {
        (Some(coding), _) if coding.eq_ignore_ascii_case("chunked") => length_of_pieces(&read[head..])?,
        (None, Some(length)) => Some(bounded(length.parse().ok())?),
        _ => return Err(strange()),
    };
    Ok(body.map(|body| head + body).filter(|whole| *whole <= read.len()))
}

/// Returns the length in bytes of a chunked body; `None` if the body is incomplete.
fn length_of_pieces(read: &[u8]) -> io::Result<Option<usize>> {
    let mut at = 0;
    while let Some(rest) = read.get(at..)
        && let Status::Complete((begin, size)) = parse_chunk_size(rest).map_err(|_| strange())?
    {
        at += begin;
        if size == 0 {
            let mut trailers = [EMPTY_HEADER; MOST_HEADERS];
            let end = parse_headers(&read[at..], &mut trailers).map_err(|_| strange())?;
            return Ok(if let Status::Complete((end, _)) = end { Some(at + end) } else { None });
        }
        at += bounded(Some(size))? + "\r\n".len();
    }
    Ok(None)
}

fn bounded(length: Option<u64>) -> io::Result<usize> {
    let length = length.and_then(|length| usize::try_from(length).ok());
    length.filter(|length| *length <= MOST_UNWANTED).ok_or_else(strange)
}

fn strange() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the answer ends exactly at the end of this text.
    #[track_caller]
    fn ends(answer: &str) {
        let followed = format!("{answer}HTTP/1.1 200 OK\r\n");
        for read in 0..answer.len() {
            assert_eq!(length_of_answer(&followed.as_bytes()[..read]).unwrap(), None, "{read}");
        }
        assert_eq!(length_of_answer(followed.as_bytes()).unwrap(), Some(answer.len()));
    }

    #[test]
    fn a_reply_has_its_declared_length() {
        ends("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}\n");
        ends("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    }

    #[test]
    fn a_chunked_refusal_of_etcd_is_read() {
        // This is the answer of etcd 3.4 to the revocation of an expired lease.
        let head = "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nTrailer: Grpc-Trailer-Content-Type\r\n\
                    Transfer-Encoding: chunked\r\n\r\n";
        let body = r#"{"error":"etcdserver: requested lease not found","code":5}"#;
        let trailer = "Grpc-Trailer-Content-Type: application/grpc\r\n";
        ends(&format!("{head}{:x}\r\n{body}\r\n0\r\n{trailer}\r\n", body.len()));
        ends(&format!("{head}1\r\n{{\r\n1\r\n}}\r\n0\r\n\r\n"));
    }

    #[test]
    fn a_reply_without_a_length_is_not_waited_for() {
        let too_much = MOST_UNWANTED + 1;
        for strange in [
            "HTTP/1.1 200 OK\r\n\r\n".to_string(),
            format!("HTTP/1.1 200 OK\r\nContent-Length: {too_much}\r\n\r\n"),
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}0\r\n\r\n", u64::MAX),
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n".to_string(),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n".to_string(),
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{too_much:x}\r\n"),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n".to_string(),
            "no answer at all\r\n\r\n".to_string(),
        ] {
            assert!(length_of_answer(strange.as_bytes()).is_err(), "{strange}");
        }
    }
}
