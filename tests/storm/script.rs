//! A round of a storm as a command line: csalock itself, or a script around it.

use crate::critical_section::words as section;
use crate::schedule::{BREAKABLE, End, FILE, Hold, INFINITE, Look, Round, Share, Wait, What};

/// `c` is csalock, and notes its exit code. `now` prints the time, never too late. `tell` reports to the witness; if
/// that is killed the script ends, because the witness would count its later releases as held.
const PRELUDE: &str = r#"
c() { csalock "$@"; s=$?; echo "$W $s $*" >> codes; return $s; }
now() { read -r up rest < /proc/uptime; asked=${up%.*}${up#*.}0; }
tell() { CSALOCK_TEST_TOLD="who=$W $*" $SECTION > /dev/null || exit 0; }
of() { rest=${held#*\"$1\":}; rest=${rest#[[\"]}; echo "${rest%%[]\"\},]*}"; }
tokens() { case $held in *\"tokens\"*) rest=${held#*\"tokens\":[}; echo "${rest%%]*}";; *) of token;; esac; }
"#;

/// The command of a worker, and its message to the section if it is the command itself.
pub(crate) struct Words {
    pub(crate) words: Vec<String>,
    pub(crate) told: String,
}

pub(crate) fn words(round: &Round, worker: usize) -> Words {
    let wait = waiting(&round.wait);
    let direct = |options: String, told: String| {
        let words = options.split_whitespace().map(str::to_string).chain(section()).collect();
        Words { words, told: format!("do=stay {told}") }
    };
    let script = |text: String| Words {
        words: vec!["dash".into(), "-c".into(), format!("{PRELUDE}{text}")],
        told: String::new(),
    };
    match &round.what {
        What::Run { hold, no_fork, max_hold, latest } => {
            let mut options = taking(hold) + &wait;
            options += if *no_fork { " -F" } else { "" };
            options += &max_hold.map(|span| format!(" --max-hold {span}ms --kill-after 50ms")).unwrap_or_default();
            options += if *latest && round.wait.timeout > 0 { " --busy latest" } else { "" };
            let also: String = hold.names[1..].iter().map(|name| format!(" --also {name}")).collect();
            let warded = if round.fault.is_none() { " warded=yes" } else { "" };
            direct(format!("csalock run -q{options} {}{also} --", hold.names[0]), told(hold, "self") + warded)
        }
        What::Nested { outer, inner, no_fork } => {
            let (one, other) = (outer.names[0], inner.names[0]);
            let fork = if *no_fork { " -F" } else { "" };
            // The inner one becomes the command, or stays behind as the owner of the outer lock.
            let owner = if *no_fork { "self" } else { "parent" };
            let words = format!(
                "csalock run -q{wait}{} {one} csalock run -q{fork}{wait}{} {other}",
                taking(outer),
                taking(inner)
            );
            // Each has a share of its own; what is told is told of the one that is more than that.
            let names = match outer.share == inner.share {
                true => format!("names={other}:self,{one}:{owner}"),
                false => format!("names={other}:self"),
            };
            direct(words, format!("{names} share={} stay={}", inner.share.letter(), inner.stay))
        }
        What::Script { hold, end, renew } => script(under_lock(hold, *end, *renew, &wait)),
        What::Flock { share, stay } => {
            let hold = Hold { names: vec![FILE], share: *share, ttl: None, stay: *stay };
            direct(format!("csalock run -q --flock{}{wait} {FILE}", taking(&hold)), told(&hold, "self"))
        }
        What::OldFlock { share, stay } => {
            let hold = Hold { names: vec![FILE], share: *share, ttl: None, stay: *stay };
            let timeout = f64::from(round.wait.timeout.min(20_000)) / 1000.0;
            direct(format!("flock -F -{} -w {timeout} {FILE}", share.letter()), told(&hold, "self"))
        }
        What::Forever { stay } => script(format!(
            "now; held=$(c lock -q --json --forever{wait} {BREAKABLE}) || exit 0
             tell do=stay names={BREAKABLE}:nobody share=x asked=$asked tokens=$(tokens) stay={stay}
             handle=$(of handle) && c unlock -q --handle $handle {BREAKABLE}"
        )),
        What::Force => script(format!(
            "tell do=breaks names={BREAKABLE}; c unlock -q --force {BREAKABLE}; tell do=broke names={BREAKABLE}"
        )),
        What::CountUp { ttl, even_if_stale } => {
            let ttl = ttl.map(|ttl| format!(" --ttl {ttl}ms")).unwrap_or_default();
            let stale = if *even_if_stale { " --even-if-stale" } else { "" };
            script(format!(
                "n=$(c get -q --lock{ttl}{wait} n) || exit 0
                 c put -q --unlock{stale} n $((n + 1)) && echo $((n + 1)) >> counted-n"
            ))
        }
        What::CountIf => script(format!(
            "held=$(c get -q --json o) && version=$(of version) || exit 0
             c put -q --if-version $version{wait} o $version && echo $version >> counted-o"
        )),
        What::Create => script(format!("c put -q --if-absent{wait} p $W")),
        What::Delete => script(format!("c del -q{wait} p")),
        What::Claim { pair, turned } => {
            let mut names = [format!("m{pair}"), format!("u{pair}")];
            if *turned {
                names.reverse();
            }
            let names = names.join(" ");
            // The leftovers of its killed predecessor are given up first.
            let give_up = format!("tell do=unclaims id=w{worker}; c unclaim -q --id w{worker} --all");
            script(format!(
                "{give_up}; c claim -q{wait} --id w{worker} {names} > /dev/null || exit 0
                 tell do=claimed id=w{worker} names={}; {give_up}",
                names.replace(' ', ",")
            ))
        }
        What::ClaimFresh => {
            let name = format!("fresh.{worker}");
            script(format!(
                "id=$(c lookup -q {name}) && c unclaim -q --id $id {name}
                 id=$(c claim -q{wait} {name}) || exit 0
                 echo $id >> ids; c unclaim -q --id $id {name}"
            ))
        }
        What::Look(look) => script(looking(*look)),
        What::Op(..) => unreachable!("the worker calls it itself"),
        What::Cheat => Words {
            words: section(),
            told: format!("do=stay names=a:self share={} stay=20", Share::Exclusive.letter()),
        },
    }
}

fn under_lock(hold: &Hold, end: End, renew: Option<u32>, wait: &str) -> String {
    // In the order of the tokens that are said.
    let mut hold = hold.clone();
    hold.names.sort_unstable();
    let names = hold.names.join(" ");
    let stay = |hold: &Hold| format!("tell do=stay {} asked=$asked tokens=$(tokens)", told(hold, "parent"));
    let again = renew.map(|ttl| {
        let renewed = Hold { ttl: Some(ttl), stay: 5, ..hold.clone() };
        format!("now; c renew -q --ttl {ttl}ms {names} && {}", stay_again(&renewed))
    });
    let release = match end {
        End::AsOwner => format!("c unlock -q {names}"),
        End::ByHandle => format!("handle=$(of handle) && c unlock -q --handle $handle {names}"),
        End::All => "c unlock -q --all".to_string(),
        End::Dies => ":".to_string(),
    };
    format!(
        "now; held=$(c lock -q --json{}{wait} {names}) || exit 0\n{}\n{}\n{release}",
        taking(&hold),
        stay(&hold),
        again.unwrap_or_default(),
    )
}

/// Under the same grant, and so under the same tokens as before.
fn stay_again(hold: &Hold) -> String {
    format!("tell do=stay {} asked=$asked tokens=-", told(hold, "parent"))
}

fn told(hold: &Hold, owner: &str) -> String {
    let names: Vec<String> = hold.names.iter().map(|name| format!("{name}:{owner}")).collect();
    let ttl = hold.ttl.map(|ttl| format!(" ttl={ttl}")).unwrap_or_default();
    format!("names={} share={} stay={}{ttl}", names.join(","), hold.share.letter(), hold.stay)
}

fn taking(hold: &Hold) -> String {
    let share = match hold.share {
        Share::Slot => format!(" -j {}", crate::schedule::SLOTS),
        share => format!(" -{}", share.letter()),
    };
    share + &hold.ttl.map(|ttl| format!(" --ttl {ttl}ms")).unwrap_or_default()
}

/// The code that a round may choose for `busy`.
pub(crate) const CHOSEN: i32 = 99;

fn waiting(wait: &Wait) -> String {
    let mut options = match wait.timeout {
        0 => " -n".to_string(),
        INFINITE => " -w inf".to_string(),
        timeout => format!(" -w {timeout}ms"),
    };
    options += if wait.fail_on_stale { " --fail-on-stale" } else { "" };
    options += if wait.label { " --label storm" } else { "" };
    options += &if wait.other_code { format!(" -E {CHOSEN}") } else { String::new() };
    options + if wait.backoff { " --backoff 5ms..50ms" } else { "" }
}

fn looking(look: Look) -> String {
    match look {
        Look::Status => "c status -q".to_string(),
        Look::StatusJson => "c status -q --json".to_string(),
        Look::StatusOf(name) => format!("c status -q {name}"),
        Look::Gc => "c gc -q".to_string(),
        Look::DryGc => "c gc -q --dry-run".to_string(),
        Look::History => "c history -q -n 20".to_string(),
        Look::Doctor => "c doctor -q".to_string(),
        Look::Get(name) => format!("c get -q {name}"),
        Look::Lookup(pair) => format!("c lookup -q m{pair}; c lookup -q --id w{pair}"),
    }
}
