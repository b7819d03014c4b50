//! The identity of the machine: machine-id(5) or, without one, its host name.

use std::io;

use sha2::{Digest, Sha256};

use super::unix::read_short;
use crate::error::{Error, ErrorKind, Result};

/// Returns `ID@NAME`. The ID is a hash, because machine-id(5) is confidential; it is empty without a machine-id. The
/// call fails if the ID cannot be read, because this machine would look like another machine.
pub(super) fn machine(name: &str) -> Result<String> {
    let mut id = None;
    for path in ["/etc/machine-id", "/var/lib/dbus/machine-id"] {
        match read_short(path) {
            Ok(found) => {
                id = Some(found);
                break;
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {}
            Err(error) => {
                let what = format!("cannot read {path}: {error}");
                return Err(Error::new(
                    ErrorKind::System,
                    what,
                    "see the kernel log and the limit of open files (ulimit -n)",
                ));
            }
        }
    }
    let hash = id.filter(|id| id.trim_ascii().len() == 32).map(|id| {
        let digest = Sha256::new().chain_update(b"csalock").chain_update(id.trim_ascii()).finalize();
        digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect::<String>()
    });
    Ok(format!("{}@{name}", hash.unwrap_or_default()))
}

/// Returns true if two machine names mean one machine, among the users of a store of one host.
pub(super) fn is_this_machine(here: &str, there: &str) -> bool {
    let (Some((here_id, here_name)), Some((there_id, there_name))) = (here.split_once('@'), there.split_once('@'))
    else {
        return false;
    };
    match here_id.is_empty() && there_id.is_empty() {
        true => here_name == there_name,
        false => here_id == there_id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_known_by_its_id_or_else_by_its_name() {
        for (here, there, same) in
            [("1@a", "1@b", true), ("@a", "@a", true), ("@a", "@b", false), ("1@a", "2@a", false)]
        {
            assert_eq!(is_this_machine(here, there), same, "{here} {there}");
        }
    }
}
