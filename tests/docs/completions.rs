//! Completions: clap_complete's, which know what can be typed, and `completions/live/`, which know what is there: locks
//! that are held now, and commands to run.

use std::fs;

use clap::{ArgAction, Command, ValueHint};
use clap_complete::{Shell, generate};

use super::{definition, in_project};

/// The completions of clap_complete treat "a lock's name" like a host name; and so on.
const ZSH_ACTIONS: [(&str, &str); 5] = [
    (":_hosts'", ":_csalock_live'"),
    (":_users'", ":_csalock_job'"),
    (":_email_addresses'", ":_csalock_known'"),
    (":_urls'", ":_csalock_store'"),
    (":_command_names -e'", ":_csalock_pages'"),
];

/// Every script: its path and its text.
pub(super) fn scripts() -> Vec<(String, String)> {
    vec![
        ("completions/csalock.bash".to_string(), bash()),
        ("completions/_csalock".to_string(), zsh()),
        ("completions/csalock.fish".to_string(), fish()),
    ]
}

fn bash() -> String {
    let generated = made_by_clap(Shell::Bash);
    // The last lines register the generated function; ours comes before it.
    let (functions, registration) = generated.rsplit_once("\nif [[").unwrap();
    // Files are offered only where no name is wanted.
    let registration = registration.replace("-F _csalock ", "-F _csalock_or_live ");
    let registration = registration.replace(" -o bashdefault -o default", "");
    format!("{functions}\n{}\nif [[{registration}", live("bash"))
}

fn zsh() -> String {
    let mut generated = made_by_clap(Shell::Zsh);
    for (theirs, ours) in ZSH_ACTIONS {
        assert!(generated.contains(theirs), "{theirs}");
        generated = generated.replace(theirs, ours);
    }
    let (functions, start) = generated.rsplit_once("\nif [ \"$funcstack[1]\"").unwrap();
    format!("{functions}\n{}\nif [ \"$funcstack[1]\"{start}", live("zsh"))
}

fn fish() -> String {
    format!("{}\n{}", made_by_clap(Shell::Fish), live("fish"))
}

fn live(shell: &str) -> String {
    let text = fs::read_to_string(in_project(&format!("completions/live/{shell}"))).unwrap();
    text.replace("@VALUED@", &valued().join(" ")).replace("@PAGES@", &pages().join(" "))
}

/// Returns the words that `csalock man` accepts: the names of the commands, and the section of csalock(7).
fn pages() -> Vec<String> {
    let root = definition();
    let commands = root.get_subcommands().flat_map(Command::get_name_and_visible_aliases);
    commands.chain(["7"]).map(String::from).collect()
}

/// The options that take a value in any command: the word after one is not a name. A letter that is a flag of another
/// command may precede a name.
fn valued() -> Vec<String> {
    let root = definition();
    let mut options: Vec<String> = Vec::new();
    let flags: Vec<char> = root
        .get_subcommands()
        .flat_map(Command::get_arguments)
        .filter(|argument| !argument.get_action().takes_values())
        .filter_map(clap::Arg::get_short)
        .collect();
    for argument in root.get_subcommands().flat_map(Command::get_opts) {
        assert!(matches!(argument.get_action(), ArgAction::Set | ArgAction::Append), "{argument}");
        let longs = argument.get_long_and_visible_aliases().unwrap_or_default();
        let shorts = argument.get_short_and_visible_aliases().unwrap_or_default();
        options.extend(longs.iter().map(|long| format!("--{long}")));
        options.extend(shorts.iter().filter(|short| !flags.contains(short)).map(|short| format!("-{short}")));
    }
    options.sort();
    options.dedup();
    options
}

fn made_by_clap(shell: Shell) -> String {
    let mut root = hinted(definition()).mut_subcommands(|command| visible(&hinted(command)));
    let mut text = Vec::new();
    generate(shell, &mut root, "csalock", &mut text);
    let text = String::from_utf8(text).unwrap();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n") + "\n"
}

/// The command without its hidden options, which have no effect.
fn visible(command: &Command) -> Command {
    let forever = |name: &str| -> &'static str { name.to_string().leak() };
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned();
    let aliases: Vec<&str> = command.get_visible_aliases().map(forever).collect();
    let shown = Command::new(forever(command.get_name())).visible_aliases(aliases).args(arguments);
    let shown = shown.about(command.get_about().unwrap().clone()).disable_help_flag(true);
    shown.bin_name(command.get_bin_name().unwrap().to_string())
}

fn hinted(command: Command) -> Command {
    let operands = match command.get_name() {
        "unlock" | "wait" | "status" | "metrics" | "renew" | "get" | "put" | "del" | "unclaim" | "lookup" => {
            ValueHint::Hostname
        }
        "run" => ValueHint::Username,
        "lock" | "history" | "gc" | "doctor" | "overdue" | "claim" => ValueHint::EmailAddress,
        "man" => ValueHint::CommandName,
        _ => ValueHint::AnyPath,
    };
    command.mut_args(|argument| {
        if argument.is_positional() {
            argument.value_hint(operands)
        } else if argument.get_long() == Some("store") {
            argument.value_hint(ValueHint::Url)
        } else if argument.get_long() == Some("output") {
            argument.value_hint(ValueHint::FilePath)
        } else if !argument.get_possible_values().is_empty() {
            argument
        } else {
            // Durations, numbers, labels: no file is meant.
            argument.value_hint(ValueHint::Other)
        }
    })
}
