//! Foreign objects in the place of `.csalock` beside a file.

use super::{Outside, bounded_beside, plant};
use crate::sandbox::{Kind, Sandbox};

#[test]
fn no_object_in_place_of_the_store_beside_a_file_is_followed_or_used() {
    for (make, code) in [("ln -s $OUT", 77), ("ln -s none", 77), ("mkfifo", 65), ("touch", 65), ("ln -s .", 77)] {
        let sandbox = Sandbox::new(Kind::Directory);
        let outside = Outside::new(&sandbox);
        plant(&sandbox, &format!("{make} .csalock; touch file"));
        let before = sandbox.listing("files");
        for words in [
            &["run", "-n", "./file", "touch", "ran"][..],
            &["lock", "-w", "inf", "./file"],
            &["status", "./file"],
            &["unlock", "--force", "./file"],
            &["put", "./file", "x"],
            &["claim", "--id", "me", "./file"],
        ] {
            let done = bounded_beside(&sandbox, words);
            assert!(done.code == Some(code) && done.stdout.is_empty(), "{make} {words:?} {done:?}");
            let said = sandbox.plain(&done.stderr);
            assert!(said.contains("SANDBOX/files/.csalock") && said.contains("; "), "{make} {words:?} {said}");
        }
        assert_eq!(sandbox.listing("files"), before, "{make}");
        outside.is_as_it_was(make);
    }
}

#[test]
fn a_record_beside_a_file_that_leads_elsewhere_is_refused() {
    let sandbox = Sandbox::new(Kind::Directory);
    let outside = Outside::new(&sandbox);
    for (strange, said) in [
        ("ln -s $OUT .csalock/file", "is a symbolic link, which is not followed"),
        ("mkdir .csalock/file; ln -s $OUT/file .csalock/file/born.7.00000001ffffffffffffffff", "it is a symbolic link"),
    ] {
        plant(&sandbox, &format!("rm -rf .csalock; mkdir .csalock; touch file; {strange}"));
        for words in [&["run", "-n", "./file", "touch", "ran"][..], &["status", "./file"], &["put", "./file", "x"]] {
            let done = bounded_beside(&sandbox, words);
            assert!(done.code == Some(65) && done.stderr.contains(said), "{strange} {words:?} {done:?}");
        }
        bounded_beside(&sandbox, &["unlock", "--force", "./file"]);
        outside.is_as_it_was(strange);
    }
    assert!(!sandbox.path("files/ran").exists());
}

#[test]
fn a_directory_with_a_question_mark_is_a_plain_directory() {
    let sandbox = Sandbox::new(Kind::Directory);
    plant(&sandbox, "mkdir 'what?' 'what?shared=1'");
    for directory in ["what?", "what?shared=1"] {
        let file = format!("./{directory}/file");
        let script = "csalock status -1 \"$CSALOCK_NAME\" && csalock unlock \"$CSALOCK_NAME\"";
        let done = bounded_beside(&sandbox, &["run", &file, "-c", script]);
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{done:?}");
        assert!(done.stdout.ends_with("/file\n"), "{done:?}");
    }
}
