//! Man pages: title, synopsis, options and commands by clap_mangen; exit status from the program's own table; the rest from
//! `man/sections/`. csalock(7) and csaLock(1) have no options and come from there as a whole.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command as Process;

use clap::Command;
use clap_mangen::Man;
use csalock::exit::Exit;

use harness::has;

use super::{definition, in_project};

/// The day of the last change that a reader would notice.
const DATE: &str = "2026-11-23";

/// The codes of errors that any change of a store can end with, and those of reading one.
const STORE: [u8; 7] = [65, 69, 70, 71, 73, 74, 77];
const READ: [u8; 6] = [65, 69, 70, 71, 74, 77];

/// Maximum number of lines of csalock(1), as it is written and as it is shown.
const LONGEST: usize = 300;

/// Every page: its path and its text.
pub(super) fn pages() -> Vec<(String, String)> {
    full_pages().into_iter().chain(links()).collect()
}

/// The pages under the other names of commands: each refers to the command's page.
fn links() -> Vec<(String, String)> {
    let root = definition();
    let of = |command: &Command| {
        let page = page_name(command);
        let text = format!(".so man1/{page}.1\n");
        let names = command.get_name_and_visible_aliases().into_iter().map(|name| format!("csalock-{name}"));
        let others = names.filter(|name| *name != page).map(|name| (path(&name), text.clone()));
        others.collect::<Vec<_>>()
    };
    let unlock = (path("csaUnlock"), ".so man1/csaLock.1\n".to_string());
    root.get_subcommands().flat_map(of).chain([unlock]).collect()
}

fn full_pages() -> Vec<(String, String)> {
    let root = definition().subcommand_help_heading("COMMANDS");
    let mut pages = vec![(path(root.get_name()), page(&root, root.get_name(), "csalock.1"))];
    for command in root.get_subcommands() {
        let name = page_name(command);
        pages.push((path(&name), page(command, &name, &name)));
    }
    let concepts = written(Man::new(Command::new("csalock")).section("7"), "Concepts", "csalock.7");
    let csa = written(Man::new(Command::new("csaLock")), "User Commands", "csaLock");
    pages.extend([("man/csalock.7".to_string(), concepts), (path("csaLock"), csa)]);
    pages
}

fn page_name(command: &Command) -> String {
    format!("csalock-{}", command.get_name())
}

fn path(page: &str) -> String {
    format!("man/{page}.1")
}

fn titled(man: Man, name: &str, manual: &str) -> Man {
    man.title(name).date(DATE).source(format!("csalock {}", env!("CARGO_PKG_VERSION"))).manual(manual)
}

/// A page without options.
fn written(man: Man, manual: &str, file: &str) -> String {
    let mut roff = Vec::new();
    // The title of csaLock(1) has its capital, because csalock(1) is another page.
    let name = file.split('.').next().unwrap();
    let name = if file == "csaLock" { name.to_string() } else { name.to_uppercase() };
    titled(man, &name, manual).render_title(&mut roff).unwrap();
    roff.extend(sections(file).into_bytes());
    tidied(&String::from_utf8(roff).unwrap())
}

fn page(command: &Command, name: &str, file: &str) -> String {
    // What the short help leaves out is without text in clap_mangen, too.
    let command = &command.clone().mut_args(|argument| argument.hide_short_help(false));
    let man = titled(Man::new(command.clone()), &name.to_uppercase(), "User Commands");
    let mut roff = Vec::new();
    man.render_title(&mut roff).unwrap();
    man.render_name_section(&mut roff).unwrap();
    man.render_synopsis_section(&mut roff).unwrap();
    man.render_description_section(&mut roff).unwrap();
    if command.has_subcommands() {
        man.render_subcommands_section(&mut roff).unwrap();
    }
    roff.extend(options(&man).into_bytes());
    roff.extend(sections(file).into_bytes());
    tidied(&String::from_utf8(roff).unwrap())
}

/// The options. Their groups are sections to clap_mangen, and here parts of one section.
fn options(man: &Man) -> String {
    let mut roff = Vec::new();
    man.render_options_section(&mut roff).unwrap();
    let text = String::from_utf8(roff).unwrap();
    let grouped = text.lines().map(|line| match line.strip_prefix(".SH ") {
        Some("OPTIONS") | None => format!("{line}\n"),
        Some(title) => format!(".SS {}{}\n", &title[..1], title[1..].to_lowercase()),
    });
    let grouped: String = grouped.collect();
    match grouped.contains(".SH OPTIONS\n") {
        true => grouped,
        false => format!(".SH OPTIONS\n{grouped}"),
    }
}

/// The written part of a page, with the lists that its lines between `@` ask for.
fn sections(file: &str) -> String {
    let text = fs::read_to_string(in_project(&format!("man/sections/{file}.roff"))).unwrap();
    let filled = |line: &str| match line.strip_prefix('@').and_then(|line| line.strip_suffix('@')) {
        Some(words) if words.starts_with("EXIT ") => exit_rows(&words["EXIT ".len()..]),
        Some(words) => see_also(words.strip_prefix("SEE").unwrap()),
        None => format!("{line}\n"),
    };
    text.lines().map(filled).collect()
}

/// References to the pages that every command has in common, and to these.
fn see_also(pages: &str) -> String {
    let common = ".BR csalock (1),\n.BR csalock (7),\n".to_string();
    let others = pages.split_whitespace().map(|page| format!(".BR {} (1),\n", page.replace('-', "\\-")));
    std::iter::once(common).chain(others).collect()
}

/// The rows of the table for the codes that are named, `STORE` and `READ` among them; `ALL` names every code.
fn exit_rows(wanted: &str) -> String {
    let codes = |word: &str| match word {
        "ALL" => Exit::ALL.iter().map(|(_, code, _)| *code).collect(),
        "STORE" => STORE.to_vec(),
        "READ" => READ.to_vec(),
        code => vec![code.parse().unwrap()],
    };
    let wanted: BTreeSet<u8> = wanted.split(' ').flat_map(codes).collect();
    let rows: Vec<String> = Exit::ALL
        .iter()
        .filter(|(_, code, _)| wanted.contains(code))
        .map(|(_, code, text)| format!(".TP\n.B {code}\n{}\n", text.replace('-', "\\-")))
        .collect();
    assert_eq!(rows.len(), wanted.len(), "there is no such exit code");
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
    if text.ends_with("),") {
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
    require!(has("mandoc"));
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("man")).unwrap();
    for (path, text) in full_pages() {
        fs::write(folder.path().join(&path), text).unwrap();
        let done = Process::new("mandoc").arg("-Tlint").arg(&path).current_dir(&folder).output().unwrap();
        let said = String::from_utf8(done.stdout).unwrap();
        let mut said =
            said.lines().filter(|line| !line.ends_with("lower case character in document title: TH csaLock"));
        assert_eq!(said.next(), None, "{path}");
    }
}

/// The pages as plain text: their paths and texts, without header and footer.
fn plain_pages() -> Vec<(String, String)> {
    let folder = tempfile::tempdir().unwrap();
    let plain = |(path, text): (String, String)| {
        let file = path.strip_prefix("man/").unwrap();
        fs::write(folder.path().join(file), text).unwrap();
        let mut mandoc = Process::new("mandoc");
        let done = mandoc.args(["-Tascii", "-Owidth=78,indent=4", file]).current_dir(&folder).output().unwrap();
        let lines = String::from_utf8(done.stdout).unwrap();
        let lines: Vec<String> = lines.lines().map(without_overstrikes).collect();
        (format!("man/text/{file}.txt"), lines[1..lines.len() - 1].join("\n").trim_matches('\n').to_string() + "\n")
    };
    full_pages().into_iter().map(plain).collect()
}

/// A formatted line repeats a bold letter after a backspace, and puts an underline before one.
fn without_overstrikes(line: &str) -> String {
    let mut text = String::new();
    for character in line.chars() {
        if character == '\u{8}' {
            text.pop();
        } else {
            text.push(character);
        }
    }
    text
}

/// Versions of mandoc may break lines elsewhere.
#[test]
fn the_plain_pages_have_the_words_of_the_formatted_ones() {
    require!(has("mandoc"));
    let bless = std::env::var_os("CSALOCK_BLESS").is_some();
    let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
    let mut files: BTreeSet<String> = fs::read_dir(in_project("man/text"))
        .unwrap()
        .map(|entry| format!("man/text/{}", entry.unwrap().file_name().to_str().unwrap()))
        .collect();
    for (path, plain) in plain_pages() {
        if bless {
            fs::write(in_project(&path), &plain).unwrap();
        }
        files.remove(&path);
        let kept = fs::read_to_string(in_project(&path)).unwrap_or_default();
        assert_eq!(words(&kept), words(&plain), "{path} is out of date: CSALOCK_BLESS=1 cargo test --test docs");
        let wide: Vec<&str> = kept.lines().filter(|line| line.len() > 100 || line.ends_with(' ')).collect();
        assert!(wide.is_empty(), "{path}: {wide:#?}");
    }
    assert!(files.is_empty(), "made from nothing any more; remove {files:?}");
}

/// The example of csalock-man(1) installs each page under its own name.
#[test]
fn all_pages_can_be_installed_as_the_manual_says() {
    let page = text_of("csalock-man.1");
    let (_, example) = page.split_once("\n.EX\nmkdir ").unwrap();
    let script = format!("mkdir {}", example.split("\n.EE").next().unwrap()).replace("\\e", "\\").replace("\\-", "-");
    let home = tempfile::tempdir().unwrap();
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_csalock")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut shell = Process::new("sh");
    let done = shell.args(["-euc", &script]).env("HOME", home.path()).env("PATH", path).output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    for (page, _) in full_pages() {
        let file = page.strip_prefix("man/").unwrap();
        let folder = if file.ends_with(".7") { "man7" } else { "man1" };
        let installed = fs::read_to_string(home.path().join(".local/share/man").join(folder).join(file));
        assert_eq!(installed.expect(file), fs::read_to_string(in_project(&page)).unwrap(), "{file}");
    }
}

#[test]
fn csalock_1_is_short() {
    let (path, page) = &pages()[0];
    assert!(page.lines().count() <= LONGEST, "{path} has {} lines", page.lines().count());
    require!(has("mandoc"));
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("page"), page).unwrap();
    let done = Process::new("mandoc").args(["-Tascii", "-Owidth=80", "page"]).current_dir(&folder).output().unwrap();
    let shown = String::from_utf8(done.stdout).unwrap().lines().count();
    assert!(shown <= LONGEST, "{path} is shown in {shown} lines");
}

fn text_of(name: &str) -> String {
    pages().into_iter().find(|(path, _)| path == &format!("man/{name}")).unwrap().1
}

/// A page has the codes of its command only, so it need not refer to others.
#[test]
fn every_page_of_a_command_lists_its_exit_codes() {
    for command in definition().get_subcommands() {
        let page = text_of(&format!("{}.1", page_name(command)));
        let section = page.split(".SH EXIT STATUS\n").nth(1);
        let section = section.unwrap_or_else(|| panic!("{}", command.get_name())).split("\n.SH").next().unwrap();
        let codes =
            section.lines().filter(|line| line.strip_prefix(".B ").is_some_and(|code| code.parse::<u8>().is_ok()));
        assert!((3..Exit::ALL.len() - 2).contains(&codes.count()), "{}", command.get_name());
        assert!(!page.contains("The others are in"), "{}", command.get_name());
    }
}

#[test]
fn every_exit_code_is_in_the_manual() {
    let page = &pages()[0].1;
    let section = page.split(".SH EXIT STATUS").nth(1).unwrap().split("\n.SH").next().unwrap();
    for (exit, ..) in Exit::ALL {
        assert!(section.contains(&format!("\n.B {}\n", exit.code())), "{exit:?} is missing");
    }
}

#[test]
fn every_variable_and_command_is_in_the_manual() {
    let page = text_of("csalock.1");
    for command in definition().get_subcommands() {
        assert!(page.contains(&format!("{}(1)", page_name(command).replace('-', "\\-"))), "{}", command.get_name());
    }
    let all = [page, text_of("csalock.7"), text_of("csalock-run.1"), text_of("csaLock.1")].concat();
    let source = fs::read_to_string(in_project("crates/engine/src/environment.rs")).unwrap();
    let names = source.split("\"CSALOCK_").skip(1).map(|rest| {
        format!("CSALOCK_{}", rest.split(|char: char| !char.is_ascii_uppercase() && char != '_').next().unwrap())
    });
    let for_tests = ["CSALOCK_CLOCK", "CSALOCK_FILE_TIMES", "CSALOCK_TRACE", "CSALOCK_FIRST_PIDS"];
    let names: BTreeSet<String> = names.filter(|name| !for_tests.contains(&&name[..])).collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names.iter().map(String::as_str).chain(["XDG_STATE_HOME", "NO_COLOR"]) {
        assert!(all.contains(name), "{name}");
    }
}

#[test]
fn every_option_of_every_command_is_in_its_page() {
    for (command, page) in definition().get_subcommands().zip(pages().iter().skip(1)) {
        let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
        for option in shown.filter_map(|argument| argument.get_long()) {
            assert!(page.1.contains(&format!("\\-\\-{}", option.replace('-', "\\-"))), "{}: --{option}", page.0);
        }
        let lines: Vec<&str> = page.1.lines().collect();
        let has_no_text =
            |three: &&[&str]| three[0] == ".TP" && [".TP", ".SS", ".SH"].iter().any(|next| three[2].starts_with(next));
        assert_eq!(lines.windows(3).find(has_no_text), None, "{}", page.0);
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
    let store = format!("--store=dir:{}/store", folder.path().display());
    let words = ["run", &store, "--overdue", "1ms", "job", "true"];
    assert!(Process::new(env!("CARGO_BIN_EXE_csalock")).args(words).status().unwrap().success());
    let locked = std::fs::File::create(folder.path().join("locked")).unwrap();
    locked.lock().unwrap();
    let printed = [
        run("status", &[folder.path().join("locked").to_str().unwrap()]),
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
        run("overdue", &[]),
        run("lock", &["--forever", "job"]),
        run("status", &["job"]),
        run("doctor", &[]),
    ];
    let mut real = BTreeSet::new();
    for document in printed {
        fields(&serde_json::from_str(&document).unwrap(), &mut real);
    }
    let page = text_of("csalock.7");
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
