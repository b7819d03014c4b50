//! Findings about a server for `csalock doctor`.

use super::Postgres;
use super::settings::SslMode;
use crate::name::escape;
use crate::store::Finding;

const EXAMINE: &str = "SELECT current_setting('server_version'), current_setting('synchronous_standby_names'), \
                       current_setting('synchronous_commit'), current_setting('fsync'), current_user::text, \
                       ((SELECT count(*) FROM pg_stat_replication) + (SELECT count(*) FROM pg_replication_slots \
                       WHERE slot_type = 'physical'))::text, pg_is_in_recovery()::text";

impl Postgres {
    pub(super) fn findings(&self) -> Vec<Finding> {
        let begun = self.client.host.boottime();
        let row = match self.run(EXAMINE) {
            Ok(mut rows) => rows.pop().unwrap_or_default(),
            Err(failed) => return vec![Finding::failed("server", &failed.error)],
        };
        let took = self.client.host.boottime().saturating_sub(begun);
        let text = |at: usize| row.get(at).and_then(Option::as_deref).map(escape).unwrap_or_default();
        let mut findings = vec![Finding::good("server", format!("PostgreSQL {}", text(0)))];
        if text(6) == "true" {
            let cure = "name the primary server in the store's URL";
            findings.push(Finding::bad("role", "a standby, which refuses locks", cure));
        }
        findings
            .push(Finding::good("reading", format!("the first answer takes {:.1} ms", took.as_secs_f64() * 1000.0)));
        findings.push(match (&text(2)[..], &text(1)[..], &text(5)[..]) {
            ("off", ..) => Finding::bad(
                "commits",
                "synchronous_commit is off: a crash of the server could lose a lock",
                "ALTER ROLE or ALTER DATABASE ... SET synchronous_commit = on",
            ),
            (_, "", "0") => Finding::good("commits", "on this server alone, which has no standby"),
            (commit, names, _) if names.is_empty() || commit == "local" => Finding::doubtful(
                "commits",
                "no synchronous standby: a failover can lose the last commits, and a lock may then be granted twice",
                "set synchronous_standby_names, and synchronous_commit to on",
            ),
            (_, names, _) => Finding::good("commits", format!("wait for a synchronous standby: {names}")),
        });
        if text(3) == "off" {
            let what = "fsync is off: a power cut can lose locks and the database";
            findings.push(Finding::doubtful("disk", what, "set fsync = on in postgresql.conf"));
        }
        findings.push(Finding::good("login", format!("as {}", text(4))));
        findings.push(self.of_transport());
        findings
    }

    fn of_transport(&self) -> Finding {
        let settings = &self.client.settings;
        let is_local = |host: &str| ["/", "127.", "::1", "localhost"].iter().any(|local| host.starts_with(local));
        let is_local = settings.targets.iter().all(|target| is_local(target.address.as_ref().unwrap_or(&target.host)));
        let is_encrypted = self.client.is_encrypted();
        match (is_local, is_encrypted, settings.mode) {
            (true, ..) => Finding::good("transport", "within this host"),
            (_, true, SslMode::VerifyFull) => Finding::good("transport", "TLS"),
            (_, true, _) => Finding::doubtful(
                "transport",
                "TLS that does not check the server's name: another server can take its place",
                "set sslmode=verify-full, and sslrootcert",
            ),
            _ => Finding::doubtful(
                "transport",
                "plain: a listener on the network can read all records",
                "set ssl = on in postgresql.conf, and sslmode=verify-full",
            ),
        }
    }
}
