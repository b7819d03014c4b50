//! Logins to PostgreSQL as libpq does them: passwords, certificates, several hosts, and settings that restrict them.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Instant;

use host::{Host, Unix};
use lock::error::ErrorKind;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket};
use store::Call;

use crate::etcd::fair::is_within;
use crate::postgres::{self, Server};
use crate::postgres_alone::{BOUNDED, SECOND, assert_refused, denies, is_away, open, open_as, refuses, wait_until};
use crate::rig::{Effects, stored};

#[test]
fn logins_by_password_certificate_authorities_and_sockets() {
    let hba = "local all all scram-sha-256\nhostssl all tls all scram-sha-256\nhost all scram all scram-sha-256\n\
               host all old all md5\nhost all clear all password\n";
    let settings = ["listen_addresses=127.0.0.1,127.0.0.2"];
    let Some(server) = Server::start_with(&settings, hba) else { return };
    for role in ["scram", "clear", "tls", "old"] {
        let kind = if role == "old" { "SET password_encryption = md5; " } else { "" };
        server.sql(&format!("{kind}CREATE ROLE {role} LOGIN SUPERUSER PASSWORD 'sesame'"));
    }
    let url = |user: &str, options: &str| server.url("s").replace("test@", &format!("{user}@")) + options;
    let place = tempfile::tempdir().unwrap();
    let pgpass = place.path().join("pgpass");
    std::fs::write(&pgpass, format!("# passwords\nother:*:*:*:wrong\n127.0.0.1:{}:*:scram:ses\\ame\n", server.port()))
        .unwrap();
    std::fs::set_permissions(&pgpass, PermissionsExt::from_mode(0o600)).unwrap();
    let password: &[(&str, &str)] = &[("PGPASSWORD", "sesame")];
    let file = [("PGPASSFILE", pgpass.to_str().unwrap())];
    for (user, variables) in
        [("scram", password), ("old", password), ("clear", password), ("tls", password), ("scram", &file)]
    {
        assert!(open_as(&url(user, ""), variables).unwrap().swap(b"x", None, None).is_ok(), "{user}");
        denies(&url(user, ""), &[("PGPASSWORD", "open")], &["password authentication failed", "pg_hba.conf"]);
        denies(&url(user, ""), &[], &["asks for a password", "~/.pgpass"]);
    }
    std::fs::set_permissions(&pgpass, PermissionsExt::from_mode(0o644)).unwrap();
    denies(&url("scram", ""), &file, &["pgpass is not read", "mode 0644", "chmod 600"]);
    // A socket of this host, by the URL and by the environment.
    let (directory, port) = (server.path("").display().to_string(), server.port().to_string());
    let encoded = directory.replace('/', "%2F");
    assert!(
        open_as(&format!("postgres://scram@{encoded}:{port}/postgres?schema=s"), password)
            .unwrap()
            .read(Call::default(), b"x")
            .is_ok()
    );
    let variables = [("PGHOST", &directory[..]), ("PGPORT", &port), ("PGUSER", "scram"), ("PGPASSWORD", "sesame")];
    assert!(open_as("postgres:///postgres?schema=s", &variables).unwrap().read(Call::default(), b"x").is_ok());
    // TLS.
    let (ca, unknown) =
        (server.path("ca.pem").display().to_string(), server.path("unknown_authority.pem").display().to_string());
    let other_name = |options: &str| url("tls", options).replace("@127.0.0.1", "@127.0.0.2");
    for mode in ["require", "verify-ca", "verify-full"] {
        let options = format!("&sslmode={mode}");
        let with =
            |root: &'static str, file: &str| vec![("PGPASSWORD", "sesame".to_string()), (root, file.to_string())];
        let read = |url: &str, variables: &[(&'static str, String)]| {
            let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, &value[..])).collect();
            open_as(url, &variables).and_then(|store| store.read(Call::default(), b"x"))
        };
        assert_eq!(read(&url("tls", &options), &with("PGSSLROOTCERT", &ca)), Ok(None), "{mode}");
        let foreign = read(&url("tls", &options), &with("PGSSLROOTCERT", &unknown)).unwrap_err();
        assert_refused(&foreign, ErrorKind::Unavailable, &["UnknownIssuer", "PGSSLROOTCERT"]);
        let named_otherwise = read(&other_name(&options), &with("PGSSLROOTCERT", &ca));
        assert_eq!(named_otherwise.is_ok(), mode != "verify-full", "{mode}");
        assert_eq!(read(&url("tls", &options), &with("PGHOST", "")).is_ok(), mode == "require", "{mode}");
    }
    // A pooler has one code for everything.
    if let Some(bouncer) = postgres::shared_bouncer() {
        let foreign = bouncer.url("s").replace("test@", "stranger@");
        denies(&foreign, &[], &["pg_hba.conf"]);
    }
    denies(&url("tls", "&sslmode=disable"), password, &["no encryption"]);
}

const PASSWORD: (&str, &str) = ("PGPASSWORD", "sesame");

/// A server with TLS, and a role with the password "sesame" for which these lines are in pg_hba.conf.
fn server(hba: &str) -> Option<Server> {
    let server = Server::start_with(&[], hba)?;
    server.sql("CREATE ROLE app LOGIN SUPERUSER PASSWORD 'sesame'");
    Some(server)
}

fn url(server: &Server, options: &str) -> String {
    server.url("s").replace("test@", "app@") + options
}

/// The socket of a server.
fn local(server: &Server) -> String {
    let socket = server.path("").display().to_string().replace('/', "%2F");
    format!("postgres://test@{socket}:{}/postgres?schema=s", server.port())
}

#[track_caller]
fn assert_connects(url: &str, variables: &[(&'static str, &str)]) {
    let done = open_as(url, variables).and_then(|store| store.read(Call::default(), b"x"));
    assert_eq!(done, Ok(None), "{url} {variables:?}");
}

#[test]
fn a_password_is_prepared_as_libpq_does_it() {
    let Some(server) = server("host all app all scram-sha-256\n") else { return };
    for password in ["Ａpfel", "a\u{a0}b", "x\u{ad}y", "\u{1f511}"] {
        server.sql(&format!("ALTER ROLE app PASSWORD '{password}'"));
        assert_connects(&url(&server, ""), &[("PGPASSWORD", password)]);
        denies(&url(&server, ""), &[PASSWORD], &["password authentication failed"]);
    }
}

#[test]
fn a_login_is_bound_to_its_tls_connection_and_is_of_a_kind_that_the_user_accepts() {
    let hba = "hostssl all app all scram-sha-256\nhost all old all md5\nhost all anyone all trust\nhost all clear all password\n";
    let Some(server) = server(hba) else { return };
    server.sql("CREATE ROLE anyone LOGIN; CREATE ROLE clear LOGIN PASSWORD 'sesame'");
    server.sql("SET password_encryption = md5; CREATE ROLE old LOGIN PASSWORD 'sesame'");
    let of = |user: &str| server.url("s").replace("test@", &format!("{user}@"));
    let with = |name: &'static str, value: &'static str| [PASSWORD, (name, value)];
    for binding in ["require", "prefer", "disable"] {
        assert_connects(&of("app"), &with("PGCHANNELBINDING", binding));
    }
    let bound = "SELECT count(*) FROM pg_stat_ssl WHERE ssl";
    // The process of a connection ends a moment after its client has left.
    wait_until("all have left", || server.sql(bound) == "0");
    for user in ["old", "anyone", "clear"] {
        denies(&of(user), &with("PGCHANNELBINDING", "require"), &["channel_binding=require"]);
    }
    // An encrypted connection is needed for it.
    denies(&local(&server), &with("PGCHANNELBINDING", "require"), &["without channel binding"]);
    for (user, method) in [("app", "scram-sha-256"), ("old", "md5"), ("clear", "password"), ("anyone", "none")] {
        assert_connects(&of(user), &with("PGREQUIREAUTH", method));
        let others = if method == "none" { "!none" } else { "gss" };
        denies(&of(user), &with("PGREQUIREAUTH", others), &[method, "which require_auth excludes"]);
    }
}

/// Runs openssl(1) in the directory of a server.
fn openssl(server: &Server, script: &str) {
    let output = Command::new("sh").args(["-ec", script]).current_dir(server.path("")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn tls_is_as_the_user_asks_for_it() {
    let Some(server) = server("hostssl all app all scram-sha-256\nhost all test all trust\n") else { return };
    let ca = server.path("ca.pem").display().to_string();
    let full = url(&server, "&sslmode=verify-full");
    assert_connects(&full, &[PASSWORD, ("PGSSLROOTCERT", &ca)]);
    // The authorities of the system did not sign it, and no weaker mode goes with them.
    let system = [PASSWORD, ("PGSSLROOTCERT", "system")];
    is_away(&url(&server, ""), &system, &["UnknownIssuer"]);
    refuses(&url(&server, "&sslmode=require"), &system, ErrorKind::InvalidInput, &["verify-full"]);
    // A certificate that its authority has revoked.
    openssl(
        &server,
        "printf '[ca]\\ndefault_ca=d\\n[d]\\ndatabase=index\\ncrlnumber=number\\ndefault_md=sha256\\ndefault_crl_days=2\\n' > cnf
         touch index; echo 01 > number
         openssl ca -config cnf -keyfile ca.key -cert ca.pem -gencrl -out none.crl
         openssl ca -config cnf -keyfile ca.key -cert ca.pem -revoke server.pem
         openssl ca -config cnf -keyfile ca.key -cert ca.pem -gencrl -out revoked.crl",
    );
    let lists = ["none.crl", "revoked.crl", "missing.crl"].map(|name| server.path(name).display().to_string());
    let [none, revoked, missing] = [0, 1, 2].map(|at| [PASSWORD, ("PGSSLROOTCERT", &ca), ("PGSSLCRL", &lists[at][..])]);
    assert_connects(&full, &none);
    is_away(&full, &revoked, &["Revoked"]);
    is_away(&full, &missing, &["PGSSLCRL", "missing.crl"]);
    for version in ["TLSv1.2", "TLSv1.3"] {
        server.sql(&format!("ALTER SYSTEM SET ssl_min_protocol_version = '{version}'"));
        server.sql(&format!("ALTER SYSTEM SET ssl_max_protocol_version = '{version}'; "));
        server.sql("SELECT pg_reload_conf()");
        let accepts = || server.sql("SHOW ssl_max_protocol_version") == version;
        crate::postgres_alone::wait_until("it has read that", accepts);
        let only = [PASSWORD, ("PGSSLMINPROTOCOLVERSION", version), ("PGSSLMAXPROTOCOLVERSION", version)];
        assert_connects(&url(&server, "&sslmode=require"), &only);
        let other = if version == "TLSv1.2" { "PGSSLMINPROTOCOLVERSION" } else { "PGSSLMAXPROTOCOLVERSION" };
        let bound = if version == "TLSv1.2" { "TLSv1.3" } else { "TLSv1.2" };
        is_away(&url(&server, "&sslmode=require"), &[PASSWORD, (other, bound)], &["TLS"]);
    }
}

#[test]
fn a_client_certificate_is_shown_and_a_server_of_another_user_is_refused() {
    let Some(server) = server("hostssl all app all cert map=any\n") else { return };
    let file = |name: &str| server.path(name).display().to_string();
    std::fs::write(server.path("data/pg_ident.conf"), "any /^.*$ app\n").unwrap();
    openssl(
        &server,
        "openssl req -new -key client.key -subj /CN=app -out c.csr
                      openssl x509 -req -in c.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile client.ext \
                        -out app.pem",
    );
    server.sql(&format!("ALTER SYSTEM SET ssl_ca_file = '{}'", file("ca.pem")));
    server.kill();
    server.restart();
    let own = [("PGSSLCERT", &file("app.pem")[..]), ("PGSSLKEY", &file("client.key"))]
        .map(|(name, value)| (name, value.to_string()));
    let own: Vec<(&'static str, &str)> = own.iter().map(|(name, value)| (*name, &value[..])).collect();
    assert_connects(&url(&server, "&sslmode=require"), &own);
    let without = [own[0], own[1], ("PGSSLCERTMODE", "disable")];
    denies(&url(&server, "&sslmode=require"), &without, &["certificate"]);
    let runs_as = if nix::unistd::geteuid().is_root() { "nobody" } else { return };
    assert_connects(&local(&server), &[("PGREQUIREPEER", runs_as)]);
    denies(&local(&server), &[("PGREQUIREPEER", "postgres")], &["it runs as nobody", "requirepeer demands postgres"]);
}

#[test]
fn a_server_that_wants_no_tls_is_no_obstacle_to_a_user_who_only_prefers_it() {
    let Some(server) = server("hostnossl all app all scram-sha-256\nhostssl all tls all scram-sha-256\n") else {
        return;
    };
    server.sql("CREATE ROLE tls LOGIN SUPERUSER PASSWORD 'sesame'");
    for (user, mode) in [("app", "prefer"), ("app", "allow"), ("tls", "prefer"), ("tls", "allow")] {
        let url = server.url("s").replace("test@", &format!("{user}@")) + "&sslmode=" + mode;
        assert_connects(&url, &[PASSWORD]);
    }
    denies(&url(&server, "&sslmode=require"), &[PASSWORD], &["pg_hba.conf"]);
    // A certificate of version 1 is refused by name.
    openssl(
        &server,
        "openssl req -new -key server.key -subj /CN=localhost -out old.csr
                      openssl x509 -req -in old.csr -signkey server.key -days 2 -out server.pem",
    );
    server.kill();
    server.restart();
    for mode in ["prefer", "require"] {
        let url = server.url("s").replace("test@", "tls@") + "&sslmode=" + mode;
        is_away(&url, &[PASSWORD], &["refuses certificates of version 1"]);
    }
}

#[test]
fn the_first_host_that_is_a_primary_server_is_used() {
    let Some(primary) = Server::start(&[]) else { return };
    let standby = primary.standby("s1");
    let (own, other) = (primary.port().to_string(), standby.port().to_string());
    let url = |hosts: &str| format!("postgres://test@{hosts}/postgres?schema=s");
    stored(open(&primary.url("s")).swap(b"x", None, Some(b"body")).unwrap());
    let closed = crate::etcd::free_port().to_string();
    for hosts in
        [format!("127.0.0.1:{closed},127.0.0.1:{other},127.0.0.1:{own}"), format!("127.0.0.1:{own},[::1]:{closed}")]
    {
        assert_eq!(open(&url(&hosts)).read(Call::default(), b"x").unwrap().unwrap().body, b"body", "{hosts}");
    }
    let variables = [("PGHOST", "csalock.invalid"), ("PGHOSTADDR", "127.0.0.1"), ("PGPORT", &own), ("PGUSER", "test")];
    assert!(
        open_as("postgres:///postgres?schema=s", &variables).unwrap().read(Call::default(), b"x").unwrap().is_some()
    );
    let others = url(&format!("127.0.0.1:{other},127.0.0.1:{closed}"));
    is_away(&others, &[], &["it is a standby", "name the primary server"]);
}

#[test]
fn a_socket_whose_queue_is_full_is_waited_for_no_longer_than_other_servers() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join(".s.PGSQL.5432");
    let new = || socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).unwrap();
    use std::os::fd::AsRawFd;
    let (listener, address) = (new(), UnixAddr::new(&path).unwrap());
    bind(listener.as_raw_fd(), &address).unwrap();
    listen(&listener, Backlog::new(0).unwrap()).unwrap();
    let queue: Vec<_> = (0..4).map(|_| new()).collect();
    let is_full = queue.iter().any(|one| connect(one.as_raw_fd(), &address) == Err(nix::errno::Errno::EAGAIN));
    assert!(is_full);
    let begun = Instant::now();
    let store = open(&format!("postgres://u@{}/d", place.path().display().to_string().replace('/', "%2F")));
    let call = Call::until(Unix::new().boottime() + SECOND / 2);
    assert_refused(&store.read(call, b"x").unwrap_err(), ErrorKind::Unavailable, &["no answer in time"]);
    assert!(is_within(begun, BOUNDED), "{:?}", begun.elapsed());
}
