//! Subject: one limiter filled with keys, alone in its process.

use std::fmt::Write;
use std::fs;
use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use governor::{Quota, RateLimiter};
use quell::clock::SystemClock;
use quell::{KeyedLimiter, Limit};
use serde::{Deserialize, Serialize};

use crate::ALLOCATOR;

/// Who is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    Quell,
    QuellFixedWindow,
    QuellSlidingWindow,
    QuellSlidingLog,
    Governor,
    GovernorHashMap,
}

impl Name {
    pub(super) const ALL: [Self; 6] = [
        Self::Quell,
        Self::QuellFixedWindow,
        Self::QuellSlidingWindow,
        Self::QuellSlidingLog,
        Self::Governor,
        Self::GovernorHashMap,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Quell => "quell, token bucket",
            Self::QuellFixedWindow => "quell, fixed window",
            Self::QuellSlidingWindow => "quell, sliding window",
            Self::QuellSlidingLog => "quell, sliding log",
            Self::Governor => "governor",
            Self::GovernorHashMap => "governor hashmap",
        }
    }
}

/// One subject and how many keys it gets.
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
    /// The figures with their names, in the order of the table.
    pub(super) const fn parts(self) -> [(&'static str, u64); 3] {
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
/// If a key is refused or forgotten, or the process cannot be looked at.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    let hour = Duration::from_secs(3600);
    let keys = settings.keys;
    let growth = match settings.subject {
        Name::Quell => quell(Limit::per_hour(100).build()?, keys),
        Name::QuellFixedWindow => quell(Limit::fixed_window(100, hour).build()?, keys),
        Name::QuellSlidingWindow => quell(Limit::sliding_window(100, hour).build()?, keys),
        Name::QuellSlidingLog => quell(Limit::sliding_log(100, hour).build()?, keys),
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

fn grow<L>(
    keys: u64,
    make: impl FnOnce() -> Result<L>,
    ask: impl Fn(&L, &String) -> bool,
    count: impl Fn(&L) -> usize,
) -> Result<Growth> {
    let mut key = String::with_capacity(32);
    let allocated = ALLOCATOR.allocated();
    let resident = status("VmRSS:")?;
    let limiter = make()?;
    for number in 0..keys {
        key.clear();
        write!(key, "user:{number:012}")?;
        ensure!(ask(&limiter, &key), "the first call of {key} was refused");
    }
    let held = count(&limiter);
    ensure!(held as u64 == keys, "{held} of {keys} keys are held");
    Ok(Growth {
        allocated: ALLOCATOR.allocated().saturating_sub(allocated) as u64,
        resident: status("VmRSS:")?.saturating_sub(resident),
        peak: status("VmHWM:")?.saturating_sub(resident),
    })
}

/// Bytes that the kernel has under this name for this process.
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
