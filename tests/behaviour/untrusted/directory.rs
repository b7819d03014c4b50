//! A directory store with something strange in it.

use super::{Outside, bounded, plant};
use crate::sandbox::{Kind, Sandbox, has, is_root};

const FORCE: &str = "nothing was changed; see who wrote it, then `csalock unlock --force x` removes it";
const AWAY: &str = "see who made it, and move it away";

/// Scripts that put something in the place of the directory that the record of `x` would be in, and what it is then.
const INSTEAD_OF_ITS_DIRECTORY: [(&str, &str); 6] = [
    ("ln -s $OUT $STORE/x", "a symbolic link, which is not followed"),
    ("ln -s none $STORE/x", "a symbolic link, which is not followed"),
    ("echo mine > $STORE/x", "a file"),
    ("mkfifo $STORE/x", "something else"),
    ("socket $STORE/x", "something else"),
    ("mknod $STORE/x c 1 5", "something else"),
];

/// Scripts that put something in the place of the record of `x`, the file `$r`, and what is said of it.
const INSTEAD_OF_ITS_RECORD: [(&str, &str); 9] = [
    ("ln -sf $OUT/file $r", "RECORD is not a record: it is a symbolic link"),
    ("rm $r; mkfifo $r", "STORE/x: a lock record is unreadable: it is empty"),
    ("rm $r; socket $r", "RECORD is not a record: it is not a regular file"),
    ("rm $r; mknod $r c 1 5", "RECORD is not a record: it has more than 4194304 bytes"),
    ("rm $r; mkdir $r", "RECORD is not a record: it is a directory"),
    ("truncate -s 1G $r", "RECORD is not a record: it has more than 4194304 bytes"),
    ("ln -f $OUT/file $r", "STORE/x: a lock record is unreadable: it does not begin with {\"csalock\":3"),
    (
        "rm $STORE/x/*; touch $STORE/x/cur.9.00000001ffffffffffffffff; ln -s $OUT/rec.00000001ffffffffffffffff $STORE/x/",
        "STORE/x/rec.00000001ffffffffffffffff is not a record: it is a symbolic link",
    ),
    ("rm $STORE/x/*; touch $STORE/x/cur.9.00000001ffffffffffffffff", "STORE/x points to a record that is missing"),
];

/// A store in which `other` and `x` are held.
fn store(sandbox: &Sandbox) -> Outside<'_> {
    for name in ["other", "x"] {
        sandbox.csalock(["lock", "--forever", name]).run();
    }
    Outside::new(sandbox)
}

/// The result of every command while an object is in the way of `x`. `other` is shown, held and released as usual.
#[track_caller]
fn is_refused(sandbox: &Sandbox, outside: &Outside<'_>, script: &str, said: &str) {
    for words in [
        &["run", "-n", "x", "touch", "ran"][..],
        &["lock", "-w", "inf", "x"],
        &["status", "x"],
        &["put", "x", "value"],
        &["claim", "--id", "me", "x"],
    ] {
        let done = bounded(sandbox, words);
        let found = (done.code, sandbox.plain(&done.stdout), sandbox.plain(&done.stderr));
        assert_eq!(found, (Some(65), String::new(), format!("csalock: {said}\n")), "{script} {words:?}");
        outside.is_as_it_was(&format!("{script} {words:?}"));
    }
    // The name of an unreadable record among all of them is unknown.
    let said = said.replace("--force x", "--force NAME");
    let status = bounded(sandbox, &["status", "-1"]);
    let found = (status.code, status.stdout.as_str(), sandbox.plain(&status.stderr));
    assert_eq!(found, (Some(65), "other\n", format!("csalock: {said}\n")), "{script}");
    for words in ["gc", "history", "lookup --id me", "unlock --all", "doctor", "unlock --force x"] {
        bounded(sandbox, &words.split(' ').collect::<Vec<_>>());
        outside.is_as_it_was(&format!("{script} {words}"));
    }
    assert!(!sandbox.path("files/ran").exists(), "{script}");
}

/// Returns true if the object can be made here.
fn is_possible((script, _): &&(&str, &str)) -> bool {
    (!script.contains("mknod") || is_root("a device")) && (!script.contains("socket") || has("python3"))
}

#[test]
fn a_foreign_object_in_place_of_the_directory_of_a_record_is_named_and_left_alone() {
    let sandbox = Sandbox::new(Kind::Directory);
    let outside = store(&sandbox);
    for (script, what) in INSTEAD_OF_ITS_DIRECTORY.iter().filter(is_possible) {
        plant(&sandbox, &format!("rm -rf $STORE/x; {script}"));
        let said = format!("STORE/x is {what}, where the directory of a record belongs; {AWAY}");
        is_refused(&sandbox, &outside, script, &said);
        assert!(sandbox.path("store/x").symlink_metadata().is_ok(), "{script} is not ours to remove");
        plant(&sandbox, "rm $STORE/x; csalock run -n x true; csalock lock --forever -n other > /dev/null || :");
    }
}

#[test]
fn a_foreign_object_in_place_of_a_record_is_not_a_lock_until_force_removes_it() {
    let sandbox = Sandbox::new(Kind::Directory);
    let outside = store(&sandbox);
    for (script, what) in INSTEAD_OF_ITS_RECORD.iter().filter(is_possible) {
        plant(&sandbox, "rm -rf $STORE/x; csalock lock -n --forever x > /dev/null");
        let names = std::fs::read_dir(sandbox.path("store/x")).unwrap().map(|entry| entry.unwrap().file_name());
        let record = format!("STORE/x/{}", names.max().unwrap().to_str().unwrap());
        plant(&sandbox, &format!("r=$(ls -d $STORE/x/* | tail -n 1); {script}"));
        is_refused(&sandbox, &outside, script, &format!("{}; {FORCE}", what.replace("RECORD", &record)));
        sandbox.csalock(["run", "-n", "x", "true"]).run();
        plant(&sandbox, "csalock lock --forever -n other > /dev/null || :");
    }
}

/// Scripts that put something in the working directory of the store, `$W`, and what a lock is refused with, if it is.
const IN_WORK: [(&str, &str); 15] = [
    ("rm -r $W; ln -s $OUT $W", "STORE/.work is not a directory, as it must be to work in; AWAY"),
    ("rm -r $W; echo mine > $W", "STORE/.work is not a directory, as it must be to work in; AWAY"),
    ("rm -r $W; mkfifo $W", "STORE/.work is not a directory, as it must be to work in; AWAY"),
    ("rm -f $W/history; ln -s $OUT/history $W/history", ""),
    ("rm -f $W/history; ln -s $OUT/new $W/history", ""),
    ("rm -f $W/history; mkfifo $W/history", ""),
    ("rm -f $W/history; mkdir $W/history", ""),
    ("ln -f $OUT/history $W/history", ""),
    ("truncate -s 1G $W/history", ""),
    ("rm -f $W/token.*; touch $W/token.007 $W/token.+7 $W/token. $W/token.x", ""),
    ("rm -f $W/token.*; ln -s $OUT/token.7 $W/token.7", ""),
    (
        "touch $W/token.9223372036854775807",
        "no version number is left above those in STORE/.work; see who wrote that number there, and move it away",
    ),
    // What would rest above the store.
    (
        "touch $W/rest... $W/rest.. $W/rest. $W/rest.a; touch -d '1 hour ago' $W/rest.*; mkdir $STORE/../end.9.00000001fffffffffffffffe; touch $STORE/../rec.00000001fffffffffffffffe",
        "",
    ),
    (
        "for d in $W/.new.a $W/.dead.new.b $W/.clock.c; do ln -s $OUT/.new.draft $d; touch -h -d '1 hour ago' $d; done",
        "",
    ),
    (
        "touch -d '1 hour ago' \"$W/\"$'.new.\\xff' \"$W/\"$'token.\\xff' \"$W/\"$'rest.\\xff\\n' \"$STORE/\"$'\\n\\x1b[2J' ; rm \"$STORE/\"$'\\n\\x1b[2J'",
        "",
    ),
];

#[test]
fn objects_in_the_working_directory_never_lead_out_of_the_store() {
    for (script, said) in IN_WORK {
        let sandbox = Sandbox::new(Kind::Directory);
        let outside = store(&sandbox);
        // Something to rest, a token and a history, to begin with.
        sandbox.csalock(["unlock", "x"]).run();
        plant(&sandbox, "csalock run a true; csalock run b true");
        plant(&sandbox, &format!("W=$STORE/.work; {script}"));
        let above = sandbox.listing("rec.00000001fffffffffffffffe");
        // This record is parked, and needs no other directory.
        let done = bounded(&sandbox, &["run", "-n", "x", "true"]);
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{script}");
        assert_eq!(sandbox.state("x"), "free", "{script}");
        let done = bounded(&sandbox, &["run", "-n", "y", "true"]);
        let wanted = match said {
            "" => (Some(0), String::new()),
            _ => (Some(65), format!("csalock: {}\n", said.replace("AWAY", AWAY))),
        };
        assert_eq!((done.code, sandbox.plain(&done.stderr)), wanted, "{script}");
        let status = bounded(&sandbox, &["status", "-1"]);
        assert_eq!(
            (status.code, status.stdout.replace("x\n", "").as_str()),
            (Some(0), "other\n"),
            "{script} {status:?}"
        );
        for words in [&["history"][..], &["gc"], &["doctor"], &["get", "x"]] {
            bounded(&sandbox, words);
        }
        assert_eq!(bounded(&sandbox, &["lock", "-n", "other"]).code, Some(75), "{script}");
        outside.is_as_it_was(script);
        assert_eq!(sandbox.listing("rec.00000001fffffffffffffffe"), above, "{script}");
    }
}

#[test]
fn a_link_in_place_of_the_store_is_followed_if_no_other_user_can_have_created_it() {
    let sandbox = Sandbox::new(Kind::Directory);
    let outside = store(&sandbox);
    plant(
        &sandbox,
        "mkdir $STORE/../all; chmod 1777 $STORE/../all; ln -s $STORE $STORE/../mine; ln -s $STORE $STORE/../all/mine; ln -s $OUT $STORE/../all/theirs",
    );
    for mine in ["mine", "all/mine"] {
        let store = sandbox.store_at(mine);
        assert_eq!(bounded(&sandbox, &["run", "-n", "--store", &store, "y", "true"]).code, Some(0), "{mine}");
        assert_eq!(bounded(&sandbox, &["lock", "-n", "--store", &store, "x"]).code, Some(75), "{mine}");
    }
    require!(is_root("another user"));
    plant(&sandbox, "chown -h 65534 $STORE/../all/theirs");
    let store = sandbox.store_at("all/theirs");
    for words in
        [&["run", "-n", "--store", &store, "y", "true"][..], &["status", "--store", &store], &["gc", "--store", &store]]
    {
        let done = bounded(&sandbox, words);
        let said = "csalock: SANDBOX/all/theirs is a symbolic link, which is not followed there; see who made it, or name the \
                    real directory\n";
        assert_eq!((done.code, sandbox.plain(&done.stderr)), (Some(77), said.to_string()), "{words:?}");
    }
    outside.is_as_it_was("a link of another user");
}

#[test]
fn a_foreign_object_in_place_of_the_store_is_named_and_left_alone() {
    let sandbox = Sandbox::new(Kind::Directory);
    let outside = Outside::new(&sandbox);
    let foreign =
        "is not a store: Not a directory; check the path: name a directory with --store, or move the file away";
    let mut strange = vec![
        ("ln -s $STORE", 69, "its links lead to each other without an end; correct them, or name the real path"),
        ("mkfifo", 65, foreign),
        ("touch", 65, foreign),
    ];
    if has("python3") {
        strange.push(("socket", 65, foreign));
    }
    if is_root("a device") {
        strange.push(("f() { mknod $1 c 1 5; }; f", 65, foreign));
    }
    for (make, code, said) in strange {
        plant(&sandbox, &format!("rm -f $STORE; {make} $STORE"));
        for words in
            [&["run", "-n", "x", "touch", "ran"][..], &["status"], &["history"], &["gc"], &["unlock", "--force", "x"]]
        {
            let done = bounded(&sandbox, words);
            assert!(done.code == Some(code) && done.stdout.is_empty(), "{make} {words:?} {done:?}");
            assert!(
                sandbox.plain(&done.stderr).contains("STORE") && sandbox.plain(&done.stderr).contains(said),
                "{make} {words:?} {done:?}"
            );
        }
        bounded(&sandbox, &["doctor"]);
    }
    assert!(!sandbox.path("files/ran").exists());
    outside.is_as_it_was("a foreign directory");
}

#[test]
fn exhausted_numbers_are_refused_and_never_restart() {
    let sandbox = Sandbox::new(Kind::Directory);
    store(&sandbox);
    let renumber = |number: &str| {
        let script = "cd $STORE/x; p=$(ls | head -n 1); mv $p $(echo $p | sed 's/\\.[^.]*/.NUMBER/')";
        plant(&sandbox, &script.replace("NUMBER", number));
    };
    renumber("9223372036854775807");
    let done = bounded(&sandbox, &["renew", "--ttl", "1h", "x"]);
    let said = "csalock: no version number is left above those in STORE/x; see who wrote that number there, and move it away\n";
    assert_eq!((done.code, sandbox.plain(&done.stderr)), (Some(65), said.to_string()));
    for number in ["9223372036854775808", "18446744073709551615", "007", "+7"] {
        renumber(number);
        let done = bounded(&sandbox, &["run", "-n", "x", "touch", "ran"]);
        assert_eq!(done.code, Some(65), "{number} {done:?}");
        assert!(done.stderr.contains(&format!(".{number}.")), "{done:?}");
        assert!(done.stderr.ends_with(" in it, which is not a record; move it away\n"), "{done:?}");
    }
    assert!(!sandbox.path("files/ran").exists());
}

#[test]
fn a_record_in_the_place_of_another_name_is_an_error() {
    let sandbox = Sandbox::new(Kind::Directory);
    store(&sandbox);
    plant(&sandbox, "cp -r $STORE/x $STORE/y; cp -r $STORE/x $STORE/%6e");
    let status = bounded(&sandbox, &["status", "-1"]);
    let mut names: Vec<&str> = status.stdout.lines().collect();
    names.sort_unstable();
    assert_eq!((status.code, names), (Some(65), vec!["other", "x"]), "{status:?}");
    for place in ["STORE/y", "STORE/%6e"] {
        assert!(
            sandbox.plain(&status.stderr).contains(&format!("{place} is the record of another name, x; ")),
            "{status:?}"
        );
    }
}

#[test]
fn a_false_auxiliary_object_is_an_unreadable_record() {
    let sandbox = Sandbox::new(Kind::Directory);
    store(&sandbox);
    for body in [
        r#"{"csalock-"#,
        r#"{"csalock-page":3,"#,
        r#"{"csalock-value":3,"name":"x","#,
        r#"{"csalock-page":3,"name":"other%00""#,
    ] {
        sandbox.overwrite("x", body.as_bytes());
        let status = bounded(&sandbox, &["status", "-1"]);
        assert_eq!((status.code, status.stdout.as_str()), (Some(65), "other\n"), "{body:?} {status:?}");
        assert_eq!(bounded(&sandbox, &["run", "-n", "x", "touch", "ran"]).code, Some(65), "{body:?}");
        bounded(&sandbox, &["gc"]);
        assert_eq!(sandbox.state("other"), "held", "{body:?}");
    }
    assert!(!sandbox.path("files/ran").exists());
}

#[test]
fn files_that_cannot_be_removed_are_named() {
    let sandbox = Sandbox::new(Kind::Directory);
    store(&sandbox);
    plant(&sandbox, "mkdir -p $STORE/z/rec.00000001ffffffffffffffff/mine");
    for words in [&["run", "-n", "z", "touch", "ran"][..], &["lock", "-w", "inf", "z"]] {
        let done = bounded(&sandbox, words);
        let said = "csalock: STORE/z/rec.00000001ffffffffffffffff is a directory with something in it, where a record belongs; see \
                    who made it, and move it away\n";
        assert_eq!((done.code, sandbox.plain(&done.stderr)), (Some(65), said.to_string()), "{words:?}");
    }
    assert!(sandbox.path("store/z/rec.00000001ffffffffffffffff/mine").exists());
    plant(&sandbox, "mkdir $STORE/w; echo mine > $STORE/w/stranger");
    let done = bounded(&sandbox, &["run", "-w", "inf", "w", "touch", "ran"]);
    let said = "csalock: STORE/w has stranger in it, which is not a record; move it away\n";
    assert_eq!((done.code, sandbox.plain(&done.stderr)), (Some(65), said.to_string()));
    assert!(sandbox.path("store/w/stranger").exists() && !sandbox.path("files/ran").exists());
}

#[test]
fn unreadable_records_are_passed_over_and_the_others_are_shown() {
    require!(is_root("another user"));
    let sandbox = Sandbox::new(Kind::Directory);
    store(&sandbox);
    plant(&sandbox, "chmod -R a+rX $STORE; chmod 0 $STORE/x; mkdir $STORE/z; chmod 0 $STORE/z");
    let call = |words: &[&str]| super::ends(sandbox.csalock(words).user(65534), words);
    let status = call(&["status", "-1"]);
    assert_eq!((status.code, status.stdout.as_str()), (Some(77), "other\n"), "{status:?}");
    for name in ["STORE/x", "STORE/z"] {
        assert!(sandbox.plain(&status.stderr).contains(name), "{status:?}");
    }
    for words in
        [&["run", "-n", "x", "touch", "ran"][..], &["unlock", "--force", "x"], &["run", "-n", "other", "touch", "ran"]]
    {
        let done = call(words);
        assert!(matches!(done.code, Some(75 | 77 | 84)), "{words:?} {done:?}");
    }
    assert!(!sandbox.path("files/ran").exists());
}
