//! A foreign server in the place of etcd costs little time and memory, grants no lock, and is named.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::{MOST_MEMORY, ends};
use crate::sandbox::{Done, Sandbox};

/// How a server answers the request at this path.
type Lie = Arc<dyn Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync>;

/// A server that answers like this, and counts who came.
struct Liar {
    address: String,
    asked: Arc<AtomicUsize>,
}

impl Liar {
    fn new(lie: impl Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> Liar {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (lie, asked): (Lie, _) = (Arc::new(lie), Arc::new(AtomicUsize::new(0)));
        let counted = asked.clone();
        // Both end with the test program.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (lie, counted) = (lie.clone(), counted.clone());
                thread::spawn(move || converse(stream, &lie, &counted));
            }
        });
        Liar { address, asked }
    }

    fn saying(answer: impl Into<Vec<u8>>) -> Liar {
        let answer = answer.into();
        Liar::new(move |_, stream| stream.write_all(&answer))
    }
}

fn ok(body: &str) -> Vec<u8> {
    answer("200 OK", body)
}

fn answer(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

/// Replies until the client closes the connection.
fn converse(mut stream: TcpStream, lie: &Lie, asked: &AtomicUsize) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
    let mut read = Vec::new();
    loop {
        let head = loop {
            if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
                break end;
            }
            let mut buffer = [0; 4096];
            match stream.read(&mut buffer) {
                Ok(amount) if amount > 0 => read.extend(&buffer[..amount]),
                _ => return,
            }
        };
        let text = String::from_utf8_lossy(&read[..head]).to_ascii_lowercase();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
        while read.len() < head + 4 + length {
            let mut buffer = [0; 4096];
            match stream.read(&mut buffer) {
                Ok(amount) if amount > 0 => read.extend(&buffer[..amount]),
                _ => return,
            }
        }
        read.drain(..head + 4 + length);
        asked.fetch_add(1, Ordering::Relaxed);
        let path = text.split(' ').nth(1).unwrap_or_default().to_string();
        if lie(&path, &mut stream).is_err() {
            return;
        }
    }
}

/// Begins, and never ends.
fn endless(beginning: &'static str, piece: &'static str) -> Liar {
    Liar::new(move |_, stream| {
        stream.write_all(beginning.as_bytes())?;
        let piece = piece.repeat(1000);
        loop {
            stream.write_all(piece.as_bytes())?;
        }
    })
}

/// Says the right thing, a byte at a time.
fn dripping() -> Liar {
    Liar::new(|_, stream| {
        for byte in ok(r#"{"header":{"revision":"5"}}"#) {
            stream.write_all(&[byte])?;
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    })
}

const HEADER: &str = r#"{"header":{"revision":"5"}"#;

/// The key of the record `x` below `records` in base64, with the prefix `p`.
const KEY_OF_X: &str = "cC9yZWNvcmRzL3g=";

/// Those that are never through.
const SLOW: &str = "a gigabyte that does not come, more than there are bytes, chunks that make no sense, to go on, \
                    the right thing, slowly, silence";

const CHUNKS: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1a\r\n{\"header\":{\"revision\":\"5\"}\r\n9\r\n,\"kvs\":[{\r\n";

fn liars() -> Vec<(&'static str, Liar)> {
    let says = |body: &str| Liar::saying(ok(body));
    let kvs = |pair: &str| Liar::saying(ok(&format!("{HEADER},\"kvs\":[{pair}]}}")));
    vec![
        ("nothing", Liar::new(|_, _| Err(std::io::ErrorKind::Other.into()))),
        ("garbage", Liar::saying(&b"\x00\xff\x1b]0;POISON\x07\r\n\r\n"[..])),
        ("text", says("hello")),
        ("a web page", says("<html>\u{1b}]0;POISON\u{7}</html>")),
        ("an empty object", says("{}")),
        ("null", says("null")),
        ("a list", says("[]")),
        ("the end of the stack", says(&"[".repeat(1_000_000))),
        ("the end of the stack in an object", says(&format!("{HEADER},\"x\":{}", "{\"x\":".repeat(200_000)))),
        ("a header without a revision", says(r#"{"header":{},"succeeded":true}"#)),
        ("a revision below zero", says(r#"{"header":{"revision":"-5"},"succeeded":true}"#)),
        ("a revision of zero", says(r#"{"header":{"revision":"0"},"succeeded":true}"#)),
        ("a revision beyond all numbers", says(r#"{"header":{"revision":"99999999999999999999"},"succeeded":true}"#)),
        ("success alone", says(r#"{"succeeded":true}"#)),
        ("a number for a list", says(&format!("{HEADER},\"kvs\":5}}"))),
        ("keys without anything", kvs("{}")),
        ("keys that are not base64", kvs(r#"{"key":"\u001b]0;POISON","mod_revision":"5"}"#)),
        ("another key", kvs(r#"{"key":"AAAA","value":"AAAA","mod_revision":"5"}"#)),
        ("a record that is none", kvs(&format!(r#"{{"key":"{KEY_OF_X}","value":"AAAA","mod_revision":"5"}}"#))),
        ("keys without end", endless(CHUNKS, "4\r\n},{ \r\n")),
        ("a body without end", endless("HTTP/1.1 200 OK\r\n\r\n", "                ")),
        ("a gigabyte that comes", endless("HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n", "                ")),
        ("a gigabyte that does not come", Liar::saying(&b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n{"[..])),
        (
            "more than there are bytes",
            Liar::saying(&b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n{"[..]),
        ),
        ("a refusal without end", endless("HTTP/1.1 500 No\r\n\r\n", "{\"error\":\"                ")),
        ("headers without end", endless("HTTP/1.1 200 OK\r\n", "X-Y: z\r\n")),
        ("a header without end", endless("HTTP/1.1 200 OK\r\nX: ", "xxxxxxxxxxxxxxxxx")),
        ("to go on", endless("", "HTTP/1.1 100 Continue\r\n\r\n")),
        (
            "chunks that make no sense",
            Liar::saying(&b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}"[..]),
        ),
        (
            "a refusal in escapes",
            Liar::saying(answer("400 No", r#"{"code":7,"message":"\u001b]0;POISON\u0007 permission denied"}"#)),
        ),
        ("the right thing, slowly", dripping()),
        ("silence", Liar::new(|_, _| std::iter::repeat_with(thread::park).try_for_each(|()| Ok(())))),
    ]
}

fn try_on(sandbox: &Sandbox, liar: &Liar, words: &[&str]) -> Done {
    let all = [&["prlimit", MOST_MEMORY, "csalock"][..], words].concat();
    ends(sandbox.call(all[0], &all[1..]).env("CSALOCK_STORE", format!("etcd://{}/p", liar.address)), words)
}

/// All at once, for some take all the time that a call may take.
#[test]
fn a_foreign_server_grants_nothing_and_is_named() {
    let all = liars();
    thread::scope(|scope| {
        for (what, liar) in &all {
            scope.spawn(move || {
                let sandbox = Sandbox::at_servers(std::slice::from_ref(&liar.address));
                // A reply that came was read, even on a busy machine; a silent server is not waited for.
                let patience = if SLOW.contains(what) { "300ms" } else { "20s" };
                let run = ["run", "-w", patience, "x", "touch", "ran"];
                // The others have ten seconds, and take them: `silent_store` waits for that.
                let others: &[&[&str]] =
                    if SLOW.contains(what) { &[] } else { &[&["status"], &["unlock", "--force", "x"]] };
                for words in std::iter::once(&run[..]).chain(others.iter().copied()) {
                    let done = try_on(&sandbox, liar, words);
                    let codes: &[i32] = match *what {
                        "a record that is none" => &[0, 65, 69],
                        "a refusal in escapes" => &[77],
                        _ => &[69],
                    };
                    assert!(codes.contains(&done.code.unwrap()), "{what} {words:?} {done:?}");
                    assert!(done.code != Some(0) || words[0] == "unlock", "{what} {words:?} {done:?}");
                    assert!(!sandbox.path("files/ran").exists(), "{what}");
                    assert!(done.stdout.is_empty() && done.stderr.lines().count() == 1, "{what} {done:?}");
                    assert!(!done.stderr.trim_end().contains(char::is_control), "{what} {done:?}");
                    assert!(done.stderr.len() < 1000 && done.stderr.contains("; "), "{what} {done:?}");
                }
            });
        }
    });
}

#[test]
fn the_client_follows_no_redirect() {
    let elsewhere = Liar::saying(ok(r#"{"header":{"revision":"5"},"succeeded":true}"#));
    for status in ["301 Moved", "302 Found", "303 See", "307 There", "308 There"] {
        let there = format!("http://{}/v3/kv/range", elsewhere.address);
        let liar = Liar::saying(format!("HTTP/1.1 {status}\r\nLocation: {there}\r\nContent-Length: 0\r\n\r\n"));
        let sandbox = Sandbox::at_servers(std::slice::from_ref(&liar.address));
        let done = try_on(&sandbox, &liar, &["run", "-w", "300ms", "x", "touch", "ran"]);
        assert!(done.code == Some(69) && !sandbox.path("files/ran").exists(), "{status} {done:?}");
        assert!(liar.asked.load(Ordering::Relaxed) > 0);
    }
    assert_eq!(elsewhere.asked.load(Ordering::Relaxed), 0);
}

/// It reads as an etcd would, and lies about the one step that counts.
#[test]
fn a_failed_commit_is_not_a_lock() {
    for lie in [
        r#"{"succeeded":true}"#,
        r#"{"header":{"revision":"0"},"succeeded":true}"#,
        r#"{"header":{"revision":"6"},"succeeded":"yes"}"#,
    ] {
        let liar = Liar::new(move |path, stream| match path {
            "/v3/kv/txn" => stream.write_all(&ok(lie)),
            _ => stream.write_all(&ok(&format!("{HEADER}}}"))),
        });
        let sandbox = Sandbox::at_servers(std::slice::from_ref(&liar.address));
        let done = try_on(&sandbox, &liar, &["run", "-w", "300ms", "x", "touch", "ran"]);
        assert!(matches!(done.code, Some(69 | 71 | 75)) && !sandbox.path("files/ran").exists(), "{done:?}");
    }
}

/// Lists that repeat themselves, or go on after nothing.
#[test]
fn an_endless_list_is_cut_off() {
    let pair = |key: &str| format!(r#"{{"key":"{key}","value":"AAAA","mod_revision":"5"}}"#);
    for kvs in [String::new(), pair(KEY_OF_X), pair("AAAA"), format!("{0},{0}", pair(KEY_OF_X))] {
        let liar = Liar::saying(ok(&format!("{HEADER},\"kvs\":[{kvs}],\"more\":true}}")));
        let sandbox = Sandbox::at_servers(std::slice::from_ref(&liar.address));
        for words in [&["status"][..], &["gc"], &["history"], &["lookup", "--id", "me"]] {
            let done = try_on(&sandbox, &liar, words);
            assert_eq!(done.code, Some(69), "{kvs} {words:?} {done:?}");
            assert!(done.stderr.contains("a list whose keys do not rise"), "{kvs} {words:?} {done:?}");
        }
    }
}

/// Replies that no caller waits for, and watches.
#[test]
fn a_call_without_a_wait_is_bounded_too() {
    let floods = ["HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n", "HTTP/1.1 200 OK\r\nX: "];
    // Each command waits until its time is over, so all of them run at once.
    std::thread::scope(|scope| {
        for flood in floods {
            for words in [&["lock", "--forever", "x"][..], &["put", "x", "value"]] {
                scope.spawn(move || is_bounded(flood, words));
            }
        }
    });
}

/// A user that may write the keys can grant: this one does, and then floods the client.
#[track_caller]
fn is_bounded(flood: &'static str, words: &[&str]) {
    let liar = Liar::new(move |path, stream| match path {
        "/v3/kv/range" => stream.write_all(&ok(&format!("{HEADER}}}"))),
        "/v3/kv/txn" => stream.write_all(&ok(&format!("{HEADER},\"succeeded\":true}}"))),
        _ => {
            stream.write_all(flood.as_bytes())?;
            let piece = "x".repeat(10_000);
            loop {
                stream.write_all(piece.as_bytes())?;
            }
        }
    });
    let sandbox = Sandbox::at_servers(std::slice::from_ref(&liar.address));
    try_on(&sandbox, &liar, words);
}
