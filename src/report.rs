//! All wording: texts for people, and documents for programs.

mod doctor;
mod history;
mod holder;
pub(crate) mod json;
mod metrics;
mod refusal;
mod run;
mod status_text;
mod table;
mod times;

pub(crate) use doctor::findings_text;
pub(crate) use history::{failure, timeline};
pub(crate) use holder::{FileLocks, Reporter, locked_by, shows_nothing};
pub(crate) use json::{Document, json};
pub(crate) use metrics::Metrics;
pub(crate) use refusal::{RefusalReport, RefusedLock, SettingNames, describe_value, is_of_descriptor, name_and_store};
pub(crate) use run::{due, in_future, left_by_end, lost_while_waiting, notice, overdue, runs};
pub(crate) use status_text::{LockBlock, LockTable};
pub(crate) use table::{OutputStyle, cut, indented, wrapped};
pub(crate) use times::{Moment, Zone, millis_of};
