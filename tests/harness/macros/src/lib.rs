//! `#[test]`, which registers a function with the harness instead of with the compiler's own; and the examples of the
//! documentation as tests.

#![allow(clippy::disallowed_methods, reason = "cargo tells the place of the package in the environment")]

use std::path::{Path, PathBuf};

use proc_macro::{Delimiter, Group, Ident, TokenStream, TokenTree};

/// Registers the function. The harness knows `#[ignore = "reason"]`: other tests start that function in a process.
#[proc_macro_attribute]
pub fn test(_: TokenStream, item: TokenStream) -> TokenStream {
    let tokens: Vec<TokenTree> = item.into_iter().collect();
    let is_fn = |token: &TokenTree| matches!(token, TokenTree::Ident(word) if word.to_string() == "fn");
    let Some(TokenTree::Ident(name)) =
        tokens.iter().position(is_fn).and_then(|keyword| tokens.get(keyword + 1)).cloned()
    else {
        return "compile_error! { \"this attribute is for functions\" }".parse().expect("it is Rust");
    };
    let ignored = tokens.iter().position(is_ignore);
    let mut function = tokens;
    if let Some(place) = ignored {
        // The mark of the attribute comes before it.
        function.drain(place - 1..=place);
    }
    function.into_iter().chain(registration(name, ignored.is_some())).collect()
}

fn is_ignore(token: &TokenTree) -> bool {
    let TokenTree::Group(group) = token else { return false };
    group.delimiter() == Delimiter::Bracket
        && group.stream().into_iter().next().is_some_and(|word| word.to_string() == "ignore")
}

fn registration(name: Ident, is_part: bool) -> TokenStream {
    let call: TokenStream = "::harness::register!".parse().expect("it is Rust");
    let kind: TokenStream = format!(", {is_part}").parse().expect("it is Rust");
    let arguments = [TokenTree::from(name)].into_iter().chain(kind).collect();
    call.into_iter().chain([TokenTree::from(Group::new(Delimiter::Brace, arguments))]).collect()
}

/// Makes a test of each example in Rust in the documentation of the sources below this directory of the package.
#[proc_macro]
pub fn examples_in(directory: TokenStream) -> TokenStream {
    let package = std::env::var("CARGO_MANIFEST_DIR").expect("cargo tells the place of the package");
    let directory = directory.to_string();
    let mut files = Vec::new();
    find_sources(&Path::new(&package).join(directory.trim_matches('"')), &mut files);
    files.sort();
    let tests = files.iter().flat_map(|file| {
        let text = std::fs::read_to_string(file).expect("a source is UTF-8");
        let place = file.strip_prefix(&package).expect("it is below the package").display().to_string();
        let place = place.replace(|char: char| !char.is_ascii_alphanumeric(), "_");
        examples(&text).into_iter().map(move |(line, code)| {
            format!("#[test] fn {place}_line_{line}() {{ ::harness::check((|| {{ {code} }})()) }}\n")
        })
    });
    tests.collect::<String>().parse().expect("an example is Rust")
}

fn find_sources(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("the sources are there") {
        let path = entry.expect("a directory can be read").path();
        if path.is_dir() {
            find_sources(&path, files);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            files.push(path);
        }
    }
}

fn examples(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut fence = None;
    for (number, line) in text.lines().enumerate() {
        let Some(line) = line.trim_start().strip_prefix("//").and_then(|rest| rest.strip_prefix(['/', '!'])) else {
            fence = None;
            continue;
        };
        let line = line.strip_prefix(' ').unwrap_or(line);
        match (fence, line.strip_prefix("```")) {
            (None, Some(language)) => {
                fence = Some(matches!(language, "" | "rust"));
                if fence == Some(true) {
                    found.push((number + 2, String::new()));
                }
            }
            (Some(_), Some(_)) => fence = None,
            (Some(true), None) => {
                // Lines with this mark are hidden from readers.
                let code = line.strip_prefix("# ").unwrap_or(line);
                found.last_mut().expect("a fence began it").1.extend([code, "\n"]);
            }
            _ => {}
        }
    }
    found
}
