//! Findings about a server for `csalock doctor`.

use super::Postgres;
use super::settings::SslMode;
use lock::name::escape;
use store::{Call, Finding, guarded};

const EXAMINE: &str = "SELECT current_setting('server_version'), current_setting('synchronous_standby_names'), \
                       current_setting('synchronous_commit'), current_setting('fsync'), \
                       ((SELECT count(*) FROM pg_stat_replication) + (SELECT count(*) FROM pg_replication_slots \
                       WHERE slot_type = 'physical'))::text";

impl Postgres {
    /// A standby, and `synchronous_commit = off`, are not among the findings: every commit refuses them.
    pub(super) fn findings(&self, call: Call) -> Vec<Finding> {
        let row = match self.run(call, EXAMINE) {
            Ok(mut rows) => rows.pop().unwrap_or_default(),
            Err(error) => return vec![Finding::failed("server", &self.error(call, &error))],
        };
        let text = |at: usize| row.get(at).and_then(Option::as_deref).map(escape).unwrap_or_default();
        let standbys = text(1);
        let mut findings = vec![Finding::good("server", format!("PostgreSQL {}", text(0)))];
        findings.push(if standbys.is_empty() && text(4) == "0" {
            Finding::good("commits", "on this server alone, which has no standby")
        } else if standbys.is_empty() || text(2) == "local" {
            let what =
                "no synchronous standby: a failover can lose the last commits, and a lock may then be granted twice";
            Finding::doubtful("commits", what, "set synchronous_standby_names, and synchronous_commit to on")
        } else {
            Finding::good("commits", format!("wait for a synchronous standby: {standbys}"))
        });
        if text(3) == "off" {
            let what = "fsync is off: a power cut can lose locks and the database";
            findings.push(Finding::doubtful("disk", what, "set fsync = on in postgresql.conf"));
        }
        findings.push(self.of_transport());
        findings
    }

    fn of_transport(&self) -> Finding {
        let settings = &self.settings;
        let is_local = |host: &str| ["/", "127.", "::1", "localhost"].iter().any(|local| host.starts_with(local));
        let is_local = settings.targets.iter().all(|target| is_local(target.address.as_ref().unwrap_or(&target.host)));
        if is_local {
            return Finding::good("transport", "within this host");
        }
        if guarded(&self.session).as_ref().is_none_or(|session| session.wire.tls.is_none()) {
            let cure = "set ssl = on in postgresql.conf, and sslmode=verify-full";
            return Finding::doubtful("transport", "plain: a listener on the network can read all records", cure);
        }
        if settings.mode != SslMode::VerifyFull {
            let what = "TLS that does not check the server's name: another server can take its place";
            return Finding::doubtful("transport", what, "set sslmode=verify-full, and sslrootcert");
        }
        Finding::good("transport", "TLS")
    }
}
