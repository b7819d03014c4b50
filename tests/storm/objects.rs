//! The meaning of a value, a claim and a lock for their callers: the objects that histories are checked against.

use crate::linear::{Call, Object};

/// A value under a name. Every value that is written is written once.
pub(crate) struct Register;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OnRegister {
    /// The value found; `None`: there is none.
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

    fn is_pure(operation: &OnRegister) -> bool {
        matches!(operation, OnRegister::Get(_) | OnRegister::PutIfAbsent(_, false) | OnRegister::Delete(false))
    }

    fn sees(operation: &OnRegister) -> Option<&str> {
        if let OnRegister::Get(found) = operation { found.as_deref() } else { None }
    }

    fn shows(state: &Option<String>) -> Option<&str> {
        state.as_deref()
    }

    /// A value that was seen was written before; of values that were not seen, one is as good as another.
    fn narrowed(calls: &[Call<OnRegister>]) -> Vec<Call<OnRegister>> {
        let seen = |value: &String| {
            let sees = |call: &&Call<OnRegister>| matches!(&call.operation, OnRegister::Get(Some(it)) if it == value);
            calls.iter().filter(sees).filter_map(|call| call.until).min()
        };
        let mut narrowed = calls.to_vec();
        for call in &mut narrowed {
            let (OnRegister::Put(value) | OnRegister::PutIfAbsent(value, true)) = &mut call.operation else { continue };
            match seen(value) {
                Some(seen) => call.until = Some(call.until.map_or(seen, |until| until.min(seen))),
                None => *value = "unseen".to_string(),
            }
        }
        narrowed
    }
}

pub(crate) struct Claims;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OnClaims {
    /// By this id; and whether it was had.
    Claim(String, bool),
    Unclaim(String, bool),
    /// Its holder.
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

    fn is_pure(operation: &OnClaims) -> bool {
        matches!(operation, OnClaims::Claim(_, false) | OnClaims::Unclaim(_, false) | OnClaims::LookUp(_))
    }
}

pub(crate) struct Mutex;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OnMutex {
    /// With this token.
    Lock(u64),
    /// The grant with this token; and whether it was held until then.
    Unlock(u64, bool),
    /// The holder.
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

    fn is_pure(operation: &OnMutex) -> bool {
        matches!(operation, OnMutex::Unlock(_, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::judge;
    use fastrand::Rng;

    /// Each `from, until, operation`; 0 is a call without a return.
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
            // Without a result: never, late, or immediately.
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
            // A call without a result happens once.
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

    /// A history of an object with this number of calls. Each call happens at a moment of its own; some results are unknown.
    fn drawn<O: Object>(
        rng: &mut Rng,
        (count, processes): (u64, u64),
        make: impl Fn(&mut Rng, &O::State, u64) -> O::Operation,
    ) -> Vec<Call<O::Operation>> {
        let mut state = O::initial();
        let moments = (0..count).map(|number| {
            let operation = make(rng, &state, number);
            let unknown = rng.u64(..8) == 0 && !O::is_pure(&operation);
            // A call without a result may not have happened.
            if !unknown || rng.bool() {
                state = O::apply(&state, &operation).unwrap();
            }
            let moment = 100 * (number + processes);
            let (before, after) = (rng.u64(..100 * processes), rng.u64(..100 * processes));
            Call { from: moment - before, until: (!unknown).then_some(moment + after), operation }
        });
        moments.collect()
    }

    fn on_register(rng: &mut Rng, state: &Option<String>, number: u64) -> OnRegister {
        let value = format!("v{number}");
        match rng.u64(..5) {
            0 | 1 => OnRegister::Get(state.clone()),
            2 => OnRegister::Put(value),
            3 => OnRegister::PutIfAbsent(value, state.is_none()),
            _ => OnRegister::Delete(state.is_some()),
        }
    }

    fn on_claims(rng: &mut Rng, state: &Option<String>, _: u64) -> OnClaims {
        let id = format!("h{}", rng.u64(..40));
        let is_of = state.as_ref() == Some(&id);
        match rng.u64(..3) {
            0 => OnClaims::Claim(id, is_of || state.is_none()),
            1 => OnClaims::LookUp(state.clone()),
            _ if rng.bool() && state.is_some() => OnClaims::Unclaim(state.clone().unwrap(), true),
            _ => OnClaims::Unclaim(id, is_of),
        }
    }

    /// Whether some order of the rest is right, by enumeration.
    fn has_order(state: &Option<String>, calls: &[Call<OnRegister>]) -> bool {
        let first_return = calls.iter().filter_map(|call| call.until).min();
        let Some(first_return) = first_return else { return true };
        (0..calls.len()).any(|at| {
            let mut rest = calls.to_vec();
            let call = rest.remove(at);
            let next = Register::apply(state, &call.operation).filter(|_| call.from <= first_return);
            next.is_some_and(|next| has_order(&next, &rest))
        })
    }

    #[test]
    fn a_long_history_of_many_processes_is_accepted() {
        for seed in 0..5 {
            let rng = &mut Rng::with_seed(seed);
            assert_eq!(judge::<Register>(&drawn::<Register>(rng, (4000, 12), on_register)), Ok(()), "{seed}");
            assert_eq!(judge::<Claims>(&drawn::<Claims>(rng, (4000, 4), on_claims)), Ok(()), "{seed}");
        }
    }

    #[test]
    fn the_search_agrees_with_the_enumeration_of_all_orders() {
        let mut right = 0;
        for seed in 0..2000 {
            let rng = &mut Rng::with_seed(seed);
            let mut calls = drawn::<Register>(rng, (6, 3), on_register);
            let seen: Vec<OnRegister> = calls.iter().map(|call| call.operation.clone()).collect();
            // Two results are exchanged, which is often wrong.
            let (one, other) = (rng.u64(..6) as usize, rng.u64(..6) as usize);
            (calls[one].operation, calls[other].operation) = (seen[other].clone(), seen[one].clone());
            let has_order = has_order(&None, &calls);
            assert_eq!(judge::<Register>(&calls).is_ok(), has_order, "{seed}: {calls:?}");
            right += usize::from(has_order);
        }
        assert!((200..1800).contains(&right), "{right} of 2000 are right");
    }
}
