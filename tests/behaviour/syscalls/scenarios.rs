//! Every command, on a lock that is free, held, waited for or left by a dead holder, where that makes a difference.

use super::fixture::Before::{self, Claimed, FreedSoon, FullLog, Held, Left, LongValue, Mine, NoStore, Value, Waiter};

pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) before: &'static [Before],
    /// The command; X, Y and HANDLE stand for two names and the proof of holding one.
    pub(crate) words: &'static [&'static str],
    /// The exit code, if nothing goes wrong.
    pub(crate) code: i32,
    /// The names that it uses.
    pub(crate) about: About,
}

/// The effect of a successful command on the names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum About {
    /// It acquires them, and its caller holds them afterwards.
    Taking,
    /// It ends what is held.
    Ending,
    /// It writes "new" to x, and perhaps gives it back.
    Writing { gives_back: bool },
    /// It deletes the value of x.
    Deleting,
    /// It claims x and y.
    Claiming,
    /// It gives up those claims.
    Unclaiming,
    /// It leaves everything as it was.
    Nothing,
}

const fn of(
    name: &'static str,
    before: &'static [Before],
    words: &'static [&'static str],
    code: i32,
    about: About,
) -> Scenario {
    Scenario { name, before, words, code, about }
}

use About::{Claiming, Deleting, Ending, Nothing, Taking, Unclaiming, Writing};

const BUSY: &[Before] = &[Held("x"), Waiter("x")];
const SOON: &[Before] = &[Held("x"), FreedSoon("x")];

pub(crate) const ALL: &[Scenario] = &[
    of("lock, in no store", &[NoStore], &["lock", "X"], 0, Taking),
    of("lock", &[], &["lock", "X"], 0, Taking),
    of("lock --print-handle", &[], &["lock", "--print-handle", "X"], 0, Taking),
    of("lock, left", &[Left("x")], &["lock", "--print-handle", "X"], 0, Taking),
    of("lock, held", BUSY, &["lock", "-w", "20ms", "X"], 75, Nothing),
    of("lock, freed", SOON, &["lock", "X"], 0, Taking),
    of("lock --ttl", &[], &["lock", "--ttl", "1h", "X"], 0, Taking),
    of("lock of two", &[], &["lock", "X", "Y"], 0, Taking),
    of("lock of two, one held", &[Held("y"), Waiter("y")], &["lock", "-w", "20ms", "X", "Y"], 75, Nothing),
    of("lock of two --print-handle", &[], &["lock", "--print-handle", "X", "Y"], 0, Taking),
    of("lock of two, one freed", SOON, &["lock", "X", "Y"], 0, Taking),
    of("unlock", &[Mine("x")], &["unlock", "X"], 0, Ending),
    of("unlock, with a full log", &[Mine("x"), FullLog], &["unlock", "X"], 0, Ending),
    of("unlock --all", &[Mine("x")], &["unlock", "--all", "X"], 0, Ending),
    of("unlock, waited for", BUSY, &["unlock", "--handle", "HANDLE", "X"], 0, Ending),
    of("unlock --force, waited for", BUSY, &["unlock", "--force", "X"], 0, Ending),
    of("unlock, another holder's", BUSY, &["unlock", "X"], 82, Nothing),
    of("run", &[], &["run", "X", "true"], 0, Nothing),
    of("run, in no store", &[NoStore], &["run", "X", "true"], 0, Nothing),
    of("run, with a full log", &[FullLog], &["run", "X", "true"], 0, Nothing),
    of("run, left", &[Left("x")], &["run", "X", "true"], 0, Nothing),
    of("run, held", BUSY, &["run", "-w", "20ms", "X", "true"], 75, Nothing),
    of("run, freed", SOON, &["run", "X", "true"], 0, Nothing),
    of("run --ttl", &[], &["run", "--ttl", "1h", "X", "true"], 0, Nothing),
    of("run -F", &[], &["run", "-F", "X", "true"], 0, Nothing),
    of("run -F, held", BUSY, &["run", "-F", "-w", "20ms", "X", "true"], 75, Nothing),
    of("run -F, freed", SOON, &["run", "-F", "X", "true"], 0, Nothing),
    of("run --also", &[], &["run", "X", "--also", "Y", "true"], 0, Nothing),
    of("run --also, freed", SOON, &["run", "X", "--also", "Y", "true"], 0, Nothing),
    of("renew", &[Mine("x")], &["renew", "--ttl", "1h", "X"], 0, Nothing),
    of("renew, waited for", BUSY, &["renew", "--ttl", "1h", "--handle", "HANDLE", "X"], 0, Nothing),
    of("get", &[Value("x")], &["get", "X"], 0, Nothing),
    of("get, long", &[LongValue("x")], &["get", "X"], 0, Nothing),
    of("get --lock", &[Value("x")], &["get", "--lock", "--json", "X"], 0, Taking),
    of("get --lock, left", &[Value("x"), Left("x")], &["get", "--lock", "--json", "X"], 0, Taking),
    of("get --lock, freed", &[Value("x"), Held("x"), FreedSoon("x")], &["get", "--lock", "--json", "X"], 0, Taking),
    of("put", &[], &["put", "X", "new"], 0, Writing { gives_back: false }),
    of("put over", &[Value("x")], &["put", "X", "new"], 0, Writing { gives_back: false }),
    of("put over, long", &[LongValue("x")], &["put", "X", "new"], 0, Writing { gives_back: false }),
    of("put, held", &[Value("x"), Mine("x")], &["put", "X", "new"], 0, Writing { gives_back: false }),
    of("put, left", &[Value("x"), Left("x")], &["put", "X", "new"], 0, Writing { gives_back: false }),
    of("put --unlock", &[Mine("x")], &["put", "--unlock", "X", "new"], 0, Writing { gives_back: true }),
    of(
        "put --unlock, waited for",
        BUSY,
        &["put", "--unlock", "--handle", "HANDLE", "X", "new"],
        0,
        Writing { gives_back: true },
    ),
    of("del", &[Value("x")], &["del", "X"], 0, Deleting),
    of("del, long", &[LongValue("x")], &["del", "X"], 0, Deleting),
    of("del, held", &[Value("x"), Mine("x")], &["del", "X"], 0, Deleting),
    of("claim", &[], &["claim", "--id", "me", "X", "Y"], 0, Claiming),
    of("claim, left", &[Left("x")], &["claim", "--id", "me", "X", "Y"], 0, Claiming),
    of("claim, taken", &[Claimed("y", "you")], &["claim", "--id", "me", "X", "Y"], 83, Nothing),
    of("claim, freed", SOON, &["claim", "--id", "me", "X", "Y"], 0, Claiming),
    of("unclaim", &[Claimed("x", "me"), Claimed("y", "me")], &["unclaim", "--id", "me", "X", "Y"], 0, Unclaiming),
    of("lookup", &[Claimed("x", "me")], &["lookup", "X"], 0, Nothing),
    of("lookup --id", &[Claimed("x", "me")], &["lookup", "--id", "me"], 0, Nothing),
    of("status", BUSY, &["status"], 0, Nothing),
    of("gc", &[Left("x")], &["gc"], 0, Nothing),
    of("gc, waited for", &[Held("y"), Waiter("y"), Left("x")], &["gc"], 0, Nothing),
    of("history", &[], &["history"], 0, Nothing),
    of("doctor", &[Held("x")], &["doctor"], 0, Nothing),
];
