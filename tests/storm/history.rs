//! Histories: the calls on values, claims and locks, with their times and results; judged name by name.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::linear::{Call, Object, judge};
use crate::objects::{self, Claims, OnClaims, OnMutex, OnRegister, Register};
use crate::schedule::Op;

pub(crate) const NAMES_OF_EACH: usize = 2;

#[derive(Debug, Default)]
pub(crate) struct History {
    values: Calls<OnRegister>,
    claims: Calls<OnClaims>,
    locks: Calls<OnMutex>,
}

type Calls<T> = Mutex<BTreeMap<String, Vec<Call<T>>>>;

/// The result of a call, and its time.
pub(crate) struct Returned {
    pub(crate) from: u64,
    pub(crate) until: u64,
    /// As a shell has it.
    pub(crate) status: i32,
    pub(crate) stdout: String,
}

/// A lock that is held until it is released.
pub(crate) struct Held {
    pub(crate) handle: String,
    token: u64,
}

/// The words of csalock for it.
pub(crate) fn words(op: Op, name: &str, who: &str, worker: usize) -> String {
    match op {
        Op::Get => format!("get -q {name}"),
        Op::Put => format!("put -q -w 5s {name} {who}"),
        Op::PutIfAbsent => format!("put -q -w 5s --if-absent {name} {who}"),
        Op::Delete => format!("del -q -w 5s {name}"),
        Op::Claim => format!("claim -q -n --id h{worker} {name}"),
        Op::Unclaim => format!("unclaim -q --id h{worker} {name}"),
        Op::LookUp => format!("lookup -q {name}"),
        Op::Lock { .. } => format!("lock -q -n --json --forever {name}"),
        Op::Break => format!("unlock -q --force {name}"),
    }
}

pub(crate) fn name(op: Op, number: usize) -> String {
    let kind = match op {
        Op::Get | Op::Put | Op::PutIfAbsent | Op::Delete => "r",
        Op::Claim | Op::Unclaim | Op::LookUp => "k",
        Op::Lock { .. } | Op::Break => "f",
    };
    format!("{kind}{number}")
}

pub(crate) fn names(kind: char) -> impl Iterator<Item = String> {
    (0..NAMES_OF_EACH).map(move |number| format!("{kind}{number}"))
}

impl History {
    /// Logs a call. A refused call without effect is left out; an unknown result is logged as unknown.
    pub(crate) fn add(&self, op: Op, name: &str, who: &str, worker: usize, returned: &Returned) -> Option<Held> {
        let (id, found) = (format!("h{worker}"), returned.stdout.trim_end().to_string());
        match (op, returned.status) {
            (Op::Get, 0) => self.values.add(name, returned, OnRegister::Get(Some(found))),
            (Op::Get, 81) => self.values.add(name, returned, OnRegister::Get(None)),
            (Op::LookUp, 0) => self.claims.add(name, returned, OnClaims::LookUp(Some(found))),
            (Op::LookUp, 81) => self.claims.add(name, returned, OnClaims::LookUp(None)),
            (Op::Put, 0) => self.values.add(name, returned, OnRegister::Put(who.to_string())),
            (Op::PutIfAbsent, 0) => self.values.add(name, returned, OnRegister::PutIfAbsent(who.to_string(), true)),
            (Op::PutIfAbsent, 83) => self.values.add(name, returned, OnRegister::PutIfAbsent(who.to_string(), false)),
            (Op::Delete, 0) => self.values.add(name, returned, OnRegister::Delete(true)),
            (Op::Delete, 81) => self.values.add(name, returned, OnRegister::Delete(false)),
            (Op::Claim, 0) => self.claims.add(name, returned, OnClaims::Claim(id, true)),
            (Op::Claim, 83) => self.claims.add(name, returned, OnClaims::Claim(id, false)),
            (Op::Unclaim, 0) => self.claims.add(name, returned, OnClaims::Unclaim(id, true)),
            (Op::Unclaim, 81 | 82) => self.claims.add(name, returned, OnClaims::Unclaim(id, false)),
            (Op::Lock { .. }, 0) => {
                let said: serde_json::Value = serde_json::from_str(&returned.stdout).unwrap();
                let token = said["token"].as_u64().or(said["tokens"][0].as_u64()).unwrap();
                self.locks.add(name, returned, OnMutex::Lock(token));
                return Some(Held { handle: said["handle"].as_str().unwrap().to_string(), token });
            }
            (Op::Break, 0) => self.locks.add(name, returned, OnMutex::Break),
            // Refused for what others do meanwhile, or nothing to break.
            (_, 75 | 84) | (Op::Break, 81) => {}
            // A lock that was not reported has no holder.
            (Op::Get | Op::LookUp | Op::Lock { .. }, _) => {}
            (Op::Put, _) => self.values.add_unknown(name, returned, OnRegister::Put(who.to_string())),
            (Op::PutIfAbsent, _) => {
                self.values.add_unknown(name, returned, OnRegister::PutIfAbsent(who.to_string(), true));
            }
            (Op::Delete, _) => self.values.add_unknown(name, returned, OnRegister::Delete(true)),
            (Op::Claim, _) => self.claims.add_unknown(name, returned, OnClaims::Claim(id, true)),
            (Op::Unclaim, _) => self.claims.add_unknown(name, returned, OnClaims::Unclaim(id, true)),
            (Op::Break, _) => self.locks.add_unknown(name, returned, OnMutex::Break),
        }
        None
    }

    /// Logs the release of a lock.
    pub(crate) fn add_unlock(&self, name: &str, held: &Held, returned: &Returned) {
        match returned.status {
            0 => self.locks.add(name, returned, OnMutex::Unlock(held.token, true)),
            81 | 82 => self.locks.add(name, returned, OnMutex::Unlock(held.token, false)),
            _ => self.locks.add_unknown(name, returned, OnMutex::Unlock(held.token, true)),
        }
    }

    /// Returns the errors, and the number of calls.
    pub(crate) fn judge(&self) -> (Vec<String>, usize) {
        let values = judge_each::<Register>(&self.values);
        let claims = judge_each::<Claims>(&self.claims);
        let locks = judge_each::<objects::Mutex>(&self.locks);
        ([values.0, claims.0, locks.0].concat(), values.1 + claims.1 + locks.1)
    }
}

trait Add<T> {
    fn add(&self, name: &str, returned: &Returned, operation: T);
    fn add_unknown(&self, name: &str, returned: &Returned, operation: T);
}

impl<T> Add<T> for Calls<T> {
    fn add(&self, name: &str, returned: &Returned, operation: T) {
        let call = Call { from: returned.from, until: Some(returned.until), operation };
        self.lock().unwrap().entry(name.to_string()).or_default().push(call);
    }

    fn add_unknown(&self, name: &str, returned: &Returned, operation: T) {
        let call = Call { from: returned.from, until: None, operation };
        self.lock().unwrap().entry(name.to_string()).or_default().push(call);
    }
}

fn judge_each<O: Object>(calls: &Calls<O::Operation>) -> (Vec<String>, usize) {
    let calls = calls.lock().unwrap();
    let wrong = |(name, calls): (&String, &Vec<Call<O::Operation>>)| {
        Some(format!("the history of {name}: {}", judge::<O>(calls).err()?))
    };
    (calls.iter().filter_map(wrong).collect(), calls.values().map(Vec::len).sum())
}
