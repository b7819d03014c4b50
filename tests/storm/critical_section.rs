//! The critical section of a storm: this very program, started again, that reports to the witness.

use std::path::Path;

use crate::exclusion::{Entry, Witness, boottime, identity};

/// Maximum time after the end of its lease in which a command may still be seen alive, because its supervisor needs the
/// processor.
const OVERDUE: u64 = 2500;

/// How a critical section is told what it is: words, each `KEY=VALUE`.
pub(crate) const TOLD: &str = "CSALOCK_TEST_TOLD";

/// The pid of the process that makes the storm.
pub(crate) const STORM: &str = "CSALOCK_TEST_STORM_PID";

pub(crate) fn words() -> Vec<String> {
    let this = std::env::current_exe().unwrap().display().to_string();
    [&this, "critical_section::critical_section", "--exact", "--ignored", "--test-threads=1"]
        .map(str::to_string)
        .to_vec()
}

/// The commands of scripts, inside and outside of locks.
#[test]
#[ignore = "the processes of a storm run it"]
fn critical_section() {
    let Ok(told) = std::env::var(TOLD) else { return };
    let told = |key: &str| {
        told.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default().to_string()
    };
    let number = |key: &str| told(key).parse::<u64>().ok();
    let witness = Witness::new(Path::new("witness"));
    let (who, id) = (told("who"), told("id"));
    match &told("do")[..] {
        "stay" => {
            let entries = entries_of(&told, &number);
            if witness.enter(&entries) {
                std::thread::sleep(std::time::Duration::from_millis(number("stay").unwrap_or(0)));
                witness.leave(|entry| entry.who == who);
            }
        }
        "claimed" => {
            let entry = |name: &str| {
                let name = name.to_string();
                Entry { who: who.clone(), name, share: 'c', asked: boottime(), id: id.clone(), ..Entry::default() }
            };
            witness.enter(&told("names").split(',').map(entry).collect::<Vec<_>>());
        }
        "unclaims" => witness.leave(|entry| entry.share == 'c' && entry.id == id),
        "breaks" | "broke" => witness.breaks(&told("names"), parent(), told("do") == "broke"),
        what => panic!("{what:?} is nothing to do"),
    }
}

fn parent() -> (i32, u64) {
    // A child of the storm itself has no parent; its own child has one that does not exist.
    let parent = nix::unistd::getppid().as_raw();
    let is_orphan = std::env::var(STORM).is_ok_and(|storm| storm == parent.to_string());
    identity(parent).filter(|_| !is_orphan).unwrap_or((i32::MAX, 0))
}

/// `names=a:self,b:parent,d:nobody tokens=5,6 share=x asked=7 ttl=8 warded=9`
fn entries_of(told: &dyn Fn(&str) -> String, number: &dyn Fn(&str) -> Option<u64>) -> Vec<Entry> {
    let (asked, ttl, now) = (number("asked").unwrap(), number("ttl"), boottime());
    let tokens = Some(told("tokens")).filter(|tokens| !tokens.is_empty());
    let tokens = tokens.or_else(|| std::env::var("CSALOCK_TOKEN").ok()).unwrap_or_default();
    let mut tokens = tokens.split(',').map(|token| token.parse().ok());
    let me = std::process::id() as i32;
    let entry = |name: &str| {
        let (name, owner) = name.split_once(':').unwrap();
        Entry {
            who: told("who"),
            name: name.to_string(),
            share: told("share").chars().next().unwrap(),
            owner: match owner {
                "self" => identity(me),
                "parent" => Some(parent()),
                _ => None,
            },
            asked,
            until: ttl.map(|ttl| asked + ttl),
            overdue: ttl.filter(|_| !told("warded").is_empty()).map(|ttl| now + ttl + OVERDUE),
            token: tokens.next().flatten(),
            id: String::new(),
        }
    };
    told("names").split(',').map(entry).collect()
}
