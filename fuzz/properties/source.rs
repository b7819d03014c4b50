//! Random values from a fuzzer's bytes: each choice consumes some bytes, and without bytes every choice is zero.

use std::num::NonZeroU32;
use std::time::Duration;

use lock::{
    ClockReading, DescriptorLock, EndReason, EndRequest, EndedGrant, Grant, Handle, HandleHash, JobState, Lease,
    LeaseClock, LeaseStart, Lifetime, Mode, Owner, Pages, PidDomain, ProcessId, Promise, Record, Replacement, Runs,
    Sighting, Success, Value, WaitEdge, Waiter,
};

pub(super) struct Source<'a>(pub(super) &'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn one_in_two(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// A small number, the maximum, or any number between.
    fn number(&mut self) -> u64 {
        match self.byte() {
            255 => u64::MAX,
            254 => (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte())),
            small => u64::from(small),
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = usize::from(self.byte() & 31).min(self.0.len());
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken.to_vec()
    }

    fn text(&mut self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    fn option<T>(&mut self, some: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.one_in_two().then(|| some(self))
    }

    fn few<T>(&mut self, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.byte() & 3).map(|_| one(self)).collect()
    }

    fn proof(&mut self) -> HandleHash {
        Handle::new([self.byte(); 16]).proof()
    }

    fn process(&mut self) -> ProcessId {
        ProcessId { pid: (self.number() as i32 & i32::MAX).max(1), start: self.number() }
    }

    fn share(&mut self) -> Mode {
        [Mode::Exclusive, Mode::Shared, Mode::Slot][usize::from(self.byte()) % 3]
    }

    pub(super) fn owner(&mut self) -> Owner {
        Owner {
            domain: PidDomain { machine: self.text(), boot: self.text(), pids: self.text(), net: self.number() },
            processes: self.few(Source::process),
            supervisor: self.option(Source::process),
            session: self.option(|source| source.number() as i32),
            host: self.text(),
            uid: self.number() as u32,
            command: self.bytes(),
            label: self.option(Source::bytes),
            outlives_lock: self.one_in_two(),
        }
    }

    fn lease(&mut self) -> Lease {
        let clock = match self.byte() % 3 {
            0 => LeaseClock::FileSystem(LeaseStart { boot: self.number(), at: self.number(), span: self.number() }),
            1 => LeaseClock::Etcd(self.number()),
            _ => LeaseClock::Boot(self.text()),
        };
        Lease { clock, ends: self.number(), wall: self.number() }
    }

    fn lifetime(&mut self) -> Lifetime {
        match self.byte() % 8 {
            0 => Lifetime::WhileOwnerLives,
            1 => Lifetime::Ttl(self.number()),
            2 => Lifetime::ExpiresAt(self.lease()),
            3 => Lifetime::KeepalivePending(self.number()),
            4 => Lifetime::Keepalive(self.lease()),
            5 => Lifetime::OwnerDied,
            6 => Lifetime::Descriptor(DescriptorLock { place: self.text(), taker: self.number() as i32 }),
            _ => Lifetime::UntilReleased,
        }
    }

    fn grant(&mut self) -> Grant {
        Grant {
            proof: self.proof(),
            token: Some(self.number()),
            mode: self.share(),
            slot: self.number() as u32,
            owner: self.owner().into(),
            lifetime: self.lifetime(),
            since: self.number(),
            waited: self.number(),
            provisional: self.option(Source::process),
            latest_only: self.one_in_two(),
            release_on_exit: self.one_in_two(),
            claim: self.option(Source::bytes),
            end_request: self.option(|source| EndRequest { by: source.owner(), replaces: source.one_in_two() }.into()),
        }
    }

    pub(super) fn waiter(&mut self) -> Waiter {
        Waiter {
            proof: self.proof(),
            mode: self.share(),
            slots: self.option(|source| NonZeroU32::MIN.saturating_add(source.number() as u32)),
            owner: self.owner().into(),
            process: self.process(),
            lifetime: self.lifetime(),
            needs_confirmation: self.one_in_two(),
            was_frozen: self.one_in_two(),
            release_on_exit: self.one_in_two(),
            claim: self.option(Source::bytes),
            latest_only: self.one_in_two(),
            enclosing_grants: self.few(Source::proof),
            blocked_processes: self.few(Source::process),
            lease: self.option(Source::lease),
            since: self.number(),
        }
    }

    fn job(&mut self) -> JobState {
        let success = |source: &mut Source<'_>| Success {
            at: source.number(),
            slot: source.option(Source::number),
            host: source.text(),
        };
        let runs = |source: &mut Source<'_>| Runs {
            slot: source.number(),
            count: source.number() as u32,
            last: source.proof(),
            began: source.number(),
            most: source.number() as u32,
            told: source.option(Source::proof),
        };
        let promise = |source: &mut Source<'_>| Promise {
            span: source.number(),
            since: source.number(),
            complained: source.option(Source::number),
            by: source.option(Source::proof),
            refused: source.number(),
        };
        JobState { success: self.option(success), runs: self.option(runs), promise: self.option(promise) }
    }

    fn value(&mut self) -> Value {
        let within = self.option(Source::bytes);
        let size = within.as_ref().map_or_else(|| self.number(), |bytes| bytes.len() as u64);
        let mode = self.option(|source| source.number() as u32 & 0o777);
        Value {
            version: Some(self.number() >> 2),
            token: Some(self.number()),
            size,
            write_id: self.number(),
            mode,
            inline: within,
        }
    }

    fn ending(&mut self) -> EndedGrant {
        let how =
            [EndReason::Released, EndReason::Died, EndReason::Expired, EndReason::Broken][usize::from(self.byte()) % 4];
        EndedGrant { grant: self.grant(), reason: how }
    }

    pub(super) fn name(&mut self) -> Vec<u8> {
        [b"n".to_vec(), self.bytes()].concat().into_iter().filter(|byte| *byte != 0).collect()
    }

    /// As [`lock::decide`] could have produced it, as far as the codec is concerned.
    pub(super) fn record(&mut self) -> Record {
        let first = self.number() >> 2;
        let mut record = Record {
            is_copy: false,
            name: self.name(),
            slots: self.option(|source| (source.number() as u32).max(1)),
            pages: self.option(|source| Pages { first, last: first + (source.number() & 31) }),
            holders: self.few(Source::grant),
            waiters: self.few(Source::waiter),
            replacement: None,
            value: self.option(Source::value),
            job: self.option(Source::job),
            ended_grants: self.few(Source::ending),
            sightings: Vec::new(),
        };
        while lock::codec::broken_invariant(&record).is_some() {
            if record.waiters.pop().is_none() {
                record.holders.pop();
            }
        }
        let newest = record.waiters.last().map(|waiter| waiter.proof);
        record.replacement =
            newest.and_then(|by| self.option(|source| Replacement { by, waiters: source.few(Source::proof) }));
        let leases: Vec<Lease> = record.leases().cloned().collect();
        for lease in leases.into_iter().filter(|lease| matches!(lease.clock, LeaseClock::FileSystem(_))) {
            record.sightings.extend(self.option(|source| source.sighting(lease)));
        }
        record
    }

    fn sighting(&mut self, lease: Lease) -> Sighting {
        let (boottime, store) = (Duration::from_micros(self.number()), Duration::from_micros(self.number()));
        Sighting { lease, boot: self.number(), at: ClockReading { boottime, store } }
    }

    pub(super) fn names(&mut self) -> Vec<Vec<u8>> {
        self.few(Source::bytes)
    }

    pub(super) fn flag(&mut self) -> bool {
        self.one_in_two()
    }

    pub(super) fn noted(&mut self) -> WaitEdge {
        WaitEdge(self.bytes(), self.proof())
    }

    pub(super) fn several<T>(&mut self, one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        self.few(one)
    }
}
