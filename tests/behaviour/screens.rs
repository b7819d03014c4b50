//! What a person sees: the screens of one night, exactly, at 80 columns in docs/screens.md, and at 60 and 200 columns in
//! tests/behaviour/screens/. `CSALOCK_BLESS=1` writes them anew.

use std::path::Path;
use std::sync::Mutex;

use crate::sandbox::still::Still;
use crate::sandbox::{Kind, PROMPT, Sandbox};

/// The heading of each screen, and the command that shows it.
const SCREENS: [(&str, &str); 8] = [
    ("Which locks are held?", "csalock status"),
    ("Who holds this one, since when, and who waits?", "csalock status backup"),
    ("A lock whose holder is dead", "csalock status deploy"),
    ("Watching them", "csalock status --watch"),
    ("What happened before?", "csalock history"),
    ("Who held it then?", "csalock history --at 02:13"),
    ("Is this store all right?", "csalock doctor"),
    ("A refusal", "csalock run --nonblock backup ./backup-all"),
];

/// Scripts, each with its name.
const SCRIPTS: [(&str, &str); 9] = [
    ("nightly", "CSALOCK_CLOCK=$FROM csalock lock backup\n[ -z \"$TO\" ] || CSALOCK_CLOCK=$TO csalock unlock backup"),
    ("endless", "csalock lock --label 'a loop' backup\nexec sleep 1000"),
    ("repair", "csalock unlock --force backup"),
    ("deploy", "csalock lock deploy"),
    ("maintenance", "csalock lock --forever --label 'until the disk is replaced' cleanup"),
    ("import", "csalock lock --ttl 2h import\nexec sleep 1000"),
    ("backup-all", "exec sleep 1000"),
    ("report", "exec sleep 1000"),
    ("render", "exec sleep 1000"),
];

/// What happened in the last nights, and what is held at twenty-five past three.
fn scene(still: &mut Still<'_>, sandbox: &Sandbox) {
    for (name, text) in SCRIPTS {
        // A shell does not become its last command if there is another one.
        sandbox.program(&format!("files/{name}"), format!("#!/bin/sh\n{text}\n:\n"));
    }
    const DAY: i64 = 24 * 60;
    let offset = |minutes: i64| still.clock(minutes).split_once('=').unwrap().1.to_string();
    let [first, released, second] = [3 * DAY + 72, 3 * DAY + 10, 2 * DAY + 72].map(offset);
    let [broken, maintained, deployed] = [DAY - 245, DAY + 120, 105].map(|minutes| still.clock(minutes));
    still.run(&format!("FROM={first} TO={released} ./nightly > /dev/null"));
    still.run(&format!("FROM={second} ./nightly > /dev/null"));
    still.start(DAY + 72, "./endless", "/bin/sh ./endless");
    still.run(&format!("{broken} ./repair > /dev/null"));
    still.run(&format!("{maintained} ./maintenance > /dev/null"));
    for (minutes, options, command) in [
        (200, "--shared report", "./report --monthly"),
        (190, "--shared report", "./report --yearly"),
        (72, "--label nightly backup", "./backup-all --target web2:/srv/backup"),
        (65, "--timeout inf backup", "./copy-offsite --bandwidth 2M web2 web3"),
        (61, "--timeout inf --label 'release 1.2' backup", "./deploy"),
        (60, "--slots 3 thumbnails", "./render 1"),
        (60, "--slots 3 thumbnails", "./render 2"),
    ] {
        still.start(minutes, &format!("csalock run {options} {command}"), command);
    }
    still.run(&format!("{deployed} ./deploy > /dev/null"));
    still.start(85, "./import", "/bin/sh ./import");
}

fn screens(columns: u32) -> Option<String> {
    // The process ids of two machines would come from the same place.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock();
    let sandbox = Sandbox::new(Kind::Directory);
    let mut still = Still::new(&sandbox)?;
    scene(&mut still, &sandbox);
    let screen = still.screen(columns, 32)?;
    let mut text = String::new();
    for (heading, command) in SCREENS {
        screen.line("clear");
        screen.becomes("nothing but a prompt", |text| text == PROMPT);
        screen.line(command);
        let shown = if command.ends_with("--watch") {
            let shown = screen.shows(" locks, ");
            screen.keys("C-c");
            screen.done();
            format!("$ {command}\n{shown}")
        } else {
            screen.done().replacen(PROMPT, "$", 1)
        };
        text.push_str(&format!("\n## {heading}\n\n```text\n{}\n```\n", shown.trim_end()));
    }
    Some(still.plain(&text))
}

#[track_caller]
fn agrees(path: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("CSALOCK_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(known == text, "{} differs; CSALOCK_BLESS=1 writes it anew:\n{text}", path.display());
}

#[test]
fn at_80_columns_as_in_the_documentation() {
    let Some(screens) = screens(80) else { return };
    let head = "# Screens\n\nThe output of csalock on a terminal with 80 columns, at 03:25 in the night.\n";
    agrees("docs/screens.md", &format!("{head}{screens}"));
}

#[test]
fn at_60_columns() {
    screens(60).inspect(|screens| agrees("tests/behaviour/screens/60.md", screens));
}

#[test]
fn at_200_columns() {
    screens(200).inspect(|screens| agrees("tests/behaviour/screens/200.md", screens));
}
