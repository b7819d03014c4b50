//! Settings, one by one, against the list in the documentation of libpq.

use std::collections::BTreeSet;

use super::*;

fn settings(url: &str, variables: &[(&'static str, &str)]) -> Result<Settings> {
    settings_of(&Database::parse(url.strip_prefix("postgres:").unwrap().as_bytes()).unwrap(), variables)
}

fn settings_of(database: &Database, variables: &[(&'static str, &str)]) -> Result<Settings> {
    let home = [("HOME", "/nowhere")];
    let value = |wanted: &str| variables.iter().chain(&home).find(|(name, value)| *name == wanted && !value.is_empty());
    Settings::new(database, &|name| value(name).map(|(_, value)| value.into()), 0)
}

fn refused(url: &str, variables: &[(&'static str, &str)]) -> String {
    let error = settings(url, variables).err().unwrap_or_else(|| panic!("{url} {variables:?} is accepted"));
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    error.to_string()
}

/// Parameter key words and environment variables in the documentation of PostgreSQL 18, chapters 32.1.2 and 32.15, and
/// the two that only older releases have.
const DOCUMENTED: &str = "
    host hostaddr port dbname user password passfile require_auth channel_binding connect_timeout client_encoding options
    application_name fallback_application_name keepalives keepalives_idle keepalives_interval keepalives_count
    tcp_user_timeout replication gssencmode sslmode requiressl sslnegotiation sslcompression sslcert sslkey sslkeylogfile
    sslpassword sslcertmode sslrootcert sslcrl sslcrldir sslsni requirepeer ssl_min_protocol_version
    ssl_max_protocol_version min_protocol_version max_protocol_version krbsrvname gsslib gssdelegation scram_client_key
    scram_server_key service servicefile target_session_attrs load_balance_hosts oauth_issuer oauth_client_id
    oauth_client_secret oauth_scope
    PGHOST PGSSLNEGOTIATION PGHOSTADDR PGPORT PGDATABASE PGUSER PGPASSWORD PGPASSFILE PGREQUIREAUTH PGCHANNELBINDING
    PGSERVICE PGSERVICEFILE PGOPTIONS PGAPPNAME PGSSLMODE PGREQUIRESSL PGSSLCOMPRESSION PGSSLCERT PGSSLKEY PGSSLCERTMODE
    PGSSLROOTCERT PGSSLCRL PGSSLCRLDIR PGSSLSNI PGREQUIREPEER PGSSLMINPROTOCOLVERSION PGSSLMAXPROTOCOLVERSION
    PGGSSENCMODE PGKRBSRVNAME PGGSSLIB PGGSSDELEGATION PGCONNECT_TIMEOUT PGCLIENTENCODING PGTARGETSESSIONATTRS
    PGLOADBALANCEHOSTS PGMINPROTOCOLVERSION PGMAXPROTOCOLVERSION PGDATESTYLE PGTZ PGGEQO PGSYSCONFDIR PGLOCALEDIR";

/// Variables of settings that are ignored.
const IGNORED_VARIABLES: &str = "
    PGCLIENTENCODING PGCONNECT_TIMEOUT PGGSSDELEGATION PGGSSLIB PGKRBSRVNAME PGLOADBALANCEHOSTS PGMAXPROTOCOLVERSION
    PGSERVICEFILE PGSSLCOMPRESSION PGDATESTYLE PGGEQO PGLOCALEDIR PGSYSCONFDIR PGTZ";

#[test]
fn the_tables_have_all_settings_of_libpq_and_no_other() {
    let documented: BTreeSet<String> = DOCUMENTED.split_whitespace().map(String::from).collect();
    let mut ours: BTreeSet<String> =
        IMPLEMENTED.split_whitespace().flat_map(|key| [key.to_string(), variable_of(key)]).collect();
    ours.extend(REFUSED.iter().flat_map(|Refused(key, variable, ..)| [key.to_string(), variable.to_string()]));
    ours.extend([IGNORED, IGNORED_VARIABLES].iter().flat_map(|names| names.split_whitespace()).map(String::from));
    ours.remove("");
    assert_eq!(ours, documented);
}

#[test]
fn each_setting_is_refused_or_ignored_as_the_tables_say() {
    let by_key = |key: &str, value: &str| {
        let options = format!("{key}={value}");
        settings_of(&Database { address: "h".into(), name: "d".into(), options }, &[])
    };
    for Refused(key, variable, allowed, why) in &REFUSED {
        let error = by_key(key, "require").err().unwrap_or_else(|| panic!("{key} is accepted"));
        assert!(error.kind() == ErrorKind::InvalidInput && error.message().contains(why), "{error}");
        if !variable.is_empty() {
            let said = refused("postgres://h/d", &[(variable, "require")]);
            assert!(said.contains(key) && said.contains(why) && said.contains(variable), "{said}");
            assert!(settings("postgres://h/d", &[(variable, "")]).is_ok());
        }
        allowed.iter().for_each(|value| assert!(by_key(key, value).is_ok(), "{key}={value}"));
    }
    for key in IGNORED.split_whitespace() {
        assert!(by_key(key, "require").is_ok(), "{key}");
    }
    for variable in IGNORED_VARIABLES.split_whitespace() {
        assert!(settings("postgres://h/d", &[(variable, "require")]).is_ok(), "{variable}");
    }
}

#[test]
fn what_the_url_omits_comes_from_the_environment() {
    let all = [("PGHOST", "other"), ("PGPORT", "6"), ("PGUSER", "u"), ("PGDATABASE", "d")];
    let seen = |url: &str, variables: &[(&'static str, &str)]| {
        let found = settings(url, variables).unwrap();
        (format!("{}@{}/{}", found.user, found.servers(), found.database), found.mode)
    };
    assert_eq!(seen("postgres://", &all), ("u@other:6/d".to_string(), SslMode::Prefer));
    assert_eq!(seen("postgres://a%40b@[::1]:7/e", &all).0, "a@b@[::1]:7/e");
    assert_eq!(seen("postgres://h/e?sslmode=verify-full", &all), ("u@h:6/e".to_string(), SslMode::VerifyFull));
    assert_eq!(seen("postgres://%2Frun%2Fp", &all).0, "u@/run/p:6/d");
    assert_eq!(seen("postgres:///", &[("PGUSER", "u")]).0, "u@/var/run/postgresql:5432/u");
    assert_eq!(seen("postgres://h", &[("PGSSLMODE", "allow")]).1, SslMode::Allow);
    assert!(refused("postgres://h", &[("PGPORT", "x")]).contains("PGPORT"));
    assert!(refused("postgres://h", &[("PGSSLMODE", "never")]).contains("verify-full"));
    let said = refused("postgres://h?service=x", &[("PGSERVICEFILE", "/x")]);
    assert!(said.contains("service=x: csalock reads no service files; use the URL"), "{said}");
    let found = settings("postgres://h?application_name=a", &[("PGOPTIONS", "-c role=r")]).unwrap();
    assert_eq!((&found.application[..], found.options.as_deref()), ("a", Some("-c role=r")));
}

#[test]
fn lists_of_hosts_and_ports_belong_together() {
    let seen = |url: &str, variables: &[(&'static str, &str)]| {
        let found = settings(url, variables).unwrap();
        found.targets.iter().map(Target::place).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(seen("postgres://a:1,b:2/d", &[]), "a:1 b:2");
    assert_eq!(seen("postgres://a,b:2/d", &[]), "a:5432 b:2");
    assert_eq!(seen("postgres:///d", &[("PGHOST", "a,b"), ("PGPORT", "7")]), "a:7 b:7");
    assert_eq!(seen("postgres:///d", &[("PGHOST", "a,b"), ("PGPORT", "7,8")]), "a:7 b:8");
    assert_eq!(seen("postgres://n/d", &[("PGHOSTADDR", "127.0.0.1")]), "127.0.0.1:5432");
    assert_eq!(seen("postgres:///d", &[("PGHOSTADDR", "::1")]), "[::1]:5432");
    assert!(settings("postgres://n/d", &[("PGHOSTADDR", "::1")]).unwrap().servers().starts_with("n:"));
    assert!(refused("postgres://a,b,c/d", &[("PGPORT", "7,8")]).contains("a list of 3"));
    for (url, addresses) in [("postgres://a,b/d", "::1"), ("postgres://a,b/d", "::1,::2"), ("postgres:///d", "::1,::2")]
    {
        let said = refused(url, &[("PGHOSTADDR", addresses)]);
        assert!(said.contains(&format!("hostaddr={addresses}: csalock takes one address, and for one host")), "{said}");
        assert!(said.contains("unset PGHOSTADDR"), "{said}");
    }
}

#[test]
fn authorities_of_the_system_need_the_strictest_mode() {
    let found = settings("postgres://h", &[("PGSSLROOTCERT", "system")]).unwrap();
    assert!(found.mode == SslMode::VerifyFull && found.tls.root.is_none());
    for mode in ["disable", "prefer", "require", "verify-ca"] {
        let url = format!("postgres://h?sslmode={mode}&sslrootcert=system");
        assert!(refused(&url, &[]).contains("sslrootcert=system needs sslmode=verify-full"));
    }
}

#[test]
fn versions_files_and_methods_are_as_wanted() {
    let tls = |variables: &[(&'static str, &str)]| settings("postgres://h", variables).unwrap().tls;
    assert_eq!(tls(&[]).versions, (2, 3));
    assert_eq!(tls(&[("PGSSLMINPROTOCOLVERSION", "TLSv1.3")]).versions, (3, 3));
    assert_eq!(tls(&[("PGSSLMINPROTOCOLVERSION", "TLSv1"), ("PGSSLMAXPROTOCOLVERSION", "TLSv1.2")]).versions, (2, 2));
    for wrong in [("PGSSLMAXPROTOCOLVERSION", "TLSv1.1"), ("PGSSLMINPROTOCOLVERSION", "SSLv3"), ("PGSSLSNI", "2")] {
        refused("postgres://h", &[wrong]);
    }
    refused("postgres://h", &[("PGSSLMINPROTOCOLVERSION", "TLSv1.3"), ("PGSSLMAXPROTOCOLVERSION", "TLSv1.2")]);
    assert_eq!(tls(&[("PGSSLCRL", "/c")]).revoked, Some("/c".into()));
    let own = [("PGSSLCERT", "/c"), ("PGSSLKEY", "/k")];
    assert_eq!(tls(&own).own, Some(("/c".into(), "/k".into())));
    assert_eq!(tls(&[own[0], own[1], ("PGSSLCERTMODE", "disable")]).own, None);
    let permits =
        |list: &str, method: &str| settings("postgres://h", &[("PGREQUIREAUTH", list)]).unwrap().methods.permit(method);
    assert!(permits("", "none") && permits("md5,none", "none") && permits("!md5,!password", "none"));
    assert!(!permits("scram-sha-256", "none") && !permits("!none", "none"));
    for wrong in ["md5,!none", "magic"] {
        assert!(refused("postgres://h", &[("PGREQUIREAUTH", wrong)]).contains("require_auth"));
    }
    let binding = |word| settings("postgres://h", &[("PGCHANNELBINDING", word)]).unwrap().binding;
    assert_eq!(
        [binding("require"), binding(""), binding("disable")],
        [Binding::Require, Binding::Prefer, Binding::Disable]
    );
    assert_eq!(settings("postgres://h", &[("PGREQUIREPEER", "p")]).unwrap().peer.as_deref(), Some("p"));
}
