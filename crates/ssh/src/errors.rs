//! Errors of a connection: whether a retry may help, kind and hint.

use std::ffi::OsStr;

use super::Remote;
use lock::error::{Error, ErrorKind};
use lock::name::{escape, shell_quote};
use net::{CallError, Cause, Retry};
use store::ServerUrl;

/// Parts of the lines in which ssh(1) itself names a trouble that no repetition ends.
const LASTING: [&str; 5] = [
    ": Permission denied (",
    "Host key verification failed.",
    " bad configuration options",
    "Bad owner or permissions on ",
    "Bad port ",
];

pub(super) type SshError = CallError<SshCause>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SshCause {
    NotStarted(String),
    /// The connection has ended: the message for the user, and true if a repetition cannot help.
    Ended(String, bool),
    Strange,
    NoServer,
    OtherVersion(String),
    Refused(Error),
}

impl Cause for SshCause {
    /// A new connection may help a client that has been connected.
    fn retry(&self) -> Retry {
        match self {
            SshCause::Strange => Retry::Always,
            SshCause::Ended(_, false) => Retry::IfMetOrLater,
            _ => Retry::Never,
        }
    }
}

impl SshCause {
    /// Returns the error for a connection that ended. `printed` has the words of banners and login scripts too, so only lines
    /// of ssh(1) count, and of the program that the exit `status` is from. After the greeting no words count.
    pub(super) fn ended(printed: &str, status: Option<i32>, is_greeted: bool) -> SshCause {
        let mut lines = printed.lines().rev().map(str::trim).filter(|line| !line.is_empty());
        let last = lines.clone().next().unwrap_or_default();
        let lasting = match status {
            _ if is_greeted => None,
            // An error of ssh(1), or a signal ended the program there.
            None | Some(255) => lines.find(|line| LASTING.iter().any(|part| line.contains(part))),
            // A shell cannot execute the program.
            Some(126 | 127) => Some(last),
            Some(_) => lines.find(|line| line.starts_with("csalock:")),
        };
        SshCause::Ended(escape(lasting.unwrap_or(last).as_bytes()), lasting.is_some())
    }
}

/// `program` is in the place of ssh(1).
pub(super) fn explain(error: &SshError, remote: &Remote, program: &OsStr) -> Error {
    let port = remote.port.map(|port| format!("-p {port} ")).unwrap_or_default();
    let ssh = format!("ssh {port}{}", remote.destination);
    let url = remote.url();
    let failed =
        |kind, problem: &str, hint: &str| Error::new(kind, format!("{url} cannot be reached: {problem}"), hint);
    let away = |problem: &str, hint: &str| failed(ErrorKind::Unavailable, problem, hint);
    let works = format!("see that `{ssh} true` works without a question, then try again");
    let cause = match error {
        CallError::Net(error) => return away(&error.to_string(), &works),
        CallError::Server(cause) => cause,
    };
    match cause {
        SshCause::Refused(error) => error.clone().of_server(&url),
        SshCause::NotStarted(why) => away(
            &format!("cannot start {}: {why}", shell_quote(program.as_encoded_bytes())),
            "install an ssh client, or name its program, without arguments, in CSALOCK_SSH",
        ),
        SshCause::Ended(said, true) if said.contains("Permission denied") => {
            let key = "a key in its authorized_keys, and an agent or a key without a passphrase here";
            failed(ErrorKind::Denied, said, &format!("see that `{ssh} true` works without a password: {key}"))
        }
        // An older version knows no `serve`.
        SshCause::Ended(said, _) if said.starts_with("csalock: unknown command") => {
            away(said, "install the same version of csalock on both hosts")
        }
        SshCause::Ended(said, true) if ["not found", "No such file"].iter().any(|part| said.contains(part)) => {
            away(said, "install csalock on that host, where commands of ssh find it (/usr/bin or /usr/local/bin)")
        }
        SshCause::Ended(said, _) if said.is_empty() => away("the connection ended without an answer", &works),
        SshCause::Ended(said, _) => away(said, &works),
        SshCause::Strange | SshCause::NoServer => away(
            "the answer is not that of csalock",
            &format!("see that `{ssh} csalock --version` prints one line, and the shell there nothing else"),
        ),
        SshCause::OtherVersion(program) => away(
            &format!("csalock {} there speaks another protocol", escape(program.as_bytes())),
            "install the same version on both hosts",
        ),
    }
}

/// The error of a line that is too long or not a message of the protocol.
pub(super) fn strange() -> SshError {
    CallError::Server(SshCause::Strange)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(printed: &str, status: Option<i32>, is_greeted: bool) -> (String, bool) {
        match SshCause::ended(printed, status, is_greeted) {
            SshCause::Ended(said, is_lasting) => (said, is_lasting),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_ssh_and_the_program_there_say_that_a_trouble_lasts() {
        let denied = "a@there: Permission denied (publickey).";
        for (printed, status, said, is_lasting) in [
            ("Unauthorized access is not allowed.\n", Some(255), "Unauthorized access is not allowed.", false),
            (
                "sh: cannot change locale (xx): No such file or directory\n",
                Some(255),
                "sh: cannot change locale (xx): No such file or directory",
                false,
            ),
            ("Bad users: Permission denied!\n\n", None, "Bad users: Permission denied!", false),
            ("csalock: not for you\n", Some(255), "csalock: not for you", false),
            (&format!("{denied}\nbye: No such file\n"), Some(255), denied, true),
            (&format!("{denied}\n"), None, denied, true),
            ("Host key verification failed.\r\n", Some(255), "Host key verification failed.", true),
            ("Welcome\nsh: 1: csalock: not found\n", Some(127), "sh: 1: csalock: not found", true),
            ("csalock: unknown command serve\nbye\n", Some(64), "csalock: unknown command serve", true),
            ("sh: 1: Cannot fork\n", Some(2), "sh: 1: Cannot fork", false),
            ("", Some(255), "", false),
        ] {
            assert_eq!(ended(printed, status, false), (said.to_string(), is_lasting), "{printed}");
            assert!(!ended(printed, status, true).1, "{printed}");
        }
    }
}
