//! The CGI scripts of the pages, under lighttpd with Debian's settings and under Apache, in a network and a file system of
//! their own.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use crate::home::CSALOCK;
use crate::page::blocks;
use harness::{has, has_namespaces};

/// Enters the place of a test: fresh directories where a block and the servers write. `$1` is csalock, `$2` the block.
const PLACE: &str = r#"
set -u
ip link set lo up
for directory in /var/lib /var/log /run /usr/lib/cgi-bin /usr/local/bin; do mount -t tmpfs -o mode=755 tmpfs $directory; done
cp "$1" /usr/local/bin/csalock
mkdir /var/log/lighttpd /var/log/apache2
chown www-data /var/log/lighttpd
sh -eu "$2" || exit

# One request: the status, a space, the body.
get() {
    exec 3<> /dev/tcp/127.0.0.1/80
    printf 'GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n' "$1" >&3
    tr -d '\r' <&3 | awk 'NR == 1 { printf "%s ", $2 } body { print } $0 == "" { body = 1 }'
}

# Eight at once, one a line.
eight() {
    local pids=()
    for number in 1 2 3 4 5 6 7 8; do get "$1" > /run/answer.$number & pids+=($!); done
    wait "${pids[@]}"
    cat /run/answer.*
}
"#;

const LIGHTTPD: &str = r#"
cp -a /etc/lighttpd /run/lighttpd.etc
mount -t tmpfs -o mode=755 tmpfs /etc/lighttpd
cp -a /run/lighttpd.etc/. /etc/lighttpd
lighty-enable-mod cgi > /dev/null
# As the service of Debian starts it; stderr is the journal then.
setsid lighttpd -D -f /etc/lighttpd/lighttpd.conf 2> /run/journal &
logs() { cat /run/journal; }
"#;

/// What Debian's configuration says about CGI; the package with that configuration would start a server.
const APACHE: &str = r#"
modules=/usr/lib/apache2/modules
cat > /run/apache.conf <<CONF
ServerName localhost
Listen 80
PidFile /run/apache.pid
DefaultRuntimeDir /run
User www-data
Group www-data
ErrorLog /var/log/apache2/error.log
LoadModule mpm_MPM_module $modules/mod_mpm_MPM.so
LoadModule authz_core_module $modules/mod_authz_core.so
LoadModule alias_module $modules/mod_alias.so
LoadModule CGI_module $modules/mod_CGI.so
ScriptAlias /cgi-bin/ /usr/lib/cgi-bin/
CONF
# It ends its whole process group with itself.
setsid apache2 -D FOREGROUND -f /run/apache.conf &
logs() { cat /var/log/apache2/error.log; }
"#;

const READY: &str = r#"
for try in $(seq 600); do (exec 3<> /dev/tcp/127.0.0.1/80) 2> /dev/null && break; sleep 0.1; done
"#;

fn servers() -> Vec<(&'static str, String)> {
    let apache = |mpm: &str, cgi: &str| APACHE.replace("MPM", mpm).replace("CGI", cgi);
    let mut servers = Vec::new();
    if has("lighttpd") && has("lighty-enable-mod") {
        servers.push(("lighttpd", LIGHTTPD.to_string()));
    }
    if has("apache2") {
        servers.push(("cgid", apache("event", "cgid")));
        servers.push(("cgi", apache("prefork", "cgi")));
    }
    servers
}

/// Runs a script under each server, after the block that contains these words. Returns what it printed, by server.
fn under_each_server(words: &str, script: &str) -> BTreeMap<&'static str, String> {
    if !has_namespaces("a network of its own") || !has("ip") {
        return BTreeMap::new();
    }
    let blocks = blocks("sh");
    let block = blocks.iter().find(|block| block.text.contains(words)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("block");
    fs::write(&path, &block.text).unwrap();
    let one = |(name, server): (&'static str, String)| {
        let text = format!("{PLACE}{server}{READY}{script}");
        let mut command = Command::new("unshare");
        command.args("--mount --net --pid --fork --kill-child --mount-proc bash -c".split(' ')).args([&text, "bash"]);
        command.arg(CSALOCK).arg(&path).stdin(Stdio::null());
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin").env("HOME", "/nonexistent");
        let done = command.output().unwrap();
        let printed = String::from_utf8(done.stdout).unwrap();
        assert!(done.status.success(), "{name}: {printed}\n{}", String::from_utf8_lossy(&done.stderr));
        (name, printed)
    };
    servers().into_iter().map(one).collect()
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn the_counter_counts_eight_requests_at_once() {
    let script = "eight /cgi-bin/counter; eight /cgi-bin/counter; echo \"file $(cat /var/lib/visitors/count)\"
        ls -A /var/lib/visitors; ls -A /usr/lib/cgi-bin";
    for (server, printed) in under_each_server("/usr/lib/cgi-bin/counter", script) {
        let (pages, files) = printed.split_once("file ").unwrap();
        let mut wanted: Vec<String> = (1..=16).map(|number| format!("200 You are visitor {number}.")).collect();
        wanted.sort_unstable();
        assert_eq!(sorted(pages), wanted, "{server}");
        assert_eq!(files, "16\ncount\ncounter\n", "{server}: no file is left, and none is beside the script");
    }
}

#[test]
fn a_counter_that_may_not_write_says_so_in_the_log_that_the_page_names() {
    let script = "chown root /var/lib/visitors; get /cgi-bin/counter; logs; kill %1; wait";
    let shown = blocks("text").into_iter().find(|block| block.page == "docs/recipes.md").unwrap().text;
    let line = shown.trim_end();
    for (server, printed) in under_each_server("/usr/lib/cgi-bin/counter", script) {
        let (page, log) = printed.split_once('\n').unwrap();
        assert_eq!(page, "503 Please try again.", "{server}");
        let found = log.lines().find(|found| found.ends_with(line));
        let before = found.unwrap_or_else(|| panic!("{server}: {log}")).strip_suffix(line).unwrap();
        match server {
            "cgi" => assert!(before.ends_with("AH01215: stderr from /usr/lib/cgi-bin/counter: "), "{before}"),
            _ => assert_eq!(before, "", "{server}"),
        }
    }
}

#[test]
fn a_full_disk_does_not_lose_the_count() {
    let script = "get /cgi-bin/counter; get /cgi-bin/counter
        mkdir /run/full; mount -t tmpfs -o size=64k tmpfs /run/full; cp -a /var/lib/visitors/. /run/full
        mount --bind /run/full /var/lib/visitors; chown www-data /var/lib/visitors
        cat /dev/zero > /var/lib/visitors/fill 2> /dev/null
        get /cgi-bin/counter; cat /var/lib/visitors/count; rm /var/lib/visitors/fill; get /cgi-bin/counter";
    for (server, printed) in under_each_server("/usr/lib/cgi-bin/counter", script) {
        let wanted =
            "200 You are visitor 1.\n200 You are visitor 2.\n503 Please try again.\n2\n200 You are visitor 3.\n";
        assert_eq!(printed, wanted, "{server}");
    }
}

#[test]
fn of_eight_requests_for_one_address_one_gets_the_account() {
    let script = "eight '/cgi-bin/sign-up?mail=Ann%40example.org'
        get '/cgi-bin/sign-up?mail=ann@example.org'; get '/cgi-bin/sign-up?mail=bob@example.org'
        for bad in '' '?mail=' '?mail=ann' '?mail=../x@y' '?mail=%2Fx@y' '?mail=a@b@c' '?mail=-@'; do
            get \"/cgi-bin/sign-up$bad\"
        done
        ls /var/lib/members | grep -vc claims
        id=$(csalock claim --store dir:/var/lib/members/claims mail:eve@example.org)
        get '/cgi-bin/sign-up?mail=eve@example.org'; get '/cgi-bin/sign-up?mail=eve@example.org'; echo \"$id\"";
    for (server, printed) in under_each_server("/usr/lib/cgi-bin/sign-up", script) {
        let lines: Vec<&str> = printed.lines().collect();
        let codes = |lines: &[&str]| lines.iter().map(|line| line[..3].to_string()).collect::<Vec<_>>();
        let mut first = codes(&lines[..8]);
        first.sort_unstable();
        assert_eq!(first, ["201", "409", "409", "409", "409", "409", "409", "409"], "{server}: {printed}");
        assert_eq!(codes(&lines[8..17]).join(" "), "409 201 400 400 400 400 400 400 400", "{server}: {printed}");
        assert_eq!(lines[17], "2", "{server}: {printed}");
        // A request for this address was killed after its claim.
        assert_eq!(lines[18], format!("201 Welcome. Your number is {}.", lines[20]), "{server}: {printed}");
        assert_eq!(lines[19], "409 This address has an account.", "{server}: {printed}");
    }
}
