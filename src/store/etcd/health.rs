//! What there is to say about a cluster, for `csalock doctor`: each server, then what they are together.

use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::gateway::Gateway;
use super::wire::{Found, encoded, number};
use super::wrong::Trouble;
use crate::name::shown;
use crate::store::{Finding, Verdict};

/// So long each question may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often a read is timed.
const READS: usize = 5;

/// A read that takes longer makes every lock slow.
const SLOW: Duration = Duration::from_millis(100);

/// What one server says of itself.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    version: String,
    #[serde(deserialize_with = "number")]
    leader: u64,
    errors: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Members {
    members: Vec<IgnoredAny>,
}

/// Looks at everything that can be seen of it.
pub(super) fn examine(gateway: &Gateway, records: &[u8]) -> Vec<Finding> {
    let cluster = &gateway.cluster;
    let mut findings: Vec<Finding> = cluster.endpoints.iter().flat_map(|server| of_server(gateway, server)).collect();
    let reading = of_reading(gateway, records);
    // Of a cluster that does not answer nothing more can be said.
    if reading.verdict == Verdict::Bad {
        return [findings, vec![reading]].concat();
    }
    findings.push(reading);
    findings.extend(of_members(gateway));
    findings.push(of_login(gateway));
    findings.push(of_transport(gateway));
    findings
}

/// One server: whether it answers, what it is, how it feels.
fn of_server(gateway: &Gateway, server: &str) -> Vec<Finding> {
    let status: Status = match gateway.ask_one(server, "/v3/maintenance/status", &json!({}), PATIENCE) {
        Ok(status) => status,
        Err(trouble) => return vec![of_trouble(gateway, server, trouble)],
    };
    let version = if status.version.is_empty() { "unknown" } else { &status.version };
    let mut findings = vec![match weakness(version) {
        None => Finding::good("server", format!("{server}: etcd {}", shown(version.as_bytes()))),
        Some(why) => {
            let what = format!("{server}: etcd {}, which {why}", shown(version.as_bytes()));
            Finding::doubtful("server", what, "upgrade to 3.5.13 or later, or to 3.4.23 or later")
        }
    }];
    if status.leader == 0 {
        let cure = "see whether most of its members are up and reach each other";
        findings.push(Finding::bad("leader", format!("{server} knows no leader"), cure));
    }
    for error in status.errors {
        let cure = "see `etcdctl alarm list`; for NOSPACE compact, defragment and disarm";
        findings.push(Finding::bad("alarm", format!("{server}: {}", shown(error.as_bytes())), cure));
    }
    if let Ok(health) = gateway.get(server, "/health", PATIENCE)
        && String::from_utf8_lossy(&health).contains("\"false\"")
    {
        findings.push(Finding::bad("health", format!("{server} says that it is not healthy"), "see its log"));
    }
    findings
}

/// One that did not answer: the others may do.
fn of_trouble(gateway: &Gateway, server: &str, trouble: Trouble) -> Finding {
    let error = Trouble::error(&[(server.to_string(), trouble)], &gateway.cluster).to_string();
    let (what, cure) = error.split_once("; ").unwrap_or((&error, ""));
    match gateway.cluster.endpoints.len() {
        1 => Finding::bad("server", what, cure),
        _ => Finding::doubtful("server", what, cure),
    }
}

/// What is known against a version.
fn weakness(version: &str) -> Option<&'static str> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    let (Some(major), Some(minor)) = (parts.next().flatten(), parts.next().flatten()) else {
        return Some("is no release");
    };
    match (major, minor, parts.next().flatten().unwrap_or_default()) {
        (3, 5, 0..=2) => Some("may come to hold different data on each member (3.5.0 to 3.5.2)"),
        (3, 5, ..13) | (3, 4, ..23) => Some("may end leases that live, when a leader was stuck (mended in 3.5.13)"),
        (..3, ..) | (3, ..4, _) => Some("is older than anything that csalock was tried with"),
        _ => None,
    }
}

/// Whether the majority answers, and how fast.
fn of_reading(gateway: &Gateway, records: &[u8]) -> Finding {
    let question = json!({"key": encoded(records), "keys_only": true});
    let mut times = Vec::new();
    for _ in 0..READS {
        let begun = gateway.host().boottime();
        if let Err(error) = gateway.ask::<Found>("/v3/kv/range", &question) {
            let error = error.to_string();
            let (what, cure) = error.rsplit_once("; ").unwrap_or((&error, ""));
            return Finding::bad("reading", what, cure);
        }
        times.push(gateway.host().boottime().saturating_sub(begun));
    }
    times.sort();
    let median = times[READS / 2];
    let what = format!("a read that most members agree to takes {:.1} ms", median.as_secs_f64() * 1000.0);
    match median > SLOW {
        true => Finding::doubtful("reading", what, "see the network to etcd, and its disks (`etcdctl check perf`)"),
        false => Finding::good("reading", what),
    }
}

/// How many members there are, and how many of them we know.
fn of_members(gateway: &Gateway) -> Option<Finding> {
    let known = gateway.cluster.endpoints.len();
    let members = gateway.ask::<Members>("/v3/cluster/member/list", &json!({})).ok()?.members.len();
    Some(match (members, known) {
        (1, _) => {
            let cure = "that will do where locks may wait for it; three members go on without one of them";
            Finding::doubtful("members", "one: while it is down nobody can take or give back a lock", cure)
        }
        (members, 1) => {
            let what = format!("{members}, and the store's URL names one: while that is down, nobody finds the others");
            Finding::doubtful("members", what, "name several: etcd://HOST:PORT,HOST:PORT/PREFIX")
        }
        (members, known) => Finding::good("members", format!("{members}, of which the store's URL names {known}")),
    })
}

fn of_login(gateway: &Gateway) -> Finding {
    match gateway.user() {
        Some(user) => Finding::good("login", format!("as {}", shown(user.as_bytes()))),
        None if gateway.cluster.tls => Finding::good("login", "none, and none is asked for"),
        None => {
            let cure = "where others reach etcd, `etcdctl auth enable` and give csalock a role for its prefix";
            Finding::doubtful("login", "none: whoever reaches etcd can take any lock", cure)
        }
    }
}

fn of_transport(gateway: &Gateway) -> Finding {
    if gateway.cluster.tls {
        return Finding::good("transport", "TLS");
    }
    let is_local = |server: &String| ["127.", "[::1]", "localhost:"].iter().any(|local| server.starts_with(local));
    match gateway.cluster.endpoints.iter().all(is_local) {
        true => Finding::good("transport", "plain, within this host"),
        false => Finding::doubtful(
            "transport",
            "plain: whoever can listen on the way reads all records and passwords",
            "give etcd certificates and say etcds://",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::weakness;

    #[test]
    fn which_versions_are_doubtful() {
        for good in ["3.4.23", "3.4.34", "3.5.13", "3.5.21", "3.6.0", "4.0.0"] {
            assert_eq!(weakness(good), None, "{good}");
        }
        for doubtful in ["3.4.22", "3.5.0", "3.5.2", "3.5.12", "3.3.25", "2.3.8", "unknown"] {
            assert!(weakness(doubtful).is_some(), "{doubtful}");
        }
        assert!(weakness("3.5.1").is_some_and(|why| why.contains("different data")));
    }
}
