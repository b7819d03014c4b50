//! Findings about a cluster for `csalock doctor`: first each server, then the whole cluster.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::api::number;
use super::client::Client;
use super::errors::explain;
use lock::name::escape;
use store::{Call, Finding, Verdict};

const SERVER_TIMEOUT: Duration = Duration::from_secs(2);

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

pub(super) fn examine(client: &Client, call: Call) -> Vec<Finding> {
    let mut versions = BTreeSet::new();
    let servers = (0..client.cluster.endpoints.len()).flat_map(|at| of_server(client, call, at, &mut versions));
    let mut findings: Vec<Finding> = servers.collect();
    findings.extend(versions.iter().filter_map(|version| of_version(version)));
    if !versions.is_empty() {
        findings.extend(of_members(client, call));
        findings.extend([of_login(client), of_transport(client)]);
    }
    findings
}

fn of_server(client: &Client, call: Call, at: usize, versions: &mut BTreeSet<String>) -> Vec<Finding> {
    let server = &client.cluster.endpoints[at][..];
    let call = Call { until: Some(client.host.boottime() + SERVER_TIMEOUT), ..call };
    let status: Status = match client.ask_server(call, at, "/v3/maintenance/status") {
        Ok(status) => status,
        Err(error) => {
            let error = explain(&[(server.to_string(), error)], &client.cluster);
            // Other servers may answer.
            let is_last = client.cluster.endpoints.len() == 1;
            let verdict = if is_last { Verdict::Bad } else { Verdict::Doubtful };
            return vec![Finding { verdict, ..Finding::failed("server", &error) }];
        }
    };
    let version = if status.version.is_empty() { "unknown" } else { &status.version };
    versions.insert(version.to_string());
    let mut findings = vec![Finding::good("server", format!("{server}: etcd {}", escape(version.as_bytes())))];
    if status.leader == 0 {
        let cure = "check that most of its members are up and reach each other";
        findings.push(Finding::bad("leader", format!("{server} knows no leader"), cure));
    }
    for error in status.errors {
        let cure = "check `etcdctl alarm list`; for NOSPACE compact, defragment and disarm";
        findings.push(Finding::bad("alarm", format!("{server}: {}", escape(error.as_bytes())), cure));
    }
    findings
}

/// MINOR and PATCH of releases 3.MINOR.PATCH.
type Releases = &'static [(u32, Range<u32>)];

/// Faults of etcd that concern locks, and the releases that have them.
const FAULTS: [(&str, Releases); 4] = [
    ("members may store different data", &[(5, 0..3)]),
    ("a leader that was stuck may revoke leases that last", &[(4, 0..31), (5, 0..13)]),
    ("a server that was paused may answer reads with an old state", &[(4, 20..42), (5, 0..28), (6, 0..9)]),
    ("users may bypass their roles", &[(4, 0..44), (5, 0..30), (6, 0..11)]),
];

fn of_version(version: &str) -> Option<Finding> {
    let faults = faults(version);
    let found = format!("etcd {}: {}", escape(version.as_bytes()), faults.join("; "));
    let cure = "upgrade etcd to 3.5.30 or later, or to 3.6.11 or later";
    (!faults.is_empty()).then(|| Finding::doubtful("version", found, cure))
}

fn faults(version: &str) -> Vec<String> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    let (Some(major), Some(minor)) = (parts.next().flatten(), parts.next().flatten()) else {
        return vec!["not the version of a release".to_string()];
    };
    if (major, minor) < (3, 4) {
        return vec!["older than 3.4, the first release that csalock supports".to_string()];
    }
    if major > 3 {
        return Vec::new();
    }
    // A pre-release, for example 3.6.0-rc.1, counts as its first release.
    let patch = parts.next().flatten().unwrap_or_default();
    let mut faults = Vec::new();
    for (what, releases) in FAULTS {
        let found = releases.iter().find(|(of, patches)| *of == minor && patches.contains(&patch));
        faults.extend(found.map(|(_, patches)| format!("{what} (fixed in 3.{minor}.{})", patches.end)));
    }
    if minor == 4 {
        faults.push("3.4 is end-of-life".to_string());
    }
    faults
}

fn of_members(client: &Client, call: Call) -> Option<Finding> {
    let known = client.cluster.endpoints.len();
    let members = client.ask::<Members>(call, "/v3/cluster/member/list", &json!({})).ok()?.members.len();
    Some(if members == 1 {
        let cure = "use three members if locks must work without one of them";
        Finding::doubtful("members", "one: while it is down, no lock can be acquired or released", cure)
    } else if known == 1 {
        let what =
            format!("{members}, and the store's URL names one: while that is down, csalock cannot find the others");
        Finding::doubtful("members", what, "name several: etcd://HOST:PORT,HOST:PORT/PREFIX")
    } else {
        Finding::good("members", format!("{members}, of which the store's URL names {known}"))
    })
}

fn of_login(client: &Client) -> Finding {
    match client.login.wanted() {
        Some((user, _)) => Finding::good("login", format!("as {}", escape(user.as_bytes()))),
        None if client.cluster.tls => Finding::good("login", "none, and none is required"),
        None => {
            let cure = "if others reach etcd, run `etcdctl auth enable` and give csalock a role for its prefix";
            Finding::doubtful("login", "none: every client that reaches etcd can acquire any lock", cure)
        }
    }
}

fn of_transport(client: &Client) -> Finding {
    let is_local = |server: &String| ["127.", "[::1]", "localhost:"].iter().any(|local| server.starts_with(local));
    if client.cluster.tls {
        Finding::good("transport", "TLS")
    } else if client.cluster.endpoints.iter().all(is_local) {
        Finding::good("transport", "plain, within this host")
    } else {
        let what = "plain: a listener on the network can read all records and passwords";
        Finding::doubtful("transport", what, "give etcd certificates and use etcds://")
    }
}

#[cfg(test)]
mod tests {
    use super::{faults, of_version};

    const DATA: &str = "members may store different data";
    const LEASES: &str = "a leader that was stuck may revoke leases that last";
    const READS: &str = "a server that was paused may answer reads with an old state";
    const ROLES: &str = "users may bypass their roles";

    #[test]
    fn which_versions_have_which_faults() {
        let end_of_life = "3.4 is end-of-life".to_string();
        let expected = |version: &str, known: &[(&str, &str)], is_old: bool| {
            let known = known.iter().map(|(what, fixed)| format!("{what} (fixed in {fixed})"));
            let known: Vec<String> = known.chain(is_old.then(|| end_of_life.clone())).collect();
            assert_eq!(faults(version), known, "{version}");
        };
        expected("3.4.19", &[(LEASES, "3.4.31"), (ROLES, "3.4.44")], true);
        expected("3.4.23", &[(LEASES, "3.4.31"), (READS, "3.4.42"), (ROLES, "3.4.44")], true);
        expected("3.4.30", &[(LEASES, "3.4.31"), (READS, "3.4.42"), (ROLES, "3.4.44")], true);
        expected("3.4.31", &[(READS, "3.4.42"), (ROLES, "3.4.44")], true);
        expected("3.4.41", &[(READS, "3.4.42"), (ROLES, "3.4.44")], true);
        expected("3.4.42", &[(ROLES, "3.4.44")], true);
        expected("3.4.43", &[(ROLES, "3.4.44")], true);
        expected("3.4.44", &[], true);
        expected("3.5.2", &[(DATA, "3.5.3"), (LEASES, "3.5.13"), (READS, "3.5.28"), (ROLES, "3.5.30")], false);
        expected("3.5.3", &[(LEASES, "3.5.13"), (READS, "3.5.28"), (ROLES, "3.5.30")], false);
        expected("3.5.12", &[(LEASES, "3.5.13"), (READS, "3.5.28"), (ROLES, "3.5.30")], false);
        expected("3.5.13", &[(READS, "3.5.28"), (ROLES, "3.5.30")], false);
        expected("3.5.27", &[(READS, "3.5.28"), (ROLES, "3.5.30")], false);
        expected("3.5.28", &[(ROLES, "3.5.30")], false);
        expected("3.5.29", &[(ROLES, "3.5.30")], false);
        expected("3.5.30", &[], false);
        expected("3.6.0-rc.1", &[(READS, "3.6.9"), (ROLES, "3.6.11")], false);
        expected("3.6.8", &[(READS, "3.6.9"), (ROLES, "3.6.11")], false);
        expected("3.6.9", &[(ROLES, "3.6.11")], false);
        expected("3.6.10", &[(ROLES, "3.6.11")], false);
        for good in ["3.6.11", "3.7.0", "4.0.0"] {
            expected(good, &[], false);
            assert_eq!(of_version(good), None);
        }
    }

    #[test]
    fn versions_that_are_too_old_or_strange() {
        for old in ["3.3.25", "2.3.8"] {
            assert_eq!(faults(old), ["older than 3.4, the first release that csalock supports"], "{old}");
        }
        for strange in ["unknown", "3", ""] {
            assert_eq!(faults(strange), ["not the version of a release"], "{strange}");
        }
        let found = of_version("a\x1b[2Jb").map(|finding| finding.found);
        assert_eq!(found.as_deref(), Some("etcd a\\u{1b}[2Jb: not the version of a release"));
    }
}
