//! Foreign objects in the place of files of csalock: links, FIFOs, sockets, devices, directories and files in each
//! other's place, endless records, a million entries, names that no terminal should see, and false servers.
//!
//! None of them hangs a command, crashes it, leads it out of the store, or gives it a wrong lock. Each is named, and
//! the other locks are shown nevertheless. `fuzz/properties` tests the readers alone.
//!
//! With `CSALOCK_TESTS=hours` [`crowds`] makes a million entries, and [`changing`] runs ten thousand commands while
//! files change under them.

mod beside;
mod changing;
mod crowds;
mod directory;
mod etcd;
mod rendering;
mod sqlite;
mod squatters;

use crate::sandbox::{Call, Done, Sandbox, wait_until};

/// Maximum address space of a command, in bytes: it needs a tenth.
const MOST_MEMORY: &str = "--as=268435456";

/// The content of a file outside the store, which no output may show.
const SECRET: &str = "the-canary-sings";

/// Everything outside the store: a tree that must stay as it is.
struct Outside<'a> {
    sandbox: &'a Sandbox,
    before: Vec<String>,
}

impl<'a> Outside<'a> {
    fn new(sandbox: &'a Sandbox) -> Outside<'a> {
        std::fs::create_dir(sandbox.path("outside")).unwrap();
        for below in ["file", "cur.7.00000001ffffffffffffffff", "rec.00000001ffffffffffffffff", "history", "token.7"] {
            sandbox.file(&format!("outside/{below}"), format!("{SECRET}\n"));
        }
        std::fs::create_dir(sandbox.path("outside/.new.draft")).unwrap();
        Outside { sandbox, before: sandbox.listing("outside") }
    }

    #[track_caller]
    fn is_as_it_was(&self, after: &str) {
        assert_eq!(self.sandbox.listing("outside"), self.before, "{after} reached out of the store");
    }
}

/// Runs a command that must come to its end, whatever it meets, with the memory that it should need: ended by itself, not by
/// a signal, and not by a bug of ours.
#[track_caller]
fn bounded(sandbox: &Sandbox, words: &[&str]) -> Done {
    let all = [&["prlimit", MOST_MEMORY, "csalock"][..], words].concat();
    ends(sandbox.call(all[0], &all[1..]), words)
}

#[track_caller]
fn bounded_beside(sandbox: &Sandbox, words: &[&str]) -> Done {
    let all = [&["prlimit", MOST_MEMORY, "csalock"][..], words].concat();
    ends(sandbox.call(all[0], &all[1..]).without("CSALOCK_STORE"), words)
}

#[track_caller]
fn ends(call: Call<'_>, words: &[&str]) -> Done {
    let mut job = call.spawn();
    job.release();
    wait_until(&format!("{words:?} ends"), || job.has_ended());
    let done = job.wait();
    assert!(done.signal.is_none() && done.code != Some(70), "{words:?} {done:?}");
    assert!(!done.stdout.contains(SECRET) && !done.stderr.contains(SECRET), "{words:?} {done:?}");
    done
}

/// A script of bash, in which `$STORE` is the store, `$OUT` the tree outside, and `socket PATH` makes a socket.
fn plant(sandbox: &Sandbox, script: &str) {
    let socket = "python3 -c 'import socket,sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' $1";
    let script = format!("set -e; shopt -s nullglob; socket() {{ {socket}; }}; {script}");
    let call = sandbox.call("bash", ["-c", &script]).env("STORE", sandbox.store_path());
    call.env("OUT", sandbox.path("outside")).capture().exits(0);
}
