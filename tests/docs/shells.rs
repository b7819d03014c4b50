//! The completions in their real shells: what is offered, and whether what is offered can be used.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command as Process, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use clap::Command;
use tempfile::TempDir;

use harness::has;

use super::{definition, in_project};

const HELD: [&str; 3] = ["two words", "plain", "co:lon"];

/// Commands whose operands are names.
const NAMING: [&str; 17] = [
    "unlock", "status", "list", "history", "metrics", "renew", "get", "put", "del", "lookup", "unclaim", "lock", "gc",
    "doctor", "overdue", "claim", "run",
];

/// A lock that only the history contains.
const PAST: &str = "yesterday";

/// A store with locks that are held, and a shell's environment.
struct Desk {
    dir: TempDir,
}

impl Desk {
    fn new() -> Desk {
        let desk = Desk { dir: tempfile::tempdir().unwrap() };
        for name in HELD.into_iter().chain(["new\nline"]) {
            assert!(desk.csalock(&["lock", "--forever", name]), "{name}");
        }
        assert!(desk.csalock(&["run", PAST, "true"]));
        fs::write(desk.path().join("notes"), "").unwrap();
        desk
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn csalock(&self, arguments: &[&str]) -> bool {
        self.process(env!("CARGO_BIN_EXE_csalock")).args(arguments).output().unwrap().status.success()
    }

    fn process(&self, program: &str) -> Process {
        let binaries = Path::new(env!("CARGO_BIN_EXE_csalock")).parent().unwrap();
        let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap());
        let mut process = Process::new(program);
        process.env_clear().env("PATH", path).env("TERM", "dumb").env("LC_ALL", "C.UTF-8").current_dir(self.path());
        process.env("HOME", self.path()).env("ZDOTDIR", self.path());
        process.env("CSALOCK_STORE", format!("dir:{}", self.path().join("store").display()));
        process.env("COMPLETIONS", in_project("completions"));
        process
    }

    fn output(&self, program: &str, arguments: &[&str]) -> String {
        let done = self.process(program).args(arguments).output().unwrap();
        assert!(done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    fn terminal(&self, shell: &str) -> Terminal {
        let mut script = self.process("script");
        script.args(["-qefc", shell, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = script.spawn().unwrap();
        let (sender, output) = channel();
        let mut stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut bytes) {
                let _ = sender.send(String::from_utf8_lossy(&bytes[..count]).into_owned());
            }
        });
        let keys = child.stdin.take().unwrap();
        let mut terminal = Terminal { child, keys, output, seen: String::new() };
        terminal.expect("READY>");
        terminal
    }

    fn is_held(&self, name: &str) -> bool {
        self.csalock(&["status", name])
    }
}

struct Terminal {
    child: Child,
    keys: ChildStdin,
    output: Receiver<String>,
    seen: String,
}

impl Terminal {
    fn expect(&mut self, text: &str) {
        loop {
            if let Some(at) = self.seen.find(text) {
                self.seen.drain(..at + text.len());
                return;
            }
            match self.output.recv_timeout(Duration::from_secs(30)) {
                Ok(more) => self.seen.push_str(&more),
                Err(error) => panic!("waiting for {text:?}: {error}; saw {:?}", self.seen),
            }
        }
    }

    /// Types this line, in which `\t` is TAB, and wants it to succeed.
    fn run(&mut self, line: &str) {
        self.keys.write_all(format!("{line} && echo fin''ished || echo fai''led\r").as_bytes()).unwrap();
        self.expect("finished");
        self.expect("READY>");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.keys.write_all(b"\x15exit\r");
        let _ = self.child.wait();
    }
}

/// The options of a command with an effect there, or those without.
fn options(command: &Command, hidden: bool) -> BTreeSet<String> {
    let longs = command.get_arguments().filter(|argument| argument.is_hide_set() == hidden);
    longs.filter_map(|argument| argument.get_long()).map(|long| format!("--{long}")).collect()
}

fn commands() -> Vec<(String, [BTreeSet<String>; 2])> {
    let root = definition();
    let all = |command: &Command| {
        let options = [false, true].map(|hidden| options(command, hidden));
        command.get_name_and_visible_aliases().into_iter().map(|name| (name.to_string(), options.clone())).collect()
    };
    root.get_subcommands().flat_map::<Vec<_>, _>(all).collect()
}

/// The completions of a shell after each of these lines: one paragraph a line.
fn check_offers(offers: impl Fn(&[&str]) -> BTreeSet<String>) {
    let mut names = BTreeSet::new();
    for (command, [options, hidden]) in commands() {
        let offered = offers(&["csalock", &command, "--"]);
        assert!(options.is_subset(&offered), "{command}: {:?}", options.difference(&offered));
        assert!(hidden.is_disjoint(&offered), "{command}: {:?}", hidden.intersection(&offered));
        assert!(offers(&["csalock", &command[..2]]).contains(&command), "{command}");
        names.insert(command);
    }
    // Options come only after a dash.
    assert_eq!(offers(&["csalock", ""]), names);
    assert!(offers(&["csalock", "--j"]).contains("--json"));
    for command in NAMING {
        // The directory has a file `notes`.
        assert_eq!(offers(&["csalock", command, "note"]), BTreeSet::new(), "{command}");
        assert!(offers(&["csalock", command, "./no"]).iter().any(|file| file.ends_with("notes")), "{command}");
    }
    assert!(offers(&["csalock", "gc", "pl"]).contains("plain") && offers(&["csalock", "doctor", "yes"]).contains(PAST));
    let live: BTreeSet<String> = HELD.into_iter().map(String::from).collect();
    for command in ["unlock", "wait", "status", "list", "history", "metrics", "renew", "get", "put", "del", "lookup"] {
        let offered = offers(&["csalock", command, ""]);
        assert!(live.is_subset(&offered) && !offered.iter().any(|name| name.contains("line")), "{offered:?}");
        assert_eq!(offers(&["csalock", command, "-q", "--json", "pl"]), BTreeSet::from(["plain".to_string()]));
        assert!(!offers(&["csalock", command, "--store", "dir:/nowhere/at/all", "pl"]).contains("plain"));
        assert!(!offers(&["csalock", "--store", "dir:/nowhere/at/all", command, "pl"]).contains("plain"));
        assert!(offers(&["csalock", "--json", command, "pl"]).contains("plain"));
    }
    for command in ["lock", "run"] {
        let offered = offers(&["csalock", command, "-n", ""]);
        assert!(live.is_subset(&offered) && !offered.iter().any(|name| name.contains("line")), "{offered:?}");
        assert_eq!(offers(&["csalock", "--json", command, "yes"]), BTreeSet::from([PAST.to_string()]));
        assert!(!offers(&["csalock", command, "--store", "dir:/nowhere/at/all", "yes"]).contains(PAST));
        assert!(offers(&["csalock", command, "./no"]).iter().any(|file| file.ends_with("notes")));
    }
    assert_eq!(offers(&["csalock", "history", "yes"]), BTreeSet::from([PAST.to_string()]));
    assert_eq!(offers(&["csalock", "man", "hi"]), BTreeSet::from(["history".to_string()]));
    assert!(offers(&["csalock", "man", ""]).contains("7"));
    let stores = BTreeSet::from(["dir:", "sqlite:", "etcd://", "etcds://", "postgres://", "ssh://"].map(String::from));
    for before in [&["csalock", "--store"][..], &["csalock", "status", "--store"], &["csalock", "run", "-n", "--store"]]
    {
        let offered = |typed: &str| offers(&[before, &[typed]].concat());
        assert!(stores.is_subset(&offered("")), "{:?}", offered(""));
        assert_eq!(offered("sq"), BTreeSet::from(["sqlite:".to_string()]));
        let paths = offered("dir:sto");
        assert!(paths.iter().any(|path| path.trim_end_matches('/').ends_with("store")), "{paths:?}");
        let paths = offered("sqlite:no");
        assert!(paths.iter().any(|path| path.ends_with("notes")), "{paths:?}");
    }
    assert!(offers(&["csalock", "lock", "plain", "tw"]).contains("two words"));
    assert!(offers(&["csalock", "unlock", "plain", "tw"]).contains("two words"));
    assert!(offers(&["csalock", "completions", "f"]).contains("fish"));
    assert!(offers(&["csalock", "status", "--color", "al"]).contains("always"));
    assert!(!offers(&["csalock", "renew", "--ttl", "pl"]).contains("plain"));
    assert!(offers(&["csalock", "run", "--on-lost", ""]).contains("warn"));
    for before in [&["run", "job"][..], &["run", "-w", "5", "job", "--"], &["run", "-n", "--ttl", "1m", "job"]] {
        assert!(offers(&[&["csalock"], before, &["csal"]].concat()).contains("csalock"), "{before:?}");
    }
}

#[test]
fn bash_offers_valid_completions() {
    let desk = Desk::new();
    let code = r#"
        source "$COMPLETIONS/csalock.bash"
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
        _csalock_or_live csalock "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" 2>/dev/null
        for word in "${COMPREPLY[@]}"; do eval "printf '%s\n' $word"; done"#;
    check_offers(|words| {
        // For bash a colon is a word.
        let split = words.iter().flat_map(|word| match word.split_once(':') {
            Some((before, after)) => vec![before, ":", after],
            None => vec![*word],
        });
        let line = words.join(" ");
        let words: Vec<&str> = split.collect();
        let code = code.replace("COMP_LINE=\"$*\"", &format!("COMP_LINE='{line}'"));
        let words = [&["--norc", "-c", &code, "bash"], words.as_slice()].concat();
        desk.output("bash", &words).lines().map(String::from).collect()
    });
}

#[test]
fn bash_inserts_usable_names() {
    let desk = Desk::new();
    // Without its default, bash offers no file where a name is wanted.
    let registered = desk.output("bash", &["--norc", "-c", "source $COMPLETIONS/csalock.bash; complete -p csalock"]);
    assert_eq!(registered, "complete -o nosort -F _csalock_or_live csalock\n");
    require!(has("script"));
    fs::write(desk.path().join("rc"), "source \"$COMPLETIONS/csalock.bash\"; PS1='READY>'").unwrap();
    let mut bash = desk.terminal("bash --noprofile --rcfile rc -i");
    for (line, name) in [("tw\t", "two words"), ("co:l\t", "co:lon"), ("'pl\t", "plain")] {
        assert!(desk.is_held(name));
        bash.run(&format!("csalock unlock --force {line}"));
        assert!(!desk.is_held(name), "{line:?}");
    }
    for line in ["two\\ w\t", "\"two w\t", "two\t", "'t\t"] {
        assert!(desk.csalock(&["lock", "--forever", "two words"]));
        bash.run(&format!("csalock unl\t--for\t{line}"));
        assert!(!desk.is_held("two words"), "{line:?}");
    }
    bash.run("csalock run job csaloc\t --version");
}

#[test]
fn zsh_offers_valid_completions_and_inserts_usable_names() {
    let desk = Desk::new();
    require!(has("zsh") && has("script"));
    // Every match goes through compadd; ours writes them down first.
    let rc = r#"
        unsetopt zle_bracketed_paste auto_list auto_menu 2>/dev/null
        zstyle ':completion:*' use-cache no
        fpath=("$COMPLETIONS" $fpath)
        autoload -Uz compinit && compinit -u -D
        compadd() {
            local -a hits
            builtin compadd -O hits "$@"
            print -rl -- $hits >> $HOME/hits
            builtin compadd "$@"
        }
        PS1='READY>'"#;
    fs::write(desk.path().join(".zshrc"), rc).unwrap();
    let zsh = std::cell::RefCell::new(desk.terminal("zsh -i"));
    check_offers(|words| {
        let hits = desk.path().join("hits");
        fs::write(&hits, "").unwrap();
        zsh.borrow_mut().run(&format!("{}\t\x15true", words.join(" ")));
        // A compadd without a match has written an empty line.
        let hits = fs::read_to_string(&hits).unwrap();
        hits.lines().filter(|hit| !hit.is_empty()).map(String::from).collect()
    });
    zsh.borrow_mut().run("unfunction compadd");
    for (line, name) in [("tw\t", "two words"), ("co:l\t", "co:lon"), ("'pl\t", "plain")] {
        zsh.borrow_mut().run(&format!("csalock unl\t--for\t{line}"));
        assert!(!desk.is_held(name), "{line:?}");
    }
}

#[test]
fn fish_offers_valid_completions() {
    let desk = Desk::new();
    require!(has("fish"));
    let code = "source $COMPLETIONS/csalock.fish; complete -C \"$argv\"";
    check_offers(|words| {
        let offered = desk.output("fish", &["--no-config", "-c", code, &words.join(" ")]);
        offered.lines().map(|line| line.split('\t').next().unwrap().to_string()).collect()
    });
    // Fish escapes it on insertion.
    let code = "source $COMPLETIONS/csalock.fish
        csalock unlock --force (complete -C 'csalock unlock tw')";
    assert!(desk.output("fish", &["--no-config", "-c", code]).contains("two words"));
    assert!(!desk.is_held("two words"));
}
