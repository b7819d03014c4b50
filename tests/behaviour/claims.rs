//! Names that are claimed permanently: all of them or none, by one id.

use crate::etcd::fair::is_within;
use crate::sandbox::{Job, Kind, Sandbox, has, steps, wait_until};

fn lookup(sandbox: &Sandbox, name: &str) -> Option<String> {
    let done = sandbox.csalock(["lookup", "-q", name]).capture();
    assert!(matches!(done.code, Some(0 | 81)) && done.stderr.is_empty(), "{done:?}");
    (done.code == Some(0)).then(|| done.stdout.trim_end().to_string())
}

fn ids(sandbox: &Sandbox, names: &[&str]) -> Vec<Option<String>> {
    names.iter().map(|name| lookup(sandbox, name)).collect()
}

/// Kills the command at each of its steps in turn; before, the names are claimed under that id.
fn killed_at_any_step(sandbox: &Sandbox, command: &str, before: Option<&str>) {
    require!(has("strace"));
    let calls = match sandbox.kind() {
        Kind::Directory | Kind::Shared => &["renameat", "fsync", "unlinkat"][..],
        Kind::Sqlite => &["unlink", "fdatasync", "fsync"],
        // The request that was sent before has been answered.
        Kind::Etcd | Kind::Postgres | Kind::Ssh => &["sendto", "write"],
    };
    let (mut all, mut none) = (0, 0);
    for call in calls {
        for step in steps() {
            if let Some(id) = before {
                sandbox.csalock(["claim", "--id", id, "a", "b", "c"]).stdout(format!("{id}\n")).run();
            }
            let inject = format!("inject={call}:signal=KILL:when={step}");
            let words = ["-qq", "-o", "trace", "-e", &inject, "csalock", command, "--id", "me", "a", "b", "c"];
            let done = sandbox.call("strace", words).capture();
            let has = ids(sandbox, &["a", "b", "c"]);
            assert!(has.iter().all(|id| *id == has[0]), "{command} killed at {call} {step}: {has:?}");
            *(if has[0].is_some() { &mut all } else { &mut none }) += 1;
            // The next caller is not blocked, and sees the same. A busy server needs some of this time.
            let next = sandbox.csalock(["claim", "-q", "-w", "5", "--id", "next", "c", "b", "a"]).capture();
            assert_eq!(
                next.code,
                Some(if has[0].is_some() { 83 } else { 0 }),
                "{command} killed at {call} {step}: {next:?}"
            );
            let id = if has[0].is_some() { "me" } else { "next" };
            sandbox.csalock(["unclaim", "--id", id, "a", "b", "c"]).run();
            if done.code == Some(0) {
                break;
            }
        }
    }
    assert!(all >= 2 && none >= 2, "{all} {none}");
    assert!(sandbox.is_tidy());
}

on_every_store! {
    fn a_claim_lasts_until_its_id_gives_it_up(sandbox: &Sandbox) {
        sandbox.csalock(["claim", "--id", "17", "mail:a@b.c", "user:a"]).stdout("17\n").run();
        sandbox.csalock(["gc"]).run();
        sandbox.csalock(["lookup", "user:a"]).stdout("17\n").run();
        sandbox.csalock(["lookup", "--id", "17"]).stdout("mail:a@b.c\nuser:a\n").run();
        assert_eq!(sandbox.state("user:a"), "held");
        sandbox.csalock(["unclaim", "--id", "17", "user:a"]).run();
        sandbox.csalock(["lookup", "user:a"]).status(81).stderr("csalock: user:a in store STORE is not claimed\n").run();
        sandbox.csalock(["lookup", "--id", "17"]).stdout("mail:a@b.c\n").run();
        sandbox.csalock(["unclaim", "--id", "17", "mail:a@b.c"]).run();
        sandbox.csalock(["lookup", "--id", "17"]).status(81).stderr("csalock: nothing is claimed under id 17\n").run();
        assert!(sandbox.is_tidy());
    }

    fn the_id_is_fresh_unless_given(sandbox: &Sandbox) {
        let claim = |name: &str| sandbox.csalock(["claim", name]).capture().stdout;
        let (a, b) = (claim("a"), claim("b"));
        assert_ne!(a, b);
        for id in [&a, &b] {
            let parts: Vec<usize> = id.trim_end().split('-').map(str::len).collect();
            assert!(parts == [8, 4, 4, 4, 12] && &id[14..15] == "4", "{id}");
        }
        assert_eq!(ids(sandbox, &["a", "b"]), [Some(a.trim_end().into()), Some(b.trim_end().into())]);
    }

    fn taken_names_are_listed_and_no_name_is_claimed(sandbox: &Sandbox) {
        sandbox.csalock(["claim", "--id", "1", "a"]).stdout("1\n").run();
        sandbox.csalock(["claim", "--id", "2", "c"]).stdout("2\n").run();
        let said = "csalock: a in store STORE is claimed under id 1; nothing was claimed\ncsalock: c in store STORE is claimed under id 2; nothing was claimed\n";
        sandbox.csalock(["claim", "--id", "3", "a", "b", "c", "d"]).status(83).stderr(said).run();
        sandbox.csalock(["claim", "-q", "c", "b"]).status(83).run();
        assert_eq!(ids(sandbox, &["a", "b", "c", "d"]), [Some("1".into()), None, Some("2".into()), None]);
    }

    fn the_same_id_may_claim_again_and_more(sandbox: &Sandbox) {
        sandbox.csalock(["claim", "--id", "1", "a", "b"]).stdout("1\n").run();
        sandbox.csalock(["claim", "--id", "1", "b", "a"]).stdout("1\n").run();
        sandbox.csalock(["claim", "--id", "1", "a"]).stdout("1\n").run();
        sandbox.csalock(["claim", "--id", "2", "c"]).stdout("2\n").run();
        // Its earlier claims stay when it does not get the new ones.
        sandbox.csalock(["claim", "-q", "--id", "1", "a", "c", "d"]).status(83).run();
        assert_eq!(ids(sandbox, &["a", "b", "c", "d"]), [Some("1".into()), Some("1".into()), Some("2".into()), None]);
        sandbox.csalock(["claim", "--id", "1", "a", "d"]).stdout("1\n").run();
        assert_eq!(lookup(sandbox, "d").as_deref(), Some("1"));
    }

    fn a_claim_and_a_lock_exclude_each_other(sandbox: &Sandbox) {
        sandbox.csalock(["claim", "--id", "1", "a"]).stdout("1\n").run();
        for words in [&["lock", "-n", "a"][..], &["run", "-n", "a", "true"], &["put", "-n", "a", "x"], &["lock", "-sn", "a"]] {
            let done = sandbox.csalock(words).capture();
            assert_eq!(done.code, Some(75), "{words:?}");
            assert!(done.stderr.contains("claimed permanently under id 1, by "), "{}", done.stderr);
            assert!(done.stderr.ends_with("; to give it up, use `csalock unclaim --id 1 a`\n"), "{}", done.stderr);
        }
        let mut waiter = sandbox.waiter("a", "echo has it");
        sandbox.csalock(["unclaim", "--id", "1", "a"]).run();
        waiter.lines(1);
        waiter.wait().exits(0);
        let mut holder = sandbox.holder("a");
        sandbox.csalock(["claim", "-q", "-n", "a", "b"]).status(75).run();
        sandbox.csalock(["lookup", "-q", "a"]).status(81).run();
        let claimant = sandbox.csalock(["claim", "--id", "2", "-w", "inf", "b", "a"]).spawn();
        wait_until("it waits", || sandbox.waiters("a").len() == 1);
        holder.release();
        assert_eq!(claimant.wait().stdout, "2\n");
        assert_eq!(ids(sandbox, &["a", "b"]), [Some("2".into()), Some("2".into())]);
    }

    fn a_wait_to_claim_ends_when_the_name_is_claimed(sandbox: &Sandbox) {
        let crowd = sandbox.many(40).max(20);
        let mut holder = sandbox.holder("a");
        let jobs: Vec<Job> = (0..crowd).map(|id| {
            sandbox.csalock(["claim", "-w", "60s", "--id", &format!("id{id}"), "a"]).spawn()
        }).collect();
        wait_until("all wait", || sandbox.waiters("a").len() == crowd);
        let begun = std::time::Instant::now();
        holder.release();
        let codes: Vec<Option<i32>> = jobs.into_iter().map(|job| job.wait().code).collect();
        assert_eq!(codes.iter().filter(|code| **code == Some(0)).count(), 1, "{codes:?}");
        assert_eq!(codes.iter().filter(|code| **code == Some(83)).count(), crowd - 1, "{codes:?}");
        assert!(is_within(begun, std::time::Duration::from_secs(40)), "the wait ends before the timeout");
        assert!(sandbox.waiters("a").is_empty(), "{}", sandbox.sight("a"));
    }

    fn many_callers_may_claim_a_name_under_one_id_at_once(sandbox: &Sandbox) {
        let mut holder = sandbox.holder("a");
        let jobs: Vec<Job> = (0..20).map(|_| sandbox.csalock(["claim", "-w", "60s", "--id", "1", "b", "a"]).spawn()).collect();
        wait_until("all wait", || sandbox.waiters("a").len() == 20);
        holder.release();
        for job in jobs {
            job.wait().prints(0, "1\n");
        }
        for name in ["a", "b"] {
            assert_eq!((sandbox.waiters(name), sandbox.holders(name).len()), (vec![], 1));
        }
        sandbox.csalock(["unclaim", "--id", "1", "a", "b"]).run();
        assert!(sandbox.is_tidy());
    }

    fn only_the_id_gives_up_a_claim(sandbox: &Sandbox) {
        sandbox.csalock(["claim", "--id", "1", "a", "b"]).stdout("1\n").run();
        let done = sandbox.csalock(["unclaim", "--id", "2", "a", "c"]).capture();
        assert_eq!(done.code, Some(82), "{done:?}");
        let said = sandbox.plain(&done.stderr);
        assert!(said.starts_with("csalock: a in store STORE is not claimed under id 2: claimed permanently under id 1, by "), "{said}");
        assert!(said.ends_with("csalock: c in store STORE is not claimed; nothing was given up\n"), "{said}");
        sandbox.csalock(["unclaim", "-q", "--id", "1", "a", "c"]).status(81).run();
        assert_eq!(ids(sandbox, &["a", "b"]), [Some("1".into()), Some("1".into())]);
        let done = sandbox.csalock(["unlock", "a"]).capture();
        assert!(done.code == Some(82) && done.stderr.ends_with("use `csalock unclaim --id 1 a`\n"), "{done:?}");
        let all = sandbox.script("dash", "csalock claim --id 3 d; csalock unlock --all; csalock lookup d");
        all.stdout("3\n3\n").run();
        sandbox.csalock(["unclaim", "-q", "--id", "2", "c"]).status(81).run();
        let done = sandbox.csalock(["unlock", "--force", "a"]).capture();
        assert!(done.code == Some(0) && done.stdout.contains("claimed under id 1"), "{done:?}");
        assert_eq!(ids(sandbox, &["a", "b"]), [None, Some("1".into())]);
        let _lock = sandbox.holder("e");
        sandbox.csalock(["unclaim", "-q", "--id", "1", "e"]).status(82).run();
    }

    fn all_claims_of_an_id_are_given_up_at_once(sandbox: &Sandbox) {
        sandbox.csalock(["claim", "--id", "1", "a", "b\\c", "d\ne"]).stdout("1\n").run();
        sandbox.csalock(["claim", "--id", "2", "f"]).stdout("2\n").run();
        sandbox.csalock(["unclaim", "--id", "1", "--all"]).run();
        sandbox.csalock(["lookup", "-q", "--id", "1"]).status(81).run();
        assert_eq!(lookup(sandbox, "f").as_deref(), Some("2"));
        sandbox.csalock(["unclaim", "--id", "1", "--all"]).status(81).stderr("csalock: nothing is claimed under id 1\n").run();
        sandbox.csalock(["unclaim", "--id", "1", "--all", "a"]).capture().exits(64);
    }

    fn the_history_has_claims(sandbox: &Sandbox) {
        sandbox.csalock(["claim", "--id", "1", "a"]).stdout("1\n").run();
        sandbox.csalock(["unclaim", "--id", "1", "a"]).run();
        sandbox.csalock(["claim", "--id", "1", "a"]).stdout("1\n").run();
        sandbox.csalock(["unlock", "--force", "a"]).capture();
        let said = sandbox.csalock(["history", "--json", "a"]).capture().stdout;
        let past: Vec<serde_json::Value> = serde_json::from_str(&said).unwrap();
        let ends: Vec<&str> = past.iter().map(|one| one["ended"].as_str().unwrap()).collect();
        assert_eq!(ends, ["released", "broken"]);
        assert!(!past[1]["broken_by"].is_null());
        assert!(sandbox.is_tidy());
    }

    fn ids_and_names_may_be_odd(sandbox: &Sandbox) {
        let longest = "i".repeat(255);
        for id in ["a b", "--id", "%", "\u{e4}\u{f6}", "/", longest.as_str()] {
            sandbox.csalock(["claim", &format!("--id={id}"), "x", "two words", "p%q"]).stdout(format!("{id}\n")).run();
            sandbox.csalock(["lookup", "x"]).stdout(format!("{id}\n")).run();
            sandbox.csalock(["lookup", &format!("--id={id}")]).stdout("p%q\ntwo words\nx\n").run();
            sandbox.csalock(["unclaim", &format!("--id={id}"), "x", "two words", "p%q"]).run();
        }
        let too_long = "i".repeat(256);
        for words in [&["claim", "--id", "", "x"][..], &["claim", "--id", "a\nb", "x"], &["claim", "--id", &too_long, "x"], &["claim"],
                      &["claim", "--id", "1"], &["claim", "x", "--id"], &["claim", "x", ""], &["unclaim", "x"],
                      &["lookup"], &["lookup", "x", "y"], &["lookup", "--id", "1", "x"], &["lookup", "--id", "\x1b", ]] {
            sandbox.csalock(words).capture().prints(64, "");
        }
        sandbox.script("dash", "csalock claim x >&-").status(74)
            .stderr("csalock: stdout is closed, so the id would be lost; send it to /dev/null if you do not need it\n").run();
        if std::path::Path::new("/dev/full").exists() {
            sandbox.script("dash", "csalock claim x > /dev/full").capture().exits(74);
        }
        assert!(sandbox.is_tidy());
    }

    fn the_json_has_names_and_id(sandbox: &Sandbox) {
        let json = |words: &[&str]| -> serde_json::Value {
            serde_json::from_str(&sandbox.csalock(words).capture().stdout).unwrap()
        };
        let claimed = json(&["claim", "--json", "--id", "1", "b", "a"]);
        assert_eq!((&claimed["names"], &claimed["id"]), (&serde_json::json!(["a", "b"]), &"1".into()));
        assert!(claimed["tokens"].as_array().unwrap().iter().all(serde_json::Value::is_u64));
        assert_eq!(json(&["lookup", "--json", "a"]), serde_json::json!({"name": "a", "id": "1"}));
        assert_eq!(json(&["lookup", "--json", "--id", "1"]), serde_json::json!({"id": "1", "names": ["a", "b"]}));
        let sight = sandbox.sight("a");
        assert_eq!((&sight["holders"][0]["claim"], &sight["holders"][0]["expires"]), (&"1".into(), &serde_json::Value::Null));
        let table = sandbox.csalock(["status", "a", "b"]).capture().stdout;
        assert!(table.contains("\na     claimed  0        -  ") && table.contains("  forever  id 1: "), "{table}");
        sandbox.csalock(["claim", "--json", "-q", "--id", "2", "a", "c"]).status(83)
            .stdout("{\"taken\":[{\"name\":\"a\",\"id\":\"1\"}],\"lock\":\"a\",\"reason\":\"not unique\",\"message\":\"a in store STORE is claimed under id 1\",\
                     \"holders\":[],\"hint\":\"nothing was claimed\",\"exit_code\":83}\n").run();
        let given_up = json(&["unclaim", "--json", "--id", "1", "a", "b"]);
        let outcomes: Vec<&str> = given_up.as_array().unwrap().iter().map(|one| one["outcome"].as_str().unwrap()).collect();
        assert_eq!(outcomes, ["released", "released"]);
    }

    fn a_claim_outlives_the_boot(sandbox: &Sandbox) {
        sandbox.csalock(["claim", "--id", "1", "a"]).stdout("1\n").run();
        sandbox.edit("a", |record| {
            for grant in &mut record.holders {
                grant.owner_mut().domain.boot = "another boot".to_string();
            }
        });
        sandbox.csalock(["gc"]).run();
        assert_eq!(lookup(sandbox, "a").as_deref(), Some("1"));
        sandbox.csalock(["run", "-q", "-n", "a", "true"]).status(75).run();
    }

    fn a_claim_killed_at_any_step_has_all_or_none(sandbox: &Sandbox) {
        killed_at_any_step(sandbox, "claim", None);
    }

    fn an_unclaim_killed_at_any_step_has_given_up_all_or_none(sandbox: &Sandbox) {
        killed_at_any_step(sandbox, "unclaim", Some("me"));
    }

    fn two_callers_that_claim_the_same_pair_never_share_it(sandbox: &Sandbox) {
        let pairs = sandbox.many(60);
        let script = format!(
            "i=0; while [ $i -lt {pairs} ]; do i=$((i + 1)); csalock claim -q --id $$.$i mail$i user$i > /dev/null; \
             echo $i $? $$.$i; done"
        );
        let other = script.replace("mail$i user$i", "user$i mail$i");
        let script = |at: i32| if at % 2 == 0 { &script } else { &other };
        let jobs: Vec<Job> = (0..6).map(|at| sandbox.script("dash", script(at)).spawn()).collect();
        let said: String = jobs.into_iter().map(|job| job.wait().stdout).collect();
        for pair in 1..=pairs {
            let results: Vec<(&str, &str)> = said.lines().filter_map(|line| {
                let words: Vec<&str> = line.split(' ').collect();
                (words[0] == pair.to_string()).then(|| (words[1], words[2]))
            }).collect();
            let winners: Vec<&str> = results.iter().filter(|(code, _)| *code == "0").map(|(_, id)| *id).collect();
            assert_eq!(winners.len(), 1, "{pair} {results:?}");
            assert!(results.iter().all(|(code, _)| ["0", "83"].contains(code)), "{pair} {results:?}");
            let has = ids(sandbox, &[&format!("mail{pair}"), &format!("user{pair}")]);
            assert_eq!(has, [Some(winners[0].to_string()), Some(winners[0].to_string())]);
        }
    }
}

on_every_store_of_files! {
    fn acknowledged_writes_are_on_the_disk(sandbox: &Sandbox) {
        require!(has("strace"));
        for words in ["claim --id 1 a", "claim --id 2 b c", "put -v d value", "del -v d", "put -v e < /bin/true", "unclaim -v --id 1 a"] {
            let traced = "strace -f -y -qq -o trace -e trace=fsync,fdatasync,renameat,unlink,unlinkat,write csalock";
            assert_eq!(sandbox.script("dash", &format!("{traced} {words}")).capture().code, Some(0), "{words}");
            let trace = sandbox.read("files/trace");
            let lines: Vec<&str> = trace.lines().collect();
            let answer = lines.iter().rposition(|line| line.contains("write(1<") || line.contains("write(2<")).unwrap();
            let before = &lines[..answer];
            let synced = |path: &str| before.iter().any(|line| line.contains("sync(") && line.contains(&format!("{path}>)")));
            let store = sandbox.store_path().display().to_string();
            let home = sandbox.path("").display().to_string();
            let home = home.trim_end_matches('/');
            if sandbox.is_directory() {
                let name = words.split(' ').find(|word| word.len() == 1 && word.as_bytes()[0].is_ascii_lowercase()).unwrap();
                let record = before.iter().any(|line| line.contains("fsync(") && (line.contains("/rec.") || line.contains("/embryo.")));
                assert!(record || words.starts_with("del") || words.starts_with("unclaim"), "{words}\n{trace}");
                assert!(synced(&format!("{store}/{name}")) && synced(&store) && synced(home), "{words}\n{trace}");
            } else if words != "claim --id 1 a" {
                assert!(synced(&format!("{store}-wal")) && synced(home), "{words}\n{trace}");
            } else {
                // The first commit creates the database, which has no log yet.
                assert!(synced(&store) && synced(&format!("{store}-journal")) && synced(home), "{words}\n{trace}");
                // The journal's end is what commits, so the directory is synced after it.
                let end = before.iter().position(|line| line.contains("-journal\"") && line.contains("unlink(")).unwrap();
                assert!(before[end..].iter().any(|line| line.contains("sync(") && line.contains(&format!("{home}>)"))), "{words}\n{trace}");
            }
        }
    }
}
