//! The files that the program carries: its manual and completions.

/// The pages of the manual, by the names of their files.
pub(super) mod man {
    include!(concat!(env!("OUT_DIR"), "/man.rs"));
}

/// The completions, by the names of their files.
pub(super) mod completions {
    include!(concat!(env!("OUT_DIR"), "/completions.rs"));
}

pub(super) fn text(files: &'static [(&str, &[u8])], is_it: impl Fn(&str) -> bool) -> Option<&'static str> {
    let (_, bytes) = files.iter().find(|(name, _)| is_it(name))?;
    std::str::from_utf8(bytes).ok()
}
