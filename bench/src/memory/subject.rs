//! Subject: fills one limiter with keys, alone in its process.

use std::fmt::Write;
use std::fs;
use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use clap::{Args, ValueEnum};
use governor::{Quota, RateLimiter};
use quell::clock::SystemClock;
use quell::store::memory::MemoryStore;
use quell::{KeyedLimiter, Limit, Limiter, Query};
use serde::{Deserialize, Serialize};

use crate::ALLOCATOR;

/// The limiters that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    Quell,
    QuellFixedWindow,
    QuellSlidingWindow,
    QuellSlidingLog,
    QuellReservations,
    QuellReservationsApart,
    Governor,
    GovernorHashMap,
}

impl Name {
    pub(super) const ALL: [Self; 8] = [
        Self::Quell,
        Self::QuellFixedWindow,
        Self::QuellSlidingWindow,
        Self::QuellSlidingLog,
        Self::QuellReservations,
        Self::QuellReservationsApart,
        Self::Governor,
        Self::GovernorHashMap,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Quell => "quell, token bucket",
            Self::QuellFixedWindow => "quell, fixed window",
            Self::QuellSlidingWindow => "quell, sliding window",
            Self::QuellSlidingLog => "quell, sliding log",
            Self::QuellReservations => "quell, reservations on 1,000 keys",
            Self::QuellReservationsApart => "quell, a reservation on each key",
            Self::Governor => "governor",
            Self::GovernorHashMap => "governor hashmap",
        }
    }

    /// Returns true if the subject holds at most a million.
    pub(super) const fn is_held(self) -> bool {
        matches!(self, Self::QuellReservations | Self::QuellReservationsApart)
    }
}

/// One subject and its number of keys.
#[derive(Args, Debug)]
pub(crate) struct Settings {
    subject: Name,
    keys: u64,
}

/// By how many bytes a process grew.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Growth {
    allocated: u64,
    resident: u64,
    peak: u64,
}

impl Growth {
    /// Current usage of the process.
    pub(crate) fn now() -> Result<Self> {
        Ok(Self {
            allocated: ALLOCATOR.allocated() as u64,
            resident: status("VmRSS:")?,
            peak: status("VmHWM:")?,
        })
    }

    /// Usage of the process beyond `self`.
    pub(crate) fn until_now(self) -> Result<Self> {
        let now = Self::now()?;
        Ok(Self {
            allocated: now.allocated.saturating_sub(self.allocated),
            resident: now.resident.saturating_sub(self.resident),
            peak: now.peak.saturating_sub(self.resident),
        })
    }

    /// The figures with their names, in the order of the table.
    pub(crate) const fn parts(self) -> [(&'static str, u64); 3] {
        [
            ("allocated", self.allocated),
            ("resident", self.resident),
            ("peak", self.peak),
        ]
    }
}

/// Fills one subject and prints by how much this process grew, as JSON.
///
/// # Errors
/// If a key is refused or forgotten, or the process's memory cannot be read.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    let hour = Duration::from_secs(3600);
    let keys = settings.keys;
    let growth = match settings.subject {
        Name::Quell => quell(Limit::per_hour(100).build()?, keys),
        Name::QuellFixedWindow => quell(Limit::fixed_window(100, hour).build()?, keys),
        Name::QuellSlidingWindow => quell(Limit::sliding_window(100, hour).build()?, keys),
        Name::QuellSlidingLog => quell(Limit::sliding_log(100, hour).build()?, keys),
        Name::QuellReservations => reservations(keys, keys.div_ceil(RESERVED_TOGETHER)),
        Name::QuellReservationsApart => reservations(keys, keys),
        Name::Governor => {
            let make = || Ok(RateLimiter::dashmap(quota()?));
            grow(
                keys,
                make,
                |all, key| all.check_key(key).is_ok(),
                |all| all.len(),
            )
        }
        Name::GovernorHashMap => {
            let make = || Ok(RateLimiter::hashmap(quota()?));
            grow(
                keys,
                make,
                |all, key| all.check_key(key).is_ok(),
                |all| all.len(),
            )
        }
    };
    println!("{}", serde_json::to_string(&growth?)?);
    Ok(())
}

fn quota() -> Result<Quota> {
    Ok(Quota::per_hour(NonZeroU32::new(100).context("100 is 0")?))
}

fn quell(limit: Limit, keys: u64) -> Result<Growth> {
    // Room for one more than is asked for, so that no key has to share a state.
    let most = usize::try_from(keys)? + 1;
    grow(
        keys,
        || Ok(KeyedLimiter::<str>::with(limit, most, SystemClock::new())?),
        |limiter, key| limiter.try_acquire(key.as_str()).outcome.is_allow(),
        KeyedLimiter::keys,
    )
}

/// Reservations per key if several share a key: the largest possible number.
const RESERVED_TOGETHER: u64 = 1_000;

/// This many reservations, spread in turn over `keys` keys.
fn reservations(reservations: u64, keys: u64) -> Result<Growth> {
    let rules = "domain: shop\nrules: [{ name: tokens, per: [user], rate: 100000/h }]\n";
    let loaded = quell_rules::parse_str("rules.yaml", rules);
    let loaded = loaded.map_err(|problems| anyhow!("{:?}", problems.first()))?;
    let hour = Duration::from_secs(3600);
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let before = Growth::now()?;
    let limiter = Limiter::new(MemoryStore::new());
    limiter.set_rules(loaded.domains)?;
    let mut held = 0;
    for number in 0..reservations {
        let query = Query::new("shop").entry("user", format!("user:{:012}", number % keys));
        let name = format!("order-{number:012}");
        // The last of a million find a part of the table full: the place of an id is given by its
        // hash.
        match runtime.block_on(limiter.reserve(&query, hour, Some(&name))) {
            Ok(verdict) => {
                ensure!(verdict.is_allow(), "{name} was refused: {verdict:?}");
                held += 1;
            }
            Err(error) => ensure!(held * 100 > reservations * 98, "{name}: {error}"),
        }
    }
    before.until_now()
}

fn grow<L>(
    keys: u64,
    make: impl FnOnce() -> Result<L>,
    ask: impl Fn(&L, &String) -> bool,
    count: impl Fn(&L) -> usize,
) -> Result<Growth> {
    let mut key = String::with_capacity(32);
    let before = Growth::now()?;
    let limiter = make()?;
    for number in 0..keys {
        key.clear();
        write!(key, "user:{number:012}")?;
        ensure!(ask(&limiter, &key), "the first call of {key} was refused");
    }
    let held = count(&limiter);
    ensure!(held as u64 == keys, "{held} of {keys} keys are held");
    before.until_now()
}

/// The bytes that the kernel reports under this name for this process.
fn status(name: &str) -> Result<u64> {
    let path = "/proc/self/status";
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kilobytes: u64 = number
        .with_context(|| format!("{path} says no {name}"))?
        .parse()?;
    Ok(kilobytes * 1024)
}
