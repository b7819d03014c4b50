//! The registry of stores: which URL means which store, and what opens it.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use directory::Directory;
use host::Host;
use lock::error::Result;
use lock::line::{FORMAT, OLDEST_FORMAT};
use store::{Location, ServerKind, Store, Variables};

/// Something of a store, if this program was built with the feature.
macro_rules! built {
    ($feature:literal, $value:expr) => {{
        #[cfg(feature = $feature)]
        let value = Some($value);
        #[cfg(not(feature = $feature))]
        let value = None;
        value
    }};
}

/// Each kind of store on servers. Directories are in every build.
const SERVERS: &[ServerKind] = &[
    #[cfg(not(feature = "sqlite"))]
    ("sqlite", None),
    ("etcd", built!("etcd", etcd::parse as store::ParseServer)),
    ("etcds", built!("etcd", etcd::parse_tls as store::ParseServer)),
    ("postgres", built!("postgres", postgres::parse as store::ParseServer)),
    ("postgresql", built!("postgres", postgres::parse as store::ParseServer)),
    ("ssh", built!("ssh", ssh::parse as store::ParseServer)),
];

/// Reads the URL of a store. Relative paths start at `current`.
pub fn location(url: &OsStr, current: impl AsRef<Path>) -> Result<Location> {
    Location::parse(url, current, SERVERS)
}

/// Schemes of the stores that this program was built with.
pub fn built_in() -> Vec<&'static str> {
    let servers = SERVERS.iter().filter(|(_, parse)| parse.is_some()).map(|(scheme, _)| *scheme);
    ["dir"].into_iter().chain(built!("sqlite", "sqlite")).chain(servers).collect()
}

/// Numbers of the formats, as in `records 3, sqlite 2`.
pub fn formats() -> String {
    let stores: [(&str, Option<u32>); 3] = [
        ("sqlite", built!("sqlite", sqlite::FORMAT)),
        ("postgres", built!("postgres", postgres::FORMAT)),
        ("ssh", built!("ssh", ssh::FORMAT)),
    ];
    let stores = stores.iter().filter_map(|(store, format)| Some(format!(", {store} {}", (*format)?)));
    format!("records {FORMAT} (reads {OLDEST_FORMAT} too)") + &stores.collect::<String>()
}

/// Creates nothing: the first commit does.
/// Fails if the location has something other than a store, or an unsafe one: SQLite on a network file system, or a
/// place that other users may write without the sticky bit.
pub fn open(location: &Location, variables: &Variables<'_>, host: Arc<dyn Host>) -> Result<Box<dyn Store>> {
    Ok(match location {
        Location::Directory { path, layout, shared, .. } => Box::new(Directory::open_as(path, *layout, *shared, host)?),
        #[cfg(feature = "sqlite")]
        Location::Sqlite { path, .. } => Box::new(sqlite::Sqlite::open(path, host)?),
        #[cfg(not(feature = "sqlite"))]
        Location::Sqlite { .. } => unreachable!("its URL is refused"),
        Location::Server(server, _) => server.open(variables, host)?,
    })
}

#[cfg(all(test, not(feature = "sqlite")))]
mod tests_without_sqlite {
    use lock::error::ErrorKind;

    #[test]
    fn a_database_is_refused_and_a_directory_is_not() {
        let refused = super::location("sqlite:/db".as_ref(), "/").unwrap_err();
        let what = "store sqlite:/db: this csalock was built without sqlite";
        assert_eq!((refused.kind(), refused.message()), (ErrorKind::Unavailable, what));
        assert!(super::location("dir:/db".as_ref(), "/").is_ok());
        assert!(!super::built_in().contains(&"sqlite") && !super::formats().contains("sqlite"));
    }
}

#[cfg(all(test, feature = "etcd", feature = "postgres", feature = "sqlite", feature = "ssh"))]
mod tests {
    use lock::error::ErrorKind;

    use super::*;

    fn parse(url: &str) -> Result<Location> {
        location(OsStr::new(url), Path::new("/here"))
    }

    #[test]
    fn clusters_and_their_way_back() {
        for (typed, meant) in [
            ("etcd://h:1/p", "etcd://h:1/p"),
            ("etcd://h", "etcd://h:2379/csalock"),
            ("etcds://a:1,b.c:2,[::1]:3/x/y/", "etcds://a:1,b.c:2,[::1]:3/x/y"),
            ("etcd://[fe80::1%eth0]", "etcd://[fe80::1%eth0]:2379/csalock"),
        ] {
            assert_eq!(parse(typed).map(|location| location.url()), Ok(meant.into()), "{typed}");
            assert_eq!(parse(meant).map(|location| location.url()), Ok(meant.into()), "{meant}");
        }
    }

    #[test]
    fn databases_and_their_way_back() {
        for (typed, meant) in [
            ("postgres://u@h:1/d?schema=s", "postgres://u@h:1/d?schema=s"),
            ("postgresql://h", "postgres://h/"),
            ("postgres://%2Frun%2Fp:5/d", "postgres://%2Frun%2Fp:5/d"),
            ("postgres:///?sslmode=require", "postgres:///?sslmode=require"),
        ] {
            assert_eq!(parse(typed).map(|location| location.url()), Ok(meant.into()), "{typed}");
            assert_eq!(parse(meant).map(|location| location.url()), Ok(meant.into()), "{meant}");
        }
        for url in [
            "postgres:h/d",
            "postgres://u:p@h/d",
            "postgres://h:0/d",
            "postgres://h:x/d",
            "postgres://h/d?color=red",
            "postgres://h/d?port=5",
            "postgres://h/d?passfile=/x",
            "postgres://h/d?schema=A",
            "postgres://h/d?schema=1",
            "postgres://h/d?schema=",
            "postgres://h/%zz",
            "postgres://%0/d",
        ] {
            assert_eq!(parse(url).map_err(|error| error.kind()), Err(ErrorKind::InvalidInput), "{url:?}");
        }
    }

    #[test]
    fn a_refused_url_shows_neither_password_nor_options() {
        for (url, shown) in [
            ("postgres://app:sEcReT@h/app", "store postgres://...@h/app: a password"),
            ("postgres://app:sEc/ReT@h/app", "store postgres://...@h/app: "),
            ("postgres://h/app?password=sEcReT", "store postgres://h/app?...: a password"),
            ("postgresql://h/app?colour=sEcReT", "store postgresql://h/app?...: its options"),
            ("etcd://root:sEcReT@h/p", "store etcd://...@h/p: a password"),
            ("etcd://h/p#sEcReT", "store etcd://h/p?...: its only option is ?lease=DURATION"),
            ("ssh://root:sEcReT@h/p", "store ssh://...@h/p: a password"),
            ("redis://u:sEcReT@h?x", "store redis://...@h?...: it has no options"),
            ("postgres:u:sEcReT@h/d", "store postgres:...@h/d: two slashes"),
            ("etcd:/u:sEcReT@h/d", "store etcd:...@h/d: two slashes"),
            ("u:sEcReT@h:/p", "store u:...@h:/p: no store"),
            ("u:sEcReT@h", "store u:...@h: no store"),
            ("sEcReT@h", "store ...@h: no store"),
            ("postgres//u:sEcReT@h/d", "store ...@h/d: no store"),
            ("//u:sEcReT@h/d", "store ...@h/d: no store"),
            ("postgres://u:sEc?ReT@h/d", "store postgres://...: the server"),
            ("postgres://u:sEc=ReT@h/d", "store postgres://...: a password"),
            ("postgres://u:1/sEcReT@h/d", "store postgres://...@h/d: the server"),
            ("postgres://u%3AsEcReT@h/d", "store postgres://...@h/d: a password"),
            ("postgres://h/d?passw%6Frd=sEcReT", "store postgres://h/d?...: its options"),
            ("ssh://u%3asEcReT@h/p", "store ssh://...@h/p: a password"),
            ("host=h password=sEcReT", "store host?...: no store"),
            ("host=/run password=sEcReT", "store host?...: no store"),
            ("password=sEcReT", "store password?...: no store"),
        ] {
            let error = parse(url).unwrap_err().to_string();
            assert!(error.contains(shown) && !error.contains("sEc"), "{error}");
        }
    }

    #[test]
    fn an_inherited_store_keeps_its_meaning_and_is_recognized() {
        for (chosen, given) in [
            ("dir:/a b", "dir:/./a b"),
            ("dir:/a?shared=1", "dir:/./a?shared=1"),
            ("/a?b", "/./a?b"),
            ("sqlite:/db", "sqlite:/./db"),
            ("dir:///db", "dir:/.///db"),
            ("sqlite:///db", "sqlite:/.///db"),
            ("etcd://h:1/p", "etcd://h:1/./p"),
            ("etcds://a:1,[::1]:3/x/y", "etcds://a:1,[::1]:3/./x/y"),
            ("postgres://u@h:1/d?schema=s", "postgres://u@h:1/./d?schema=s"),
            ("postgres:///", "postgres:///./"),
            ("postgres://h/d?schema=s&lease=3m", "postgres://h/./d?schema=s&lease=3m"),
            ("etcd://h:1/p?lease=3m", "etcd://h:1/./p?lease=3m"),
            ("ssh://h/p?lease=3m", "ssh://h/./p?lease=3m"),
        ] {
            let location = parse(chosen).unwrap();
            let lease = parse(given).map(|location| location.lease());
            assert_eq!(
                lease,
                Ok(chosen.contains("lease=3m").then_some(std::time::Duration::from_secs(180))),
                "{given}"
            );
            assert_eq!((location.inherited_url(), parse(given)), (given.into(), Ok(location)));
            assert!(
                Location::is_inherited(OsStr::new(given)) && !Location::is_inherited(OsStr::new(chosen)),
                "{chosen}"
            );
        }
        for chosen in [
            "",
            "x",
            "./x",
            "dir:./x",
            "etcd://h",
            "etcd",
            "dir:",
            "dir:././x",
            "a/./b",
            "sqlite:a/./b",
            "dir:b:/./c",
            "etcd/./a",
            "etcd.d//a/./b",
        ] {
            assert!(!Location::is_inherited(OsStr::new(chosen)), "{chosen}");
        }
    }

    #[test]
    fn other_arguments_are_a_usage_error() {
        for url in ["", "x", "dir:", "redis:/x", "dir:a\0b"] {
            assert_eq!(parse(url).map_err(|error| error.kind()), Err(ErrorKind::InvalidInput), "{url:?}");
        }
        for url in [
            "etcd:h:1",
            "etcd://",
            "etcd:///p",
            "etcd://h:x",
            "etcd://h:0",
            "etcd://h:1,",
            "etcd://::1",
            "etcd://u:p@h",
        ] {
            assert_eq!(parse(url).map_err(|error| error.kind()), Err(ErrorKind::InvalidInput), "{url:?}");
        }
    }

    #[test]
    fn kinds_of_stores_have_an_order() {
        let place = tempfile::tempdir().unwrap();
        let location = |url: &str| super::location(url.as_ref(), place.path()).unwrap();
        let stores = ["dir:x", "sqlite:a", "etcd://localhost/a"].map(location);
        let sorted = store::in_order(stores.iter().rev().cloned().collect());
        assert_eq!(sorted, stores.map(|store| vec![store]));
    }
}
