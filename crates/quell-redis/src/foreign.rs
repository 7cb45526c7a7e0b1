//! Replaces values under our names that Quell did not write.
//!
//! A state that cannot be read would make its key fail for ever, and how much was used is not known. So
//! it is replaced by a state that is fully used: the limit is not exceeded, and after one full refill the
//! key is back to normal. Permits, whose holders are not known, start at none held, as after a restart.
//! The decision scripts only report such a value; the caller then replaces it and sends its call again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::answer::Reply;
use crate::batch::ScriptArgs;
use crate::link::Failure;
use crate::script_request::{ChargePositions, GroupScript, ScriptRequest, strange};
use crate::store::Opcode;

/// How often the log says that values are replaced.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Values that were replaced.
#[derive(Debug, Default)]
pub(crate) struct ReplacedValues {
    count: AtomicU64,
    logged: Mutex<Option<Instant>>,
}

impl ReplacedValues {
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts some; returns whether that is worth a line now.
    fn add(&self, count: u64, now: Instant) -> bool {
        self.count.fetch_add(count, Ordering::Relaxed);
        let mut logged = self.logged.lock();
        let is_due =
            logged.is_none_or(|logged| now.saturating_duration_since(logged) >= LOG_INTERVAL);
        if is_due && count > 0 {
            *logged = Some(now);
        }
        is_due && count > 0
    }
}

impl ScriptRequest<'_> {
    /// Replaces those states of a group that cannot be read, and the hold's record if it cannot; `head`
    /// is that of the script call that found it.
    pub(crate) async fn replace_foreign(
        &self,
        found_by: GroupScript<'_>,
        head: &[u8],
        reason: &str,
    ) -> Result<(), Failure> {
        let record = found_by.record.map(<[u8]>::to_vec);
        let mut keys: Vec<_> = record.into_iter().collect();
        let before = keys.len();
        let mut arguments = vec![head.to_vec()];
        arguments.extend(keys.iter().map(|_| Vec::new()));
        if let Some(opcode) = arguments.first_mut().and_then(|head| head.first_mut()) {
            *opcode = Opcode::Replace as u8;
        }
        for index in found_by.group {
            if let (Some(name), Some(code)) = (self.names.get(*index), self.codes.get(*index)) {
                keys.push(name.clone());
                arguments.push(code.clone());
            }
        }
        let charges = ChargePositions {
            first: 1 + before,
            step: 1,
        };
        let script = GroupScript {
            charges,
            is_of_holds: true,
            ..found_by
        };
        let args = Arc::new(ScriptArgs { keys, arguments });
        let reply = self.run_with_edges(script, args).await?;
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
        let replaced = ReplacedValues::default();
        let now = Instant::now();
        assert!(!replaced.add(0, now), "nothing was replaced");
        assert!(replaced.add(1, now));
        assert!(!replaced.add(2, now + LOG_INTERVAL / 2));
        assert!(replaced.add(1, now + LOG_INTERVAL));
        assert_eq!(replaced.count(), 4);
    }
}
