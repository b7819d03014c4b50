//! PostgreSQL under roles that may not use the store, and with a standby that a commit has not reached.

use std::time::{Duration, Instant};

use host::{Host, Unix};
use lock::error::ErrorKind;
use store::{Call, LinesOfHistory, Version, WriteSet};

use crate::postgres::{self, Server};
use crate::postgres_alone::{SECOND, open, wait_until};
use crate::rig::{Effects, stored};

/// Functions and operators that fit calls in csalock's SQL exactly, where those of PostgreSQL need a conversion or take any
/// type. Each notes who called it, and answers as the right one does.
const HIJACK: &str = r#"
CREATE TABLE public.loot(who text, what text);
GRANT INSERT ON public.loot TO PUBLIC;
CREATE FUNCTION public.note(what text) RETURNS void LANGUAGE sql AS 'INSERT INTO public.loot VALUES (current_user, what)';
CREATE FUNCTION public.cardinality(a bytea[]) RETURNS int LANGUAGE plpgsql AS
 $$ BEGIN PERFORM public.note('cardinality'); RETURN 0; END $$;
CREATE FUNCTION public.unnest(a bytea[]) RETURNS SETOF bytea LANGUAGE plpgsql AS
 $$ BEGIN PERFORM public.note('unnest bytea'); RETURN QUERY SELECT pg_catalog.unnest(a); END $$;
CREATE FUNCTION public.unnest(a text[]) RETURNS SETOF text LANGUAGE plpgsql AS
 $$ BEGIN PERFORM public.note('unnest text'); RETURN QUERY SELECT pg_catalog.unnest(a); END $$;
CREATE FUNCTION public.generate_subscripts(a bytea[], b int) RETURNS SETOF int LANGUAGE plpgsql AS
 $$ BEGIN PERFORM public.note('generate_subscripts'); RETURN QUERY SELECT pg_catalog.generate_subscripts(a, b); END $$;
CREATE FUNCTION public.array_add(a int[], b int) RETURNS int[] LANGUAGE plpgsql AS
 $$ BEGIN PERFORM public.note('array_agg'); RETURN a OPERATOR(pg_catalog.||) b; END $$;
CREATE AGGREGATE public.array_agg(int) (SFUNC = public.array_add, STYPE = int[]);
CREATE FUNCTION public.add_int(a bigint, b int) RETURNS bigint LANGUAGE plpgsql AS
 $$ BEGIN PERFORM public.note('sum'); RETURN coalesce(a, 0) OPERATOR(pg_catalog.+) coalesce(b, 0); END $$;
CREATE AGGREGATE public.sum(int) (SFUNC = public.add_int, STYPE = bigint);
CREATE FUNCTION public.glue(a bigint, b text) RETURNS text LANGUAGE plpgsql AS
 $$ BEGIN PERFORM public.note('||'); RETURN a::text OPERATOR(pg_catalog.||) b; END $$;
CREATE OPERATOR public.|| (LEFTARG = bigint, RIGHTARG = text, FUNCTION = public.glue);
CREATE FUNCTION public.divide(a bigint, b numeric) RETURNS numeric LANGUAGE plpgsql AS
 $$ BEGIN PERFORM public.note('/'); RETURN a::numeric OPERATOR(pg_catalog./) b; END $$;
CREATE OPERATOR public./ (LEFTARG = bigint, RIGHTARG = numeric, FUNCTION = public.divide);
CREATE FUNCTION public.multiply(a int, b numeric) RETURNS numeric LANGUAGE plpgsql AS
 $$ BEGIN PERFORM public.note('* numeric'); RETURN a::numeric OPERATOR(pg_catalog.*) b; END $$;
CREATE OPERATOR public.* (LEFTARG = int, RIGHTARG = numeric, FUNCTION = public.multiply);
CREATE FUNCTION public.span(a bigint, b interval) RETURNS interval LANGUAGE plpgsql AS
 $$ BEGIN PERFORM public.note('* interval'); RETURN a::float8 OPERATOR(pg_catalog.*) b; END $$;
CREATE OPERATOR public.* (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = public.span);
CREATE FUNCTION public.jsonb_array_elements(a jsonb) RETURNS SETOF jsonb LANGUAGE plpgsql AS
 $$ BEGIN PERFORM public.note('jsonb_array_elements'); RETURN QUERY SELECT pg_catalog.jsonb_array_elements(a); END $$;
CREATE FUNCTION public.to_timestamp(a numeric) RETURNS timestamptz LANGUAGE plpgsql AS
 $$ BEGIN PERFORM public.note('to_timestamp'); RETURN pg_catalog.to_timestamp(a::float8); END $$;
CREATE FUNCTION public.generate_series(a int, b bigint) RETURNS SETOF int LANGUAGE plpgsql AS
 $$ BEGIN PERFORM public.note('generate_series'); END $$;
CREATE FUNCTION public.octet_length(a text) RETURNS int LANGUAGE plpgsql AS
 $$ BEGIN PERFORM public.note('octet_length'); RETURN 0; END $$;
"#;

#[test]
fn no_function_or_operator_of_another_role_runs() {
    let Some(server) = Server::start(&[]) else { return };
    server.sql("CREATE ROLE mallory LOGIN; GRANT CREATE ON SCHEMA public TO PUBLIC");
    server.sql(&format!("SET ROLE mallory; {HIJACK}"));
    let url = server.url("csalock");
    // One user creates the schema, and another one uses it. Both have the usual search_path.
    let store = open(&url);
    let lease = store.leases().grant(Call::default(), 60 * SECOND).unwrap();
    let version = stored(store.swap(b"x", None, Some(br#"{"name":"x","holders":[{"since":1}]}"#)).unwrap());
    let history = || WriteSet { history: LinesOfHistory::new(|| vec!["line\n".into()]), ..WriteSet::default() };
    stored(store.commit_and_finish(&history()).unwrap());
    let other = open(&url);
    assert!(other.leases().ttl(Call::default(), &lease).unwrap() > Duration::ZERO);
    other.leases().time(Call::default()).unwrap();
    let next = stored(other.swap(b"x", Some(&version), Some(b"{}")).unwrap());
    assert!(!other.swap(b"x", Some(&version), None).unwrap().is_done());
    other.wake(b"waiter", &lease);
    other.end_lease(&lease);
    other.scan(Call::default(), &mut |_, _| Ok(())).unwrap();
    assert!(other.read_history(Call::default(), &mut |_| {}).unwrap());
    assert!(!other.diagnose(Call::default()).is_empty());
    for view in ["entries", "holders", "waiters"] {
        server.sql(&format!("SELECT * FROM csalock.{view}"));
    }
    stored(other.swap(b"x", Some(&next), None).unwrap());
    assert_eq!(server.sql("SELECT * FROM public.loot"), "");
    // No function depends on the settings of its caller, and no view on the settings of its creator.
    let unsafe_functions = "SELECT proname FROM pg_proc WHERE pronamespace = 'csalock'::regnamespace AND \
                            (proconfig IS NULL OR NOT proconfig @> '{\"search_path=pg_catalog, pg_temp\"}')";
    assert_eq!(server.sql(unsafe_functions), "");
    server.sql("SET ROLE mallory; SELECT cardinality(ARRAY['x'::bytea])");
    assert_eq!(server.sql("SELECT * FROM public.loot"), "mallory|cardinality", "the trap works");
}

#[test]
fn a_schema_of_the_earlier_format_is_refused_and_one_that_is_made_anew_has_greater_tokens() {
    let Some(server) = postgres::shared() else { return };
    let url = server.url("earlier");
    let first = stored(open(&url).swap(b"x", None, Some(b"body")).unwrap());
    server.sql("UPDATE earlier.format SET number = 1; DROP FUNCTION earlier.origin() CASCADE");
    for refused in
        [open(&url).read(Call::default(), b"x").map(drop), open(&url).swap(b"x", None, Some(b"body")).map(drop)]
    {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(error.message(), format!("PostgreSQL at {url}: schema earlier has format 1, this csalock knows 2"));
        assert!(error.hint().contains("DROP SCHEMA"), "{error}");
    }
    server.sql("DROP SCHEMA earlier CASCADE");
    let second = stored(open(&url).swap(b"x", None, Some(b"body")).unwrap());
    assert!(second.number > first.number + 1000, "{first:?} {second:?}");
}

/// A primary server and a standby that stands still, as a commit waits for it.
struct Waiting {
    primary: Server,
    standby: Server,
}

impl Waiting {
    /// Begins a commit that waits, cuts its wait short, and returns the result of the commit and of a read after it.
    fn cut_short(&self, name: &'static [u8], cut: impl Fn(&Server)) -> (bool, bool) {
        let store = open(&self.primary.url("csalock"));
        self.standby.stop(true);
        let results = std::thread::scope(|scope| {
            let commit = scope.spawn(|| {
                let done = store.swap(name, None, Some(b"body"));
                let call = Call::until(Unix::new().boottime() + SECOND);
                (done.is_ok_and(|done| done.is_done()), store.read(call, name).is_ok())
            });
            let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
            wait_until("it waits for the standby", || self.primary.sql(waits) != "0");
            cut(&self.primary);
            let shown =
                format!("SELECT count(*) FROM csalock.records WHERE name = '{}'", String::from_utf8_lossy(name));
            wait_until("the server shows the commit", || self.primary.sql(&shown) == "1");
            commit.join().unwrap()
        });
        self.standby.stop(false);
        wait_until("the standby has it", || store.read(Call::default(), name).is_ok_and(|found| found.is_some()));
        results
    }
}

#[test]
fn a_commit_that_the_standby_lacks_is_not_taken_for_done() {
    let Some(primary) = Server::start(&["synchronous_standby_names=s1"]) else { return };
    let standby = primary.standby("s1");
    stored(open(&primary.url("csalock")).swap(b"first", None, Some(b"body")).unwrap());
    let pair = Waiting { primary, standby };
    let on_waiting = |what: &str| {
        let sql = format!("SELECT {what}(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
        move |server: &Server| drop(server.sql(&sql))
    };
    assert_eq!(pair.cut_short(b"terminated", on_waiting("pg_terminate_backend")), (false, false));
    assert_eq!(pair.cut_short(b"cancelled", on_waiting("pg_cancel_backend")), (false, false));
    let restart = |server: &Server| {
        server.kill();
        server.restart();
    };
    assert_eq!(pair.cut_short(b"restarted", restart), (false, false));
}

#[test]
fn the_commit_of_a_process_that_died_is_settled_before_an_answer() {
    let Some(primary) = Server::start(&["synchronous_standby_names=s1"]) else { return };
    let standby = primary.standby("s1");
    let committer = open(&primary.url("csalock"));
    stored(committer.swap(b"first", None, Some(b"body")).unwrap());
    standby.stop(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let call = Call::until(Unix::new().boottime() + SECOND / 2);
            committer.commit(call, &WriteSet::of(b"x", None, Some(b"body"))).is_ok()
        });
        let waits = "pg_stat_activity WHERE wait_event = 'SyncRep'";
        wait_until("it waits for the standby", || primary.sql(&format!("SELECT count(*) FROM {waits}")) != "0");
        primary.sql(&format!("SELECT pg_terminate_backend(pid) FROM {waits}"));
    });
    let store = open(&primary.url("csalock"));
    let soon = || Call::until(Unix::new().boottime() + SECOND);
    let settle = || store.settle(soon());
    assert_eq!(settle(), Ok(()), "it has read nothing");
    for by_scan in [false, true] {
        let store = open(&primary.url("csalock"));
        match by_scan {
            true => store.scan(Call::default(), &mut |_, _| Ok(())).unwrap(),
            false => assert!(store.read(Call::default(), b"x").unwrap().is_some(), "it shows what the standby lacks"),
        }
        assert_eq!(store.settle(soon()).unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert!(store.read(Call::default(), b"x").unwrap().is_some());
    standby.stop(false);
    wait_until("the standby has it", || settle().is_ok());
    // What was read from the primary is not there for certain after another server has taken over.
    assert!(store.read(Call::default(), b"x").unwrap().is_some());
    primary.fail_over(&standby);
    let again = primary.standby("s1");
    let error = store.settle(Call::default()).unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.message().contains("has taken over"), "{error}");
    assert!(store.read(Call::default(), b"x").unwrap().is_some());
    assert_eq!(store.settle(Call::default()), Ok(()));
    drop(again);
}

#[test]
fn no_call_leaves_a_server_process_behind_when_a_table_is_locked() {
    let Some(server) = Server::start(&[]) else { return };
    let store = open(&server.url("csalock"));
    let version: Version = stored(store.swap(b"x", None, Some(b"body")).unwrap());
    let blocker = server.lock_table("csalock.records", "ACCESS EXCLUSIVE");
    let begun = Instant::now();
    for _ in 0..6 {
        let call = Call::until(Unix::new().boottime() + SECOND / 5);
        let error = store.read(call, b"x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(store.commit(call, &WriteSet::of(b"x", Some(&version), Some(b"next"))).is_err());
        assert!(store.scan(call, &mut |_, _| Ok(())).is_err());
    }
    assert!(begun.elapsed() < 60 * SECOND, "{:?}", begun.elapsed());
    let of_csalock = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'csalock' AND state <> 'idle'";
    wait_until("they have left", || server.sql(of_csalock) == "0");
    Server::end(blocker);
    assert_eq!(store.read(Call::default(), b"x").unwrap().unwrap().body, b"body");
}

#[test]
fn a_wake_up_that_fails_does_not_fail_the_commit() {
    let Some(server) = Server::start(&[]) else { return };
    server.sql("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app");
    // As when its queue is full, because a session that listens does not read.
    server.sql("REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC");
    let store = open(&server.url("csalock").replace("test@", "app@"));
    let lease = store.leases().grant(Call::default(), 60 * SECOND).unwrap();
    let wake = || vec![(b"waiter".to_vec(), Some(&lease))];
    let set = WriteSet { wake: wake(), ..WriteSet::of(b"x", None, Some(b"body")) };
    stored(store.commit_and_finish(&set).unwrap());
    assert!(store.read(Call::default(), b"x").unwrap().is_some());
}

#[test]
fn a_roles_own_limits_of_time_do_no_harm() {
    let Some(server) = Server::start(&[]) else { return };
    let url = server.url("csalock");
    stored(open(&url).swap(b"x", None, Some(b"body")).unwrap());
    server.sql("ALTER ROLE test SET client_min_messages = 'error'");
    server.sql("ALTER ROLE test SET statement_timeout = '1ms'; ALTER ROLE test SET lock_timeout = '1ms'");
    let version = open(&url).read(Call::default(), b"x").unwrap().unwrap().version;
    stored(open(&url).swap(b"x", Some(&version), Some(b"next")).unwrap());
    assert!(!open(&url).diagnose(Call::default()).is_empty());
}
