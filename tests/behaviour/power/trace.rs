//! The effects of a program on the files below a place, as strace(1) saw them.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// A call that changes files and names, that waits for the disk, or by which a script prints: a chdir(2) to nowhere.
pub(super) const CALLS: &str = "trace=openat,?open,?creat,?mkdir,mkdirat,?mknod,mknodat,?rename,renameat,?renameat2,?unlink,\
    unlinkat,?rmdir,?link,linkat,?symlink,symlinkat,write,pwrite64,writev,pwritev,?pwritev2,ftruncate,?truncate,fallocate,\
    copy_file_range,?sendfile,fsync,fdatasync,syncfs,?sync,chdir";

/// A call that succeeded, with paths below the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Call {
    Create(PathBuf),
    MakeDirectory(PathBuf),
    Rename(PathBuf, PathBuf),
    /// Each of two names gets the file of the other.
    Exchange(PathBuf, PathBuf),
    Remove(PathBuf),
    /// `None`: at the end.
    Write(PathBuf, Option<u64>, Vec<u8>),
    Truncate(PathBuf, u64),
    Sync(PathBuf),
    Say(String),
}

/// An argument of a call, as strace writes it with `-y -xx`.
#[derive(Debug, Clone)]
enum Argument {
    /// A descriptor, or the current directory, with its path.
    At(PathBuf),
    Bytes(Vec<u8>),
    Word(String),
}

/// The calls in a trace that concern what is below `around`, and what was said.
pub(super) fn calls(trace: &str, around: &Path) -> Vec<Call> {
    let mut begun: BTreeMap<&str, &str> = BTreeMap::new();
    let mut calls = Vec::new();
    for line in trace.lines() {
        let (pid, rest) = line.split_once(' ').unwrap();
        let rest = rest.trim_start();
        if let Some(first) = rest.strip_suffix(" <unfinished ...>") {
            begun.insert(pid, first);
        } else if let Some((_, second)) = rest.strip_prefix("<... ").and_then(|rest| rest.split_once(" resumed>")) {
            let first = begun.remove(pid).unwrap();
            calls.extend(call(&format!("{first}{second}"), around));
        } else {
            calls.extend(call(rest, around));
        }
    }
    calls
}

fn call(line: &str, around: &Path) -> Option<Call> {
    let (name, rest) = line.split_once('(')?;
    let (arguments, result) = rest.rsplit_once(" = ")?;
    let arguments: Vec<Argument> = arguments.trim_end().strip_suffix(')')?.split(", ").map(argument).collect();
    if name == "chdir" {
        let said = path_in(Path::new("/"), &arguments[0])?;
        return Some(Call::Say(said.strip_prefix("/said/").ok()?.to_str()?.to_string()));
    }
    let failed = result.starts_with('-') || result.starts_with('?');
    let below = |path: PathBuf| path.strip_prefix(around).ok().map(Path::to_path_buf);
    // Paths come with a descriptor before them, or alone.
    let mut paths = Vec::new();
    let mut at = PathBuf::from("/");
    for argument in &arguments {
        match argument {
            Argument::At(path) => at.clone_from(path),
            Argument::Bytes(_) if name.contains("write") => {}
            Argument::Bytes(_) => paths.push(path_in(&at, argument)?),
            Argument::Word(_) => {}
        }
    }
    let word = |number: usize| match &arguments[number] {
        Argument::Word(word) => word.clone(),
        other => panic!("{other:?} in {line}"),
    };
    if failed {
        return None;
    }
    let found = match name {
        // musl uses the first of them.
        "open" | "openat" => {
            let flags = word(if name == "open" { 1 } else { 2 });
            match flags.contains("O_TMPFILE") {
                false if flags.contains("O_TRUNC") => Call::Truncate(below(paths.pop()?)?, 0),
                false if flags.contains("O_CREAT") => Call::Create(below(paths.pop()?)?),
                _ => return None,
            }
        }
        "mknod" | "mknodat" => Call::Create(below(paths.pop()?)?),
        "mkdir" | "mkdirat" => Call::MakeDirectory(below(paths.pop()?)?),
        "rename" | "renameat" | "renameat2" => {
            let (to, from) = (below(paths.pop()?)?, below(paths.pop()?)?);
            match arguments.last() {
                Some(Argument::Word(flags)) if flags.contains("RENAME_EXCHANGE") => Call::Exchange(from, to),
                _ => Call::Rename(from, to),
            }
        }
        "unlink" | "unlinkat" | "rmdir" => Call::Remove(below(paths.pop()?)?),
        "write" | "pwrite64" => {
            let (Argument::At(path), Argument::Bytes(bytes)) = (&arguments[0], &arguments[1]) else { return None };
            let offset = (name == "pwrite64").then(|| word(3).parse().unwrap());
            let written: usize = result.parse().unwrap();
            Call::Write(below(path.clone())?, offset, bytes[..written].to_vec())
        }
        "ftruncate" => {
            let Argument::At(path) = &arguments[0] else { return None };
            Call::Truncate(below(path.clone())?, word(1).parse().unwrap())
        }
        "fsync" | "fdatasync" => {
            let Argument::At(path) = &arguments[0] else { return None };
            Call::Sync(below(path.clone())?)
        }
        other => panic!("{other} is not expected: {line}"),
    };
    Some(found)
}

fn argument(text: &str) -> Argument {
    let text = text.trim();
    if let Some((descriptor, path)) = text.split_once('<')
        && (descriptor == "AT_FDCWD" || descriptor.bytes().all(|byte| byte.is_ascii_digit()))
    {
        return Argument::At(PathBuf::from(String::from_utf8(unescaped(path.trim_end_matches(">(deleted)"))).unwrap()));
    }
    match text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
        Some(bytes) => Argument::Bytes(unescaped(bytes)),
        None => Argument::Word(text.to_string()),
    }
}

fn unescaped(text: &str) -> Vec<u8> {
    text.split("\\x").skip(1).map(|hex| u8::from_str_radix(&hex[..2], 16).unwrap()).collect()
}

fn path_in(at: &Path, name: &Argument) -> Option<PathBuf> {
    let Argument::Bytes(name) = name else { return None };
    let joined = at.join(std::str::from_utf8(name).ok()?);
    Some(joined.components().filter(|part| *part != Component::CurDir).collect())
}
