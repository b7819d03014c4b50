//! The help at every width, and the manual and completions that the program carries.

use std::path::Path;

use crate::sandbox::{Kind, Sandbox, Screen, has};

/// The commands that the help lists.
fn commands(sandbox: &Sandbox) -> Vec<String> {
    let help = sandbox.csalock(["-h"]).env("COLUMNS", "100").capture().stdout;
    let list = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    list.lines().map(|line| line.split_whitespace().next().unwrap().to_string()).collect()
}

#[test]
fn help_fits_the_terminal() {
    let sandbox = Sandbox::new(Kind::Directory);
    let commands = commands(&sandbox);
    assert!(commands.len() >= 16, "{commands:?}");
    for (columns, most) in [("60", 60), ("80", 80), ("200", 100)] {
        for command in &commands {
            let help = sandbox.csalock([command, "--help"]).env("COLUMNS", columns).capture().stdout;
            let wide: Vec<&str> = help.lines().filter(|line| line.chars().count() > most).collect();
            assert!(wide.is_empty(), "{command} on {columns} columns: {wide:#?}");
            assert!(help.contains(&format!("\nUsage: csalock {command} ")), "{help}");
            assert!(!help.contains("\nOptions:") || !help.contains("\n\n\n"), "{help}");
        }
        for command in ["", "run"] {
            let words: Vec<&str> = [command, "--help"].into_iter().filter(|word| !word.is_empty()).collect();
            let help = sandbox.csalock(words).env("COLUMNS", columns).capture().stdout;
            let name =
                format!("tests/behaviour/help/csalock{}{command}.{columns}", if command.is_empty() { "" } else { "-" });
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
            if std::env::var_os("CSALOCK_BLESS").is_some() {
                std::fs::write(&path, &help).unwrap();
            }
            assert_eq!(help, std::fs::read_to_string(&path).unwrap(), "renew {path:?} with CSALOCK_BLESS=1");
        }
    }
}

#[test]
fn help_has_headings_and_follows_the_size_of_the_screen() {
    let sandbox = Sandbox::new(Kind::Directory);
    let help = sandbox.csalock(["run", "-h"]).capture().stdout;
    assert!(help.lines().count() <= 40 && help.trim_end().ends_with("`csalock man run` the manual."), "{help}");
    let help = sandbox.csalock(["run", "--help"]).capture().stdout;
    let headings: Vec<&str> = help.lines().filter(|line| line.ends_with(':') && !line.starts_with(' ')).collect();
    assert_eq!(headings, ["Arguments:", "Waiting:", "Lock:", "Command:", "Job:", "Output:"]);
    for columns in [60, 80, 200] {
        let Some(screen) = Screen::new(&sandbox, columns, 100) else { return };
        let plain = sandbox.csalock(["lock", "--help"]).env("COLUMNS", columns.to_string()).capture().stdout;
        screen.line("clear; csalock lock --help");
        let last = plain.lines().last().unwrap();
        let shown = screen.becomes("the help", |text| text.contains(last));
        for line in plain.lines() {
            assert!(shown.lines().any(|shown| shown == line.trim_end()), "{columns}: {line:?}\n{shown}");
        }
    }
}

fn file(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The pages of the manual, as `csalock man` calls them.
fn pages() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("man");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()).filter(|entry| entry.path().is_file());
    let mut files: Vec<String> = files.map(|entry| entry.file_name().into_string().unwrap()).collect();
    files.sort();
    files.iter().map(|file| file.trim_end_matches(".1").trim_start_matches("csalock-").to_string()).collect()
}

#[test]
fn the_program_carries_its_manual_and_completions() {
    let sandbox = Sandbox::new(Kind::Directory);
    let said = |words: &[&str]| sandbox.csalock(words).capture().line() + "\n";
    assert_eq!(said(&["man", "--roff"]), file("man/csalock.1"));
    for command in commands(&sandbox) {
        let page = file(&format!("man/csalock-{command}.1"));
        assert_eq!(said(&["man", "--roff", &command]), page);
        assert_eq!(said(&["man", &format!("csalock-{command}"), "--roff"]), page);
    }
    assert_eq!(said(&["man", "7", "--roff"]), file("man/csalock.7"));
    assert_eq!(said(&["man", "--roff", "list"]), file("man/csalock-status.1"));
    assert_eq!(file("man/csalock-list.1"), ".so man1/csalock-status.1\n");
    for (shell, path) in [("bash", "csalock.bash"), ("zsh", "_csalock"), ("fish", "csalock.fish")] {
        assert_eq!(said(&["completions", shell]), file(&format!("completions/{path}")));
    }
    let pages = format!("csalock: the manual has no page none; use one of: {}\n", pages().join(", "));
    sandbox.csalock(["man", "none"]).status(64).stderr(pages).run();
    let done =
        sandbox.script("bash", "csalock completions bash | head -n 1; csalock man > /dev/full; echo $?").capture();
    assert_eq!(done.stdout, "_csalock() {\n74\n", "{done:?}");
    assert!(!sandbox.store_exists());
}

#[test]
fn a_program_of_the_host_shows_the_manual_on_a_terminal() {
    let sandbox = Sandbox::new(Kind::Directory);
    if !has("script") {
        return;
    }
    let on_terminal = |bin: &str| {
        let path = sandbox.path(bin);
        let text = format!("PATH={} {} man lock", path.display(), sandbox.path("bin/csalock").display());
        let done = sandbox.call("script", ["-qec", &text, "/dev/null"]).capture();
        assert_eq!(done.code, Some(0), "{done:?}");
        done.stdout.replace('\r', "")
    };
    let first = |text: &str| text.lines().take(2).map(String::from).collect::<Vec<_>>();
    for bin in ["man-db", "other-man", "none"] {
        std::fs::create_dir(sandbox.path(bin)).unwrap();
    }
    let shows = |name: &str| format!("#!/bin/sh\necho \"{name} $*\"\nexec /bin/cat\n");
    let man_db = format!("#!/bin/sh\n[ \"$1\" != --version ] || {{ echo man 2.12.1; exit; }}\n{}", &shows("man")[10..]);
    sandbox.program("man-db/man", man_db);
    sandbox.program("other-man/man", "#!/bin/sh\necho unknown option >&2; exit 1\n");
    let page = file("man/csalock-lock.1");
    let title = page.lines().next().unwrap();
    assert_eq!(first(&on_terminal("man-db")), ["man -l -", title]);
    let plain = sandbox.csalock(["man", "lock"]).capture().stdout;
    assert_eq!(plain, file("man/text/csalock-lock.1.txt"));
    assert_eq!((on_terminal("other-man"), on_terminal("none")), (plain.clone(), plain));
}
