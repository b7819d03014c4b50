//! Patterns for names: `*`, `?` and `[...]`, as in the shell, over bytes. Names are not paths, so `*` matches `/` too.

pub fn is_pattern(name: &[u8]) -> bool {
    lock::name::literal(name).is_none() && name.iter().any(|byte| b"*?[".contains(byte))
}

pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    // On a mismatch the last star takes a byte more: linear memory, and time at most the product of the lengths.
    let (mut at, mut on) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while on < name.len() {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at, on));
            at += 1;
        } else if let Some(next) = one(pattern, at, name[on]) {
            at = next;
            on += 1;
        } else if let Some((star_at, taken)) = star {
            star = Some((star_at, taken + 1));
            at = star_at + 1;
            on = taken + 1;
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Matches a single byte. Returns the index of the rest of the pattern, or `None`.
fn one(pattern: &[u8], at: usize, byte: u8) -> Option<usize> {
    match *pattern.get(at)? {
        b'?' => Some(at + 1),
        b'[' => match set(pattern, at + 1, byte) {
            Some((true, next)) => Some(next),
            Some((false, _)) => None,
            // A bracket without a closing bracket is an ordinary character.
            None => (byte == b'[').then_some(at + 1),
        },
        plain => (plain == byte).then_some(at + 1),
    }
}

fn set(pattern: &[u8], mut at: usize, byte: u8) -> Option<(bool, usize)> {
    let negated = matches!(pattern.get(at), Some(b'!' | b'^'));
    at += usize::from(negated);
    let first = at;
    let mut found = false;
    loop {
        match (*pattern.get(at)?, pattern.get(at + 1), pattern.get(at + 2)) {
            (b']', ..) if at > first => return Some((found != negated, at + 1)),
            (low, Some(b'-'), Some(high)) if *high != b']' => {
                found |= (low..=*high).contains(&byte);
                at += 3;
            }
            (plain, ..) => {
                found |= plain == byte;
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_match() {
        for (pattern, name) in [
            ("*", ""),
            ("a*c", "abbc"),
            ("a?c", "abc"),
            ("*.sh", "x/y.sh"),
            ("[a-c]x", "bx"),
            ("[!a]", "b"),
            ("[]]", "]"),
            ("[", "["),
            ("a**b", "ab"),
            ("*a*b", "xaxbxab"),
        ] {
            assert!(matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
    }

    #[test]
    fn patterns_that_do_not_match() {
        for (pattern, name) in [("", "a"), ("a?", "a"), ("[a-c]", "d"), ("[!a]", "a"), ("*b", "ba"), ("abc", "abcd")] {
            assert!(!matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
    }
}
