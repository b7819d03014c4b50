//! `csalock man` and `csalock completions`: they print files that the program carries, a page of the manual as plain text
//! if no program of the host shows it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::fs::{MemfdFlags, memfd_create};

use super::context::print;
use crate::cli::{Completions, Man, Shell};
use crate::environment::Environment;
use crate::error::{Error, ErrorKind};
use crate::exit::Exit;
use crate::name::shell_quote;

pub(super) fn man(asked: &Man) -> anyhow::Result<Exit> {
    let wanted = asked.page.as_deref().unwrap_or("csalock");
    let page = find(wanted).ok_or_else(|| unknown(wanted))?;
    if asked.roff {
        print(page)?;
        return Ok(Exit::Done);
    }
    if std::io::stdout().is_terminal() {
        show(page);
    }
    print(PlainText::of(page))?;
    Ok(Exit::Done)
}

/// Returns the page of a command, the page with this name, with or without its section, or csalock(7) for `7`.
fn find(wanted: &str) -> Option<&'static str> {
    let is_it = |file: &str| {
        let page = file.rsplit_once('.').map_or(file, |(page, _)| page);
        let short = [page.strip_prefix("csalock-"), file.strip_prefix("csalock.")];
        file == wanted || page == wanted || short.contains(&Some(wanted))
    };
    let text = text(man_pages::ALL, is_it)?;
    // The page of another name of a command consists of a reference.
    match text.strip_prefix(".so man1/") {
        Some(file) => find(file.trim()),
        None => Some(text),
    }
}

fn unknown(wanted: &str) -> Error {
    let files = man_pages::ALL.iter();
    let pages: Vec<&str> = files.map(|(file, _)| file.trim_end_matches(".1").trim_start_matches("csalock-")).collect();
    let what = format!("the manual has no page {}", shell_quote(wanted.as_bytes()));
    Error::new(ErrorKind::InvalidInput, what, format!("use one of: {}", pages.join(", ")))
}

/// Becomes the program that shows the page. Returns if this host has none.
fn show(page: &str) {
    let Ok(source) = open(page) else { return };
    // Other programs named man do not read stdin.
    let version = Command::new("man").arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let is_man_db = version.is_ok_and(|done| done.status.success() && done.stdout.starts_with(b"man "));
    if let Ok(source) = source.try_clone()
        && is_man_db
    {
        let _ = Command::new("man").args(["-l", "-"]).stdin(source).exec();
    }
    let mut mandoc = Command::new("mandoc");
    // mandoc does not look which pager there is.
    if let Some(pager) = pager() {
        mandoc.arg("-a").env("PAGER", pager);
    }
    let _ = mandoc.stdin(source).exec();
}

fn pager() -> Option<OsString> {
    let is_there = |name: &&str| std::env::split_paths(&Environment::path()).any(|folder| folder.join(name).is_file());
    Environment::pager().or_else(|| ["less", "more"].into_iter().find(is_there).map(OsString::from))
}

/// Returns the page as an open file without a name: man-db may change its user, and then could not open a file of ours.
fn open(page: &str) -> std::io::Result<File> {
    let mut file = File::from(memfd_create("csalock-man", MemfdFlags::CLOEXEC)?);
    file.write_all(page.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Width of a page as plain text, in columns.
const WIDTH: usize = 78;

/// Columns by which text is indented below a heading, and the text of an entry below its tag.
const INDENT: usize = 7;

/// A page as plain text. It knows the requests of man(7) that our pages use.
#[derive(Default)]
struct PlainText {
    text: String,
    /// The tag and the words of the paragraph that is not written yet.
    tag: String,
    words: String,
    /// Indentation of the tag, and of the words.
    margin: usize,
    indent: usize,
    wants_tag: bool,
    as_typed: bool,
}

impl PlainText {
    fn of(page: &str) -> String {
        let mut plain = PlainText::default();
        for line in page.lines().map(unescaped) {
            match line.strip_prefix('.') {
                Some(request) => plain.add_request(request.split_once(' ').unwrap_or((request, ""))),
                None => plain.add(&line),
            }
        }
        plain.flush();
        plain.text
    }

    fn add_request(&mut self, (request, words): (&str, &str)) {
        let words = arguments(words);
        match request {
            "TH" => {}
            "SH" | "SS" => {
                self.begin(INDENT, INDENT);
                let indent = if request == "SS" { "   " } else { "" };
                self.write(&format!("{indent}{}", words.join(" ")));
            }
            "PP" => self.begin(self.margin, self.margin),
            "TP" => {
                self.begin(self.margin, self.margin + INDENT);
                self.wants_tag = true;
            }
            "IP" => {
                let indent = words.get(1).and_then(|indent| indent.parse().ok()).unwrap_or(INDENT);
                self.begin(self.margin, self.margin + indent);
                self.tag = words.first().cloned().unwrap_or_default();
            }
            // Our pages do not nest these.
            "RS" => self.begin(2 * INDENT, 2 * INDENT),
            "RE" => self.begin(INDENT, INDENT),
            "EX" | "EE" => {
                self.flush();
                self.as_typed = request == "EX";
            }
            "br" => self.flush(),
            "B" | "I" => self.add(&words.join(" ")),
            // Two fonts in turn, without a space between them.
            _ => self.add(&words.concat()),
        }
    }

    /// Begins a paragraph. No empty line follows a heading, or another empty line.
    fn begin(&mut self, margin: usize, indent: usize) {
        self.flush();
        if self.text.rsplit('\n').nth(1).is_some_and(|last| last.starts_with("    ")) {
            self.text.push('\n');
        }
        (self.margin, self.indent) = (margin, indent);
    }

    fn add(&mut self, text: &str) {
        if std::mem::take(&mut self.wants_tag) {
            self.tag = text.to_string();
        } else if self.as_typed {
            self.write(&format!("{:width$}{text}", "", width = self.indent));
        } else {
            self.words = format!("{} {text}", self.words);
        }
    }

    /// Writes the paragraph, if there is one. Its text begins on a line of its own if the tag reaches into it.
    fn flush(&mut self) {
        let (words, tag) = (std::mem::take(&mut self.words), std::mem::take(&mut self.tag));
        let (margin, indent) = (self.margin, self.indent);
        let tag = tag.split_whitespace().map(|word| (word, margin));
        let (mut line, mut last) = (String::new(), margin);
        for (word, indent) in tag.chain(words.split_whitespace().map(|word| (word, indent))) {
            let is_long = line.len() > indent && line.len() + 1 + word.len() > WIDTH;
            if is_long || (indent != last && line.len() >= indent) {
                self.write(&std::mem::take(&mut line));
            }
            let space = if line.len() > indent { " " } else { "" };
            line = format!("{line:indent$}{space}{word}");
            last = indent;
        }
        if !line.is_empty() {
            self.write(&line);
        }
    }

    fn write(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }
}

/// Returns the arguments of a request: words, or texts in quotes, in which two quotes are one.
fn arguments(text: &str) -> Vec<String> {
    let text = text.replace("\"\"", "\u{1}");
    let mut is_quoted = false;
    let words = text.split(|character| {
        is_quoted ^= character == '"';
        character == ' ' && !is_quoted
    });
    words.map(|word| word.replace('"', "").replace('\u{1}', "\"")).collect()
}

fn unescaped(text: &str) -> String {
    let fonts = ["\\fB", "\\fI", "\\fR", "\\&"].map(|escape| (escape, ""));
    let characters = [("\\-", "-"), ("\\(aq", "'"), ("\\[aq]", "'"), ("\\(bu", "o"), ("\\e", "\\")];
    fonts.iter().chain(&characters).fold(text.to_string(), |text, (escape, plain)| text.replace(escape, plain))
}

pub(super) fn completions(asked: &Completions) -> anyhow::Result<Exit> {
    let file = match asked.shell {
        Shell::Bash => "csalock.bash",
        Shell::Zsh => "_csalock",
        Shell::Fish => "csalock.fish",
    };
    print(text(completion_files::ALL, |name| name == file).unwrap_or_default())?;
    Ok(Exit::Done)
}

mod man_pages {
    include!(concat!(env!("OUT_DIR"), "/man.rs"));
}

mod completion_files {
    include!(concat!(env!("OUT_DIR"), "/completions.rs"));
}

fn text(files: &'static [(&str, &[u8])], is_it: impl Fn(&str) -> bool) -> Option<&'static str> {
    let (_, bytes) = files.iter().find(|(name, _)| is_it(name))?;
    std::str::from_utf8(bytes).ok()
}
