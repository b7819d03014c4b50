//! `csalock man` and `csalock completions`: they print files that the program carries. A page of the manual is there as
//! plain text, too, for a pipe and for a host without man(1).

use std::fs::File;
use std::io::{IsTerminal, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::fs::{MemfdFlags, memfd_create};

use super::context::print;
use crate::cli::{Completions, Man, Shell};
use crate::error::{Error, ErrorKind};
use crate::exit::Exit;
use crate::name::shell_quote;

pub(super) fn man(options: &Man) -> anyhow::Result<Exit> {
    let wanted = options.page.as_deref().unwrap_or("csalock");
    let (file, page) = find(wanted).ok_or_else(|| unknown(wanted))?;
    if options.roff {
        print(page)?;
        return Ok(Exit::Done);
    }
    if std::io::stdout().is_terminal() {
        show(page);
    }
    let plain = format!("{file}.txt");
    print(text(plain_pages::ALL, |name| name == plain).map_or(page, |(_, plain)| plain))?;
    Ok(Exit::Done)
}

/// `wanted` is a command, a page with or without its section, or `7` for csalock(7).
fn find(wanted: &str) -> Option<(&'static str, &'static str)> {
    let is_it = |file: &str| {
        let page = file.rsplit_once('.').map_or(file, |(page, _)| page);
        let short = [page.strip_prefix("csalock-"), file.strip_prefix("csalock.")];
        file == wanted || page == wanted || short.contains(&Some(wanted))
    };
    let (file, text) = text(man_pages::ALL, is_it)?;
    // The page of another name of a command consists of a reference.
    match text.strip_prefix(".so man1/") {
        Some(file) => find(file.trim()),
        None => Some((file, text)),
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
}

/// The file has no name: man-db may change its user, and then could not open a file of ours.
fn open(page: &str) -> std::io::Result<File> {
    let mut file = File::from(memfd_create("csalock-man", MemfdFlags::CLOEXEC)?);
    file.write_all(page.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

pub(super) fn completions(options: &Completions) -> anyhow::Result<Exit> {
    let file = match options.shell {
        Shell::Bash => "csalock.bash",
        Shell::Zsh => "_csalock",
        Shell::Fish => "csalock.fish",
    };
    print(text(completion_files::ALL, |name| name == file).map_or("", |(_, text)| text))?;
    Ok(Exit::Done)
}

mod man_pages {
    include!(concat!(env!("OUT_DIR"), "/man.rs"));
}

mod plain_pages {
    include!(concat!(env!("OUT_DIR"), "/man-text.rs"));
}

mod completion_files {
    include!(concat!(env!("OUT_DIR"), "/completions.rs"));
}

fn text(files: &'static [(&'static str, &[u8])], is_it: impl Fn(&str) -> bool) -> Option<(&'static str, &'static str)> {
    let (name, bytes) = files.iter().find(|(name, _)| is_it(name))?;
    Some((name, std::str::from_utf8(bytes).ok()?))
}
