//! What a value, a claim and a lock are to those who call: the objects that histories are checked against.

use crate::linear::Object;

/// A value under a name. Every value that is written is written once.
pub(crate) struct Register;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OnRegister {
    /// What was found; `None`: that there is nothing.
    Get(Option<String>),
    Put(String),
    /// Only if there was nothing; and whether so.
    PutIfAbsent(String, bool),
    /// Whether there was something.
    Delete(bool),
}

impl Object for Register {
    type State = Option<String>;
    type Operation = OnRegister;

    fn initial() -> Option<String> {
        None
    }

    fn apply(state: &Option<String>, operation: &OnRegister) -> Option<Option<String>> {
        match operation {
            OnRegister::Get(found) => (found == state).then(|| state.clone()),
            OnRegister::Put(value) => Some(Some(value.clone())),
            OnRegister::PutIfAbsent(value, true) => state.is_none().then(|| Some(value.clone())),
            OnRegister::PutIfAbsent(_, false) => state.is_some().then(|| state.clone()),
            OnRegister::Delete(was_there) => (state.is_some() == *was_there).then_some(None),
        }
    }
}

/// A name that ids claim.
pub(crate) struct Claims;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OnClaims {
    /// By this id; and whether it was had.
    Claim(String, bool),
    Unclaim(String, bool),
    /// Who has it.
    LookUp(Option<String>),
}

impl Object for Claims {
    type State = Option<String>;
    type Operation = OnClaims;

    fn initial() -> Option<String> {
        None
    }

    fn apply(state: &Option<String>, operation: &OnClaims) -> Option<Option<String>> {
        let is_of = |id: &String| state.as_ref() == Some(id);
        match operation {
            OnClaims::Claim(id, true) => (state.is_none() || is_of(id)).then(|| Some(id.clone())),
            OnClaims::Claim(id, false) => (state.is_some() && !is_of(id)).then(|| state.clone()),
            OnClaims::Unclaim(id, true) => is_of(id).then_some(None),
            OnClaims::Unclaim(id, false) => (!is_of(id)).then(|| state.clone()),
            OnClaims::LookUp(found) => (found == state).then(|| state.clone()),
        }
    }
}

/// A lock whose grants bear tokens that rise.
pub(crate) struct Mutex;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OnMutex {
    /// With this token.
    Lock(u64),
    /// What has this token; and whether it was held until then.
    Unlock(u64, bool),
    /// Whoever holds it.
    Break,
}

impl Object for Mutex {
    /// The token of the holder, and the highest so far.
    type State = (Option<u64>, u64);
    type Operation = OnMutex;

    fn initial() -> (Option<u64>, u64) {
        (None, 0)
    }

    fn apply((holder, highest): &(Option<u64>, u64), operation: &OnMutex) -> Option<(Option<u64>, u64)> {
        match operation {
            OnMutex::Lock(token) => (holder.is_none() && token > highest).then_some((Some(*token), *token)),
            OnMutex::Unlock(token, true) => (*holder == Some(*token)).then_some((None, *highest)),
            OnMutex::Unlock(token, false) => (*holder != Some(*token)).then_some((*holder, *highest)),
            OnMutex::Break => Some((None, *highest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::{Call, judge};

    /// Each `from, until, operation`; 0 is no return.
    fn is_right<O: Object>(calls: &[(u64, u64, O::Operation)]) -> bool {
        let call = |(from, until, operation): &(u64, u64, O::Operation)| Call {
            from: *from,
            until: (*until > 0).then_some(*until),
            operation: operation.clone(),
        };
        judge::<O>(&calls.iter().map(call).collect::<Vec<_>>()).is_ok()
    }

    fn get(found: &str) -> OnRegister {
        OnRegister::Get(Some(found.to_string()).filter(|found| !found.is_empty()))
    }

    fn put(value: &str) -> OnRegister {
        OnRegister::Put(value.to_string())
    }

    #[test]
    fn a_register_that_is_right_is_accepted() {
        for calls in [
            &[(1, 2, get("")), (3, 4, put("a")), (5, 6, get("a"))][..],
            // Those that overlap see either.
            &[(1, 9, put("a")), (2, 3, get("")), (4, 5, get("a"))],
            &[(1, 9, put("a")), (1, 9, put("b")), (2, 3, get("b")), (4, 5, get("a")), (10, 11, get("a"))],
            // Without a result: never, late, or at once.
            &[(1, 0, put("a")), (2, 3, get("")), (4, 5, get(""))],
            &[(1, 0, put("a")), (2, 3, get("")), (4, 5, put("b")), (6, 7, get("b")), (8, 9, get("a"))],
            &[(1, 2, OnRegister::PutIfAbsent("a".into(), true)), (3, 4, OnRegister::PutIfAbsent("b".into(), false))],
            &[(1, 2, put("a")), (3, 4, OnRegister::Delete(true)), (5, 6, OnRegister::Delete(false)), (7, 8, get(""))],
            // Equal times overlap.
            &[(1, 2, put("a")), (2, 3, get(""))],
        ] {
            assert!(is_right::<Register>(calls), "{calls:?}");
        }
    }

    #[test]
    fn a_register_that_is_wrong_is_refused() {
        for calls in [
            // Lost, stale, from nowhere, undone.
            &[(1, 2, put("a")), (3, 4, get(""))][..],
            &[(1, 2, put("a")), (3, 4, put("b")), (5, 6, get("a"))],
            &[(1, 2, get("a"))],
            &[(1, 9, put("a")), (2, 3, get("a")), (4, 5, get(""))],
            // Two see two writes in two orders.
            &[(1, 9, put("a")), (1, 9, put("b")), (2, 3, get("a")), (4, 5, get("b")), (6, 7, get("a"))],
            // What has no result happens once.
            &[(1, 0, put("a")), (2, 3, get("a")), (4, 5, put("b")), (6, 7, get("b")), (8, 9, get("a"))],
            &[(1, 2, OnRegister::PutIfAbsent("a".into(), true)), (1, 2, OnRegister::PutIfAbsent("b".into(), true))],
            &[(1, 2, put("a")), (3, 9, OnRegister::Delete(true)), (3, 9, OnRegister::Delete(true))],
        ] {
            assert!(!is_right::<Register>(calls), "{calls:?}");
        }
    }

    #[test]
    fn claims_that_are_right_are_accepted_and_wrong_ones_refused() {
        let claim = |id: &str, is_had| OnClaims::Claim(id.to_string(), is_had);
        let unclaim = |id: &str, was_had| OnClaims::Unclaim(id.to_string(), was_had);
        let found = |id: &str| OnClaims::LookUp(Some(id.to_string()).filter(|id| !id.is_empty()));
        for (calls, right) in [
            (
                &[(1, 2, claim("a", true)), (3, 4, claim("a", true)), (5, 6, claim("b", false)), (7, 8, found("a"))][..],
                true,
            ),
            (&[(1, 2, claim("a", true)), (3, 4, unclaim("a", true)), (5, 6, claim("b", true))], true),
            (&[(1, 0, claim("a", true)), (3, 4, claim("b", false)), (5, 6, found("a"))], true),
            (&[(1, 9, claim("a", true)), (1, 9, claim("b", false)), (10, 11, unclaim("b", false))], true),
            (&[(1, 9, claim("a", true)), (1, 9, claim("b", true))], false),
            (&[(1, 2, claim("b", false))], false),
            (&[(1, 2, claim("a", true)), (3, 4, found(""))], false),
            (&[(1, 2, claim("a", true)), (3, 4, unclaim("a", true)), (5, 6, found("a"))], false),
            (&[(1, 2, claim("a", true)), (3, 4, unclaim("a", false))], false),
        ] {
            assert_eq!(is_right::<Claims>(calls), right, "{calls:?}");
        }
    }

    #[test]
    fn locks_that_are_right_are_accepted_and_wrong_ones_refused() {
        use OnMutex::{Break, Lock, Unlock};
        for (calls, right) in [
            (&[(1, 2, Lock(1)), (3, 4, Unlock(1, true)), (5, 6, Lock(2)), (7, 8, Unlock(1, false))][..], true),
            // The next one is told before the one before.
            (&[(1, 2, Lock(1)), (3, 9, Unlock(1, true)), (4, 5, Lock(2))], true),
            (&[(1, 2, Lock(1)), (3, 0, Unlock(1, true)), (4, 5, Lock(2))], true),
            (&[(1, 2, Lock(1)), (3, 4, Break), (5, 6, Lock(2)), (7, 8, Unlock(1, false))], true),
            (&[(1, 2, Lock(1)), (3, 4, Lock(2))], false),
            (&[(1, 9, Lock(1)), (1, 9, Lock(2))], false),
            (&[(1, 2, Lock(2)), (3, 4, Unlock(2, true)), (5, 6, Lock(1))], false),
            (&[(1, 2, Lock(1)), (3, 4, Unlock(1, true)), (5, 6, Unlock(1, true))], false),
            (&[(1, 2, Lock(1)), (3, 4, Break), (5, 6, Unlock(1, true))], false),
            (&[(1, 2, Lock(1)), (3, 4, Unlock(1, false))], false),
        ] {
            assert_eq!(is_right::<Mutex>(calls), right, "{calls:?}");
        }
    }
}
