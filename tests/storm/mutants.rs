//! The witness and the judges, tried on what must not be: each of them sees it, and sees nothing where all is well.

use std::time::Duration;

use crate::codes;
use crate::counts::{self, Count};
use crate::exclusion::{Entry, Witness, boottime, identity};
use crate::sandbox::{Kind, PATIENCE, wait_until};
use crate::schedule::{SLOTS, Schedule, What};
use crate::setup::Ground;
use crate::storm::storm;

/// A witness in a place of its own.
fn witness() -> (tempfile::TempDir, Witness) {
    let place = tempfile::tempdir().unwrap();
    let witness = Witness::new(place.path());
    (place, witness)
}

/// A process that lives as long as this test and has name a.
fn entry(who: &str, share: char) -> Entry {
    let owner = identity(std::process::id() as i32);
    Entry { who: who.into(), name: "a".into(), share, owner, asked: boottime(), ..Entry::default() }
}

/// Returns the verdict of the witness when these enter one after the other.
fn seen(entries: &[Entry]) -> String {
    let (_place, witness) = witness();
    entries.iter().for_each(|entry| {
        witness.enter(std::slice::from_ref(entry));
    });
    witness.broken()
}

#[test]
fn two_incompatible_holders_are_seen() {
    for (one, other, fit) in
        [('x', 'x', false), ('x', 's', false), ('s', 'x', false), ('s', 'j', false), ('s', 's', true), ('j', 'j', true)]
    {
        assert_eq!(seen(&[entry("one", one), entry("other", other)]).is_empty(), fit, "{one} and {other}");
    }
    let places: Vec<Entry> = (0..=SLOTS).map(|number| entry(&number.to_string(), 'j')).collect();
    assert_eq!(seen(&places[1..]), "");
    assert!(seen(&places).contains("came in while"));
}

#[test]
fn a_holder_that_left_or_died_or_expired_or_was_broken_is_not_inside() {
    let (_place, witness) = witness();
    let one = |change: &dyn Fn(&mut Entry)| {
        let mut entry = entry("one", 'x');
        change(&mut entry);
        witness.enter(&[entry]);
    };
    one(&|_| {});
    witness.leave(|entry| entry.who == "one");
    witness.enter(&[entry("other", 'x')]);
    witness.leave(|_| true);
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    one(&|entry| entry.owner = identity(child.id() as i32));
    child.kill().unwrap();
    child.wait().unwrap();
    witness.enter(&[entry("other", 'x')]);
    witness.leave(|_| true);
    one(&|entry| entry.until = Some(boottime() + 50));
    std::thread::sleep(Duration::from_millis(51));
    witness.enter(&[entry("other", 'x')]);
    witness.leave(|_| true);
    one(&|_| {});
    let me = identity(std::process::id() as i32).unwrap();
    let parent = identity(nix::unistd::getppid().as_raw()).unwrap();
    witness.breaks("a", me, false);
    assert!(!witness.enter(&[entry("other", 'x')]), "a grant during a break may be broken");
    witness.breaks("a", parent, false);
    witness.breaks("a", me, true);
    std::thread::sleep(Duration::from_millis(2));
    assert!(!witness.enter(&[entry("other", 'x')]), "one of them is not done yet");
    witness.breaks("a", parent, true);
    wait_until("time passes", || witness.enter(&[entry("other", 'x')]));
    witness.leave(|_| true);
    let mut breaker = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    witness.breaks("a", identity(breaker.id() as i32).unwrap(), false);
    let asked_meanwhile = entry("other", 'x');
    breaker.kill().unwrap();
    breaker.wait().unwrap();
    assert!(!witness.enter(&[asked_meanwhile]), "the break has not reported its end");
    wait_until("time passes", || witness.enter(&[entry("other", 'x')]));
    assert_eq!(witness.broken(), "");
    one(&|_| {});
    assert!(witness.broken().contains("other"), "a later holder is not broken");
}

#[test]
fn a_command_that_outlives_its_lease_is_seen() {
    let over = |overdue| Entry { until: Some(boottime() + 30), overdue: Some(overdue), ..entry("one", 'x') };
    for (overdue, is_seen) in [(boottime() + 60_000, false), (boottime() + 31, true)] {
        let (_place, witness) = witness();
        witness.enter(&[over(overdue)]);
        std::thread::sleep(Duration::from_millis(40));
        witness.enter(&[entry("other", 'x')]);
        assert_eq!(witness.broken().contains("outlives"), is_seen);
    }
}

#[test]
fn a_token_that_does_not_grow_is_seen() {
    let tokens = |one: (char, u64), other: (char, u64)| {
        let (_place, witness) = witness();
        for (share, token) in [one, other] {
            witness.enter(&[Entry { token: Some(token), ..entry("one", share) }]);
            witness.leave(|_| true);
        }
        witness.broken()
    };
    assert_eq!(tokens(('x', 5), ('x', 6)), "");
    assert!(tokens(('x', 5), ('x', 5)).contains("after token 5"));
    assert!(tokens(('x', 5), ('s', 4)).contains("after token 5"));
    assert!(tokens(('s', 5), ('x', 5)).contains("after token 5"));
    // Those who come in together come in in whichever order.
    assert_eq!(tokens(('s', 5), ('s', 4)), "");
}

#[test]
fn a_name_that_two_ids_have_is_seen() {
    let claim = |who: &str, id: &str| Entry { id: id.into(), owner: None, ..entry(who, 'c') };
    assert_eq!(seen(&[claim("one", "id"), claim("other", "id")]), "");
    assert!(seen(&[claim("one", "id"), claim("other", "another")]).contains("while"));
}

#[test]
fn a_lost_update_and_an_invented_update_are_seen() {
    let wrong = |acknowledged: &[u64], unknown, found| {
        Count { acknowledged: acknowledged.to_vec(), unknown }.judge("n", found).len()
    };
    assert_eq!(wrong(&[1, 3, 2], 0, 3), 0);
    assert_eq!(wrong(&[1, 2, 4], 1, 5), 1, "two numbers and one possible writer");
    assert_eq!(wrong(&[1, 2, 4], 2, 5), 0);
    assert_eq!(wrong(&[1, 2, 2], 9, 9), 1, "twice the same");
    assert_eq!(wrong(&[1, 2, 3], 9, 2), 1, "fallen back");
    assert_eq!(counts::judge_turns((3, 0), (2, 0), 0), [""; 0]);
    assert_eq!(counts::judge_turns((4, 0), (2, 1), 0), [""; 0]);
    assert_eq!(counts::judge_turns((4, 0), (2, 0), 0).len(), 1);
    assert_eq!(counts::judge_turns((0, 0), (1, 0), 0).len(), 1);
}

#[test]
fn an_exit_code_that_a_command_does_not_have_is_seen() {
    let schedule = Schedule::new(1);
    // A round without a kill and without a choice of its own.
    let plain = (0..).find(|number| {
        let round = schedule.round(0, *number);
        round.fault.is_none()
            && !round.wait.fail_on_stale
            && !round.wait.other_code
            && matches!(round.what, What::Look(_))
    });
    let wrong = |call: &str, kind| codes::judge(&format!("w0.{} {call}\n", plain.unwrap()), kind, &schedule).0.len();
    for (call, on_a_directory, on_etcd) in [
        ("0 lock -n a", 0, 0),
        ("75 lock -n a", 0, 0),
        ("75 unlock a", 1, 1),
        ("70 lock -n a", 1, 1),
        ("65 get a", 1, 1),
        ("69 lock -n a", 1, 0),
        ("74 lock -n a", 0, 1),
        ("84 lock -n a", 1, 1),
        ("137 run -n a true", 1, 1),
        ("137 run --max-hold 1ms a true", 0, 0),
        ("1 run a true", 1, 1),
        ("99 run -n a true", 1, 1),
    ] {
        assert_eq!((wrong(call, Kind::Directory), wrong(call, Kind::Etcd)), (on_a_directory, on_etcd), "{call}");
    }
}

#[test]
fn a_process_that_enters_without_the_lock_is_seen_in_a_storm() {
    let ground = Ground::new(Kind::Directory, false).unwrap();
    let schedule = Schedule { cheats: true, ..Schedule::new(1) };
    let goes_on = || ground.witness.broken().is_empty();
    let verdict = storm(&ground, &schedule, 8, PATIENCE, &goes_on);
    assert!(
        verdict.wrong.iter().any(|wrong| wrong.contains("came in while")),
        "{:?} {}",
        verdict.wrong,
        verdict.figures
    );
    assert!(verdict.last.contains(" a x in w0."), "{}", verdict.last);
}
