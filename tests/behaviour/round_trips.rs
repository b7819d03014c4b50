//! Requests to etcd for one `csalock run`. The keeper of a command that runs for more than a second has requests of its
//! own, so on a busy machine a run may have more; one of several runs must have none.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use crate::etcd;
use crate::etcd::between::{Between, Fate};
use crate::sandbox::{Sandbox, wait_until};

/// Number of runs, one of which must be undisturbed.
const TRIES: usize = 20;

/// The path of each request, and the thread that serves its connection.
type Asked = Arc<Mutex<Vec<(String, ThreadId)>>>;

/// A store whose requests are counted.
fn counted() -> Option<(Sandbox, Sandbox, Asked)> {
    let cluster = etcd::shared()?;
    let asked = Asked::default();
    let seen = asked.clone();
    let between = Between::and(&cluster.endpoints()[0], move |path, _| {
        seen.lock().unwrap().push((path.trim_start_matches("/v3/").to_string(), std::thread::current().id()));
        Fate::default()
    });
    let prefix = etcd::new_prefix().replace(' ', "");
    let at = |address: &str| Sandbox::at_servers(&[format!("{address}/{prefix}")]);
    Some((at(&between.address), at(&cluster.endpoints()[0]), asked))
}

fn taken(asked: &Asked) -> (Vec<String>, usize) {
    let asked = std::mem::take(&mut *asked.lock().unwrap());
    let connections: HashSet<ThreadId> = asked.iter().map(|(_, thread)| *thread).collect();
    (asked.into_iter().map(|(path, _)| path).collect(), connections.len())
}

#[test]
fn a_free_lock_takes_two_round_trips_and_its_release_two() {
    let Some((sandbox, _, asked)) = counted() else { return };
    // The read, and the lease together with the commit; later another read, and the release.
    let expected = ["kv/range", "lease/grant", "kv/txn", "kv/range", "kv/txn"].map(str::to_string);
    let mut runs = (0..TRIES).map(|_| {
        assert_eq!(sandbox.csalock(["run", "x", "sleep", "0.2"]).capture().code, Some(0));
        taken(&asked)
    });
    let mut last = None;
    assert!(runs.any(|run| *last.insert(run) == (expected.to_vec(), 1)), "{last:?}");
}

#[test]
fn a_release_to_a_waiter_takes_three_round_trips() {
    let Some((sandbox, other, asked)) = counted() else { return };
    // The second read is about the lease of the waiter.
    let expected = ["kv/range", "kv/range", "kv/txn"].map(str::to_string);
    let mut runs = (0..TRIES).map(|_| {
        let holder = sandbox.holder("x");
        let waiter = other.csalock(["run", "x", "echo", "ran"]).spawn();
        wait_until("it waits", || other.waiting("x") == 1);
        taken(&asked);
        assert_eq!(holder.wait().code, Some(0));
        let done = waiter.wait();
        assert!(done.code == Some(0) && done.stdout == "ran\n", "{done:?}");
        taken(&asked)
    });
    let mut last = None;
    assert!(runs.any(|run| last.insert(run).0 == expected), "{last:?}");
}
