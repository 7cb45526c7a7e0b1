//! Foreign: what becomes of a value under a name of ours that Quell did not write.
//!
//! A state that nobody can read would be an outage for its key for ever, and nobody knows what was
//! used. So it is replaced by one that is used up: never more than the limit passes, and after one full
//! refill the key is as if nothing had been. Permits, whose holders are not known, are as after a
//! restart: none is held. The calls that decide know nothing of this; it is done, and they are sent
//! again, when one of them says what it found.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::answer::Reply;
use crate::asked::{Asked, Codes, strange};
use crate::gather::Words;
use crate::link::Failure;
use crate::store::Request;

/// How often the log says that values are replaced.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// Values that were replaced.
#[derive(Debug, Default)]
pub(crate) struct Replaced {
    count: AtomicU64,
    told: Mutex<Option<Instant>>,
}

impl Replaced {
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts some; returns whether that is worth a line now.
    fn add(&self, count: u64, now: Instant) -> bool {
        self.count.fetch_add(count, Ordering::Relaxed);
        let mut told = self.told.lock();
        let is_due = told.is_none_or(|told| now.saturating_duration_since(told) >= TELL_AGAIN);
        if is_due && count > 0 {
            *told = Some(now);
        }
        is_due && count > 0
    }
}

impl Asked<'_> {
    /// Replaces what cannot be read of the states of a group, and of what is known of an id under the
    /// name `record`; `head` is that of the call that found it.
    pub(crate) async fn replace_foreign(
        &self,
        group: &[usize],
        record: Option<&[u8]>,
        head: &[u8],
        reason: &str,
    ) -> Result<(), Failure> {
        let mut keys: Vec<_> = record.map(<[u8]>::to_vec).into_iter().collect();
        let before = keys.len();
        let mut arguments = vec![head.to_vec()];
        arguments.extend(keys.iter().map(|_| Vec::new()));
        if let Some(request) = arguments.first_mut().and_then(|head| head.first_mut()) {
            *request = Request::Replace as u8;
        }
        for index in group {
            if let (Some(name), Some(code)) = (self.names.get(*index), self.codes.get(*index)) {
                keys.push(name.clone());
                arguments.push(code.clone());
            }
        }
        let codes = Codes {
            first: 1 + before,
            step: 1,
        };
        let reply = self.ask(group, Words { keys, arguments }, codes, true);
        let reply = reply.await?;
        let mut read = Reply::of(&reply).ok_or_else(|| strange(&reply))?;
        let (Some(_), Some(count)) = (read.natural(), read.natural()) else {
            return Err(strange(&reply));
        };
        let store = self.store();
        if store.replaced.add(count, Instant::now()) {
            tracing::warn!(
                store = %store,
                values = store.replaced.count(),
                reason,
                "keys of ours held something that Quell did not write: each counts as used up now; \
                 give Quell a database of its own"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_once_a_minute() {
        let replaced = Replaced::default();
        let now = Instant::now();
        assert!(!replaced.add(0, now), "nothing was replaced");
        assert!(replaced.add(1, now));
        assert!(!replaced.add(2, now + TELL_AGAIN / 2));
        assert!(replaced.add(1, now + TELL_AGAIN));
        assert_eq!(replaced.count(), 4);
    }
}
