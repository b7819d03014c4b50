//! Any request about a record: what a trace contains, and what an actor of the model asks for.
#![allow(dead_code, reason = "each of the test programs that include this uses a part of it")]

use lock::{
    Acquire, AskToEnd, BeginRun, Break, Cancel, Facts, Note, OwnerDied, Prepare, Query, Record, Release, RenewGrant,
    ReportSuccess, Request, SetValue, Sweep, Transition, decide,
};
use serde::{Deserialize, Serialize};

macro_rules! any_request {
    ($($request:ident)*) => {
        /// A request, as a trace logs it.
        #[derive(Debug, Clone, Serialize, Deserialize)]
        pub(crate) enum AnyRequest {
            $($request($request)),*
        }

        $(impl From<$request> for AnyRequest {
            fn from(request: $request) -> AnyRequest {
                AnyRequest::$request(request)
            }
        })*

        impl AnyRequest {
            /// Returns the record that the decision about this request commits, or `None` if the record stays.
            /// Returns a [`Query`] if a fact is missing, like [`decide`].
            pub(crate) fn next_record(&self, record: &Record, facts: &Facts) -> Result<Option<Record>, Query> {
                match self {
                    $(AnyRequest::$request(request) => next_record(record, request, facts)),*
                }
            }
        }
    };
}

any_request!(Acquire Cancel Release RenewGrant OwnerDied Prepare SetValue Break AskToEnd Sweep Note BeginRun ReportSuccess);

fn next_record<R: Request>(record: &Record, request: &R, facts: &Facts) -> Result<Option<Record>, Query> {
    Ok(match decide(record, request, facts)? {
        Transition::Write { record, .. } => Some(*record),
        Transition::Done(_) => None,
    })
}
