//! Man pages: title, options and commands by clap_mangen; synopsis and exit status from the program's own tables; the
//! rest from `man/sections/`.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command as Process;

use clap::Command;
use clap_mangen::Man;
use csalock::exit::Exit;

use super::{definition, have, in_project};

/// The day of the last change that a reader would notice.
const DATE: &str = "2026-11-21";

/// Every page: its path and its text.
pub(super) fn pages() -> Vec<(String, String)> {
    let root = definition().subcommand_help_heading("COMMANDS");
    let names: Vec<String> = root.get_subcommands().map(page_name).collect();
    let mut pages = vec![(path(root.get_name()), page(&root, root.get_name(), &names))];
    for command in root.get_subcommands() {
        let others: Vec<String> = names.iter().filter(|name| **name != page_name(command)).cloned().collect();
        let see: Vec<String> = std::iter::once("csalock".to_string()).chain(others).collect();
        pages.push((path(&page_name(command)), page(command, &page_name(command), &see)));
    }
    pages
}

fn page_name(command: &Command) -> String {
    format!("csalock-{}", command.get_name())
}

fn path(page: &str) -> String {
    format!("man/{page}.1")
}

fn page(command: &Command, name: &str, see: &[String]) -> String {
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .date(DATE)
        .source(format!("csalock {}", env!("CARGO_PKG_VERSION")))
        .manual("User Commands");
    let mut roff = Vec::new();
    man.render_title(&mut roff).unwrap();
    man.render_name_section(&mut roff).unwrap();
    roff.extend(synopsis(command).into_bytes());
    man.render_description_section(&mut roff).unwrap();
    if command.has_subcommands() {
        man.render_subcommands_section(&mut roff).unwrap();
    }
    man.render_options_section(&mut roff).unwrap();
    let sections = fs::read_to_string(in_project(&format!("man/sections/{name}.roff"))).unwrap();
    for line in sections.lines() {
        let text = match line.strip_prefix('@').and_then(|line| line.strip_suffix('@')) {
            Some("SEE") => see_also(see),
            Some(words) => exit_rows(words.strip_prefix("EXIT ").unwrap()),
            None => format!("{line}\n"),
        };
        roff.extend(text.into_bytes());
    }
    tidied(&String::from_utf8(roff).unwrap())
}

/// As `--help` has it.
fn synopsis(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").replace('-', "\\-");
    let name = command.get_bin_name().unwrap_or(command.get_name()).replace('-', "\\-");
    format!(".SH SYNOPSIS\n.B {name}\n{}\n", usage.trim_start_matches(&name).trim())
}

fn see_also(pages: &[String]) -> String {
    pages.iter().map(|page| format!(".BR {} (1),\n", page.replace('-', "\\-"))).collect()
}

/// `ALL`, or the numbers of the codes to be listed.
fn exit_rows(wanted: &str) -> String {
    let wanted: Option<Vec<u8>> =
        (wanted != "ALL").then(|| wanted.split(' ').map(|code| code.parse().unwrap()).collect());
    let is_wanted = |code: u8| wanted.as_ref().is_none_or(|wanted| wanted.contains(&code));
    let rows: Vec<String> = Exit::ALL
        .iter()
        .filter(|(exit, _)| is_wanted(exit.code()))
        .map(|(exit, text)| format!(".TP\n.B {}\n{}\n", exit.code(), text.replace('-', "\\-")))
        .collect();
    assert_eq!(rows.len(), wanted.map_or(Exit::ALL.len(), |wanted| wanted.len()), "there is no such exit code");
    rows.concat()
}

/// Each part that clap_mangen renders begins with the same definition, which no page needs. The last entry of SEE ALSO
/// needs no comma.
fn tidied(roff: &str) -> String {
    let lines = roff.lines().map(str::trim_end);
    let mut lines: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.contains("ds Aq")).collect();
    lines.dedup_by(|line, before| *line == ".br" && *before == ".br");
    // Text to be typed keeps the line breaks of its author.
    let mut as_typed = false;
    let mut in_lines = |line: &&str| {
        as_typed = if as_typed { *line != ".EE" } else { *line == ".EX" };
        if as_typed { line.to_string() } else { folded(line) }
    };
    let mut text = lines.iter().map(&mut in_lines).collect::<Vec<_>>().join("\n").replace("\\*(Aq", "\\(aq");
    if text.ends_with("(1),") {
        text.pop();
    }
    text.push('\n');
    text
}

/// Text in lines of at most 80 bytes.
fn folded(line: &str) -> String {
    if line.starts_with('.') {
        return line.to_string();
    }
    let mut text = String::new();
    let mut width = 0;
    for (at, word) in line.split(' ').enumerate() {
        // A period or a quote at the beginning of a line would make it a request.
        let breaks = width + word.len() >= 80 && !word.starts_with(['.', '\'']);
        width = if breaks { word.len() } else { width + 1 + word.len() };
        text.push_str(if at == 0 {
            ""
        } else if breaks {
            "\n"
        } else {
            " "
        });
        text.push_str(word);
    }
    text
}

#[test]
fn mandoc_finds_nothing_to_complain_about() {
    if !have("mandoc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("man")).unwrap();
    for (path, text) in pages() {
        fs::write(folder.path().join(&path), text).unwrap();
        let done = Process::new("mandoc").arg("-Tlint").arg(&path).current_dir(&folder).output().unwrap();
        assert!(done.status.success() && done.stdout.is_empty(), "{}", String::from_utf8_lossy(&done.stdout));
    }
}

#[test]
fn every_exit_code_is_in_the_manual() {
    let page = &pages()[0].1;
    let section = page.split(".SH EXIT STATUS").nth(1).unwrap().split("\n.SH").next().unwrap();
    for (exit, _) in Exit::ALL {
        assert!(section.contains(&format!("\n.B {}\n", exit.code())), "{exit:?} is missing");
    }
}

#[test]
fn every_variable_and_command_that_the_manual_shows_exists() {
    let page = &pages()[0].1;
    for command in definition().get_subcommands() {
        assert!(page.contains(&format!("{}(1)", page_name(command).replace('-', "\\-"))), "{}", command.get_name());
    }
    for name in [
        "CSALOCK_STORE",
        "CSALOCK_HANDLE",
        "CSALOCK_NAME",
        "CSALOCK_TOKEN",
        "CSALOCK_HISTORY",
        "CSALOCK_HISTORY_SIZE",
        "CSALOCK_HISTORY_AGE",
        "XDG_STATE_HOME",
        "NO_COLOR",
    ] {
        assert!(page.contains(name), "{name}");
    }
}

#[test]
fn every_option_of_every_command_is_in_its_page() {
    for (command, page) in definition().get_subcommands().zip(pages().iter().skip(1)) {
        for option in command.get_arguments().filter_map(|argument| argument.get_long()) {
            assert!(page.1.contains(&format!("\\-\\-{}", option.replace('-', "\\-"))), "{}: --{option}", page.0);
        }
    }
}

#[test]
fn the_json_documents_have_just_the_fields_that_the_manual_shows() {
    let folder = tempfile::tempdir().unwrap();
    let run = |command: &str, arguments: &[&str]| {
        let mut process = Process::new(env!("CARGO_BIN_EXE_csalock"));
        process.arg(command).arg("--json").arg(format!("--store=dir:{}/store", folder.path().display()));
        String::from_utf8(process.args(arguments).output().unwrap().stdout).unwrap()
    };
    let printed = [
        run("lock", &["--forever", "name"]),
        run("status", &["name"]),
        run("unlock", &["--force", "name"]),
        run("history", &["name"]),
        run("put", &["guarded", "value"]),
        run("status", &["guarded"]),
        run("get", &["--lock", "--forever", "guarded"]),
        run("claim", &["--id", "1", "claimed"]),
        run("lookup", &["claimed"]),
        run("claim", &["--id", "2", "claimed"]),
        run("unlock", &["none"]),
        run("doctor", &[]),
    ];
    let mut real = BTreeSet::new();
    for document in printed {
        fields(&serde_json::from_str(&document).unwrap(), &mut real);
    }
    let page = &pages()[0].1;
    let section = page.split(".SH JSON").nth(1).unwrap().split("\n.SH").next().unwrap();
    let before_colons = section.rsplit_once("\":").unwrap().0.split("\":");
    let shown: BTreeSet<String> = before_colons.map(|text| text.rsplit('"').next().unwrap().to_string()).collect();
    assert_eq!(shown, real);
}

fn fields(value: &serde_json::Value, found: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Array(values) => values.iter().for_each(|value| fields(value, found)),
        serde_json::Value::Object(members) => {
            for (name, value) in members {
                found.insert(name.clone());
                fields(value, found);
            }
        }
        _ => {}
    }
}
