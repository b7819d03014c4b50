//! All wording: texts for people, and documents for programs.

mod audit;
mod block;
mod columns;
mod doctor;
mod document;
mod history;
mod holder;
mod job;
pub(crate) mod json;
mod lock_table;
mod metrics;
mod refusal;
mod run;
mod table;
mod times;

pub(crate) use audit::AuditReport;
pub(crate) use block::LockBlock;
pub(crate) use columns::{cut, indented, wrapped};
pub use doctor::{HealthJson, health};
pub(crate) use document::Document;
pub(crate) use history::{ending_rows, endings_header, timeline};
pub(crate) use holder::{Reporter, flocked_by};
pub(crate) use job::{due, in_future, overdue};
pub(crate) use json::json;
pub(crate) use lock_table::LockTable;
pub(crate) use metrics::Metrics;
pub(crate) use refusal::{RefusalReport, RefusedLock, Settings, describe_value, name_and_store};
pub(crate) use run::notice;
pub use table::OutputStyle;
pub use times::{Moment, Zone};
pub(crate) use times::{millis_of, timestamp};
