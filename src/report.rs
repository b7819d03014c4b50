//! All wording: texts for people, and documents for programs.

mod audit;
mod block;
mod columns;
mod doctor;
mod ending_rows;
mod expected;
mod flocked;
mod history_json;
mod holder;
mod json;
mod lock_table;
mod metrics;
mod refusal;
mod refusal_report;
mod run;
mod table;
mod timeline;
mod times;

pub use audit::AuditReport;
pub use block::LockBlock;
pub use columns::{cut, indented, wrapped};
pub use doctor::{HealthJson, health};
pub use ending_rows::{ending_rows, endings_header};
pub use expected::ExpectedJson;
pub use flocked::flocked_by;
pub use history_json::{JobJson, OverdueJson, PastJson};
use holder::shown_user;
pub use holder::{Reporter, user};
pub use json::{
    ClaimJson, Entry, Evicted, FenceJson, HolderJson, LockJson, LookupJson, NewestJson, NoValueJson, SightJson,
    TakenJson, UnlockJson, ValueJson, json,
};
pub use lock_table::LockTable;
pub use metrics::Metrics;
pub use refusal::{RefusedLock, Settings, describe_value, name_and_store};
pub use refusal_report::{RefusalJson, RefusalReport};
pub use run::notice;
pub use table::OutputStyle;
pub use timeline::timeline;
pub use times::{Moment, Zone, millis_of, timestamp};
