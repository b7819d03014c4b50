//! The display of bytes that users chose: names, labels, commands and paths.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Formats a name, label or command for display: printable text is unchanged, and other bytes are escaped as in C.
pub fn escape(bytes: &[u8]) -> String {
    escape_some(bytes, |char| char == '\\', |char| char.escape_default().collect())
}

/// Escapes invisible and these `other` characters, and bytes that are not UTF-8.
fn escape_some(bytes: &[u8], other: impl Fn(char) -> bool, escape: impl Fn(char) -> String) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            if other(char) || is_invisible(char) {
                text.push_str(&escape(char));
            } else {
                text.push(char);
            }
        }
        text.extend(chunk.invalid().escape_ascii().map(char::from));
    }
    text
}

/// Returns true for control characters and for marks that reorder or hide text on a terminal.
pub fn is_invisible(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

pub fn shell_quote(bytes: &[u8]) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_./-+=@%:,".contains(byte);
    if !bytes.is_empty() && bytes.iter().all(plain) {
        return escape(bytes);
    }
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(is_invisible) => format!("'{}'", text.replace('\'', "'\\''")),
        _ => {
            // Byte by byte: the shells with this syntax disagree about code points.
            let of_bytes = |char: char| char.encode_utf8(&mut [0; 4]).as_bytes().escape_ascii().to_string();
            format!("$'{}'", escape_some(bytes, |char| matches!(char, '\\' | '\''), of_bytes))
        }
    }
}

pub fn escape_path(path: &Path) -> String {
    escape(path.as_os_str().as_bytes())
}
