//! Pointer: lists the states that an id may have holds on, in the id's own slot of a cluster.
//!
//! It is written before anything is claimed, and expires after all that it points to: a crash in between
//! leaves a pointer to nothing, never a hold that cannot be found. A node caches the pointers of its own
//! holds, so that it ends them without reading the pointer.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quell::store::memory::RETENTION;
use quell_core::hold::HoldId;

use crate::link::Failure;

/// The version of the layout.
const LAYOUT: u8 = 1;

/// States that one id may point to. A set has far fewer, but an id that is claimed again with other sets
/// collects their states.
pub(crate) const MAX_STATES: usize = 256;

/// Ids that a node remembers: more than there are callers that may wait at a time
/// ([`MAX_WAITING`](quell::MAX_WAITING)), about 8 MB.
const MAX_IDS: usize = 32_768;

/// Time by which a pointer outlives its holds: for the difference of two servers' clocks and the time of a
/// claim.
const SLACK: Duration = Duration::from_secs(60);

/// States to which an id points.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pointer {
    /// Number of claims of the id. A later attempt takes over what an earlier one left.
    pub(crate) attempt: u64,
    /// Distinguishes attempts at the same time, if a set spans slots.
    pub(crate) nonce: u64,
    /// Lifetime of the holds without renewal; zero if only this node ends them, so that no pointer is
    /// written.
    pub(crate) keep: Duration,
    /// The answer, once all parts of a set that spans slots hold.
    pub(crate) answer: Option<Vec<u8>>,
    /// Names of states.
    pub(crate) states: Vec<Vec<u8>>,
}

impl Pointer {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut bytes = vec![LAYOUT, u8::from(self.answer.is_some())];
        bytes.extend_from_slice(&self.attempt.to_be_bytes());
        bytes.extend_from_slice(&self.nonce.to_be_bytes());
        let keep = u64::try_from(self.keep.as_micros()).unwrap_or(u64::MAX);
        bytes.extend_from_slice(&keep.to_be_bytes());
        let mut push = |part: &[u8]| {
            // Names have at most 215 bytes, and an answer 49 for each of at most 256 limits.
            let length = u16::try_from(part.len()).unwrap_or(u16::MAX);
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.extend_from_slice(part);
        };
        if let Some(answer) = &self.answer {
            push(answer);
        }
        for state in &self.states {
            push(state);
        }
        bytes
    }

    /// `None` if Quell did not write these bytes.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<2>()?;
        let (attempt, rest) = rest.split_first_chunk()?;
        let (nonce, rest) = rest.split_first_chunk()?;
        let (keep, mut rest) = rest.split_first_chunk()?;
        let mut parts = Vec::new();
        while let Some((length, after)) = rest.split_first_chunk() {
            let (part, after) = after.split_at_checked(u16::from_be_bytes(*length).into())?;
            parts.push(part.to_vec());
            rest = after;
        }
        let is_ours = head[0] == LAYOUT && rest.is_empty() && !parts.is_empty();
        let answer = (head[1] == 1 && is_ours).then(|| parts.remove(0));
        is_ours.then(|| Self {
            attempt: u64::from_be_bytes(*attempt),
            nonce: u64::from_be_bytes(*nonce),
            keep: Duration::from_micros(u64::from_be_bytes(*keep)),
            answer,
            states: parts,
        })
    }

    /// Points to these as well.
    pub(crate) fn add(&mut self, states: &[Vec<u8>]) {
        for state in states {
            if !self.states.contains(state) {
                self.states.push(state.clone());
            }
        }
    }

    /// Returns true if the pointer has all of `states`.
    pub(crate) fn has(&self, states: &[Vec<u8>]) -> bool {
        states.iter().all(|state| self.states.contains(state))
    }

    /// Lifetime of the pointer if its holds begin after `wait`, in milliseconds.
    pub(crate) fn expiry(&self, wait: Duration) -> u64 {
        let lasts = [wait, self.keep, RETENTION, SLACK];
        let lasts = lasts
            .iter()
            .fold(Duration::ZERO, |sum, part| sum.saturating_add(*part));
        u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX)
    }

    /// Lifetime of the pointer once nothing is held any more, in milliseconds.
    pub(crate) fn rest() -> u64 {
        Self::default().expiry(Duration::ZERO)
    }

    /// Reads a pointer.
    ///
    /// # Errors
    /// [`Failure::Foreign`] if Quell did not write these bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Failure> {
        let foreign = || Failure::Foreign("the pointer of an id".to_owned());
        Self::read(bytes).ok_or_else(foreign)
    }
}

/// The pointers that this node wrote last.
#[derive(Debug, Default)]
pub(crate) struct PointerCache {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    pointers: HashMap<HoldId, Arc<Pointer>>,
    /// In the order of insertion.
    ids: VecDeque<HoldId>,
}

impl PointerCache {
    pub(crate) fn get(&self, id: &HoldId) -> Option<Arc<Pointer>> {
        self.inner.lock().pointers.get(id).cloned()
    }

    pub(crate) fn set(&self, id: &HoldId, pointer: Pointer) {
        let mut inner = self.inner.lock();
        if inner
            .pointers
            .insert(id.clone(), Arc::new(pointer))
            .is_some()
        {
            return;
        }
        inner.ids.push_back(id.clone());
        if inner.ids.len() > MAX_IDS
            && let Some(oldest) = inner.ids.pop_front()
        {
            inner.pointers.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointer(answer: Option<&[u8]>, states: &[&[u8]]) -> Pointer {
        Pointer {
            attempt: 3,
            nonce: 5,
            keep: Duration::from_millis(2_500),
            answer: answer.map(<[u8]>::to_vec),
            states: states.iter().map(|state| state.to_vec()).collect(),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for one in [
            pointer(None, &[b"a"]),
            pointer(None, &[b"quell:1:{x}", b"", b"\xff\0"]),
            pointer(Some(b""), &[b"a", b"b"]),
            pointer(Some(b"\0\x01"), &[b"a"]),
        ] {
            let bytes = one.write();
            assert_eq!(Pointer::read(&bytes), Some(one));
            for end in 0..bytes.len() {
                let shorter = bytes.get(..end).unwrap_or_default();
                assert_ne!(Pointer::read(shorter), Pointer::read(&bytes));
            }
        }
        for foreign in [b"".as_slice(), b"hello", &[0; 40]] {
            assert_eq!(Pointer::read(foreign), None);
        }
    }

    #[test]
    fn the_oldest_is_forgotten_first() {
        let pointers = PointerCache::default();
        let id = |number: usize| {
            HoldId::new("d", &format!("id-{number}")).unwrap_or_else(|| unreachable!())
        };
        for number in 0..=MAX_IDS {
            pointers.set(&id(number), pointer(None, &[b"a"]));
            pointers.set(&id(number), pointer(None, &[b"b"]));
        }
        assert_eq!(pointers.get(&id(0)), None);
        let kept = pointers.get(&id(1)).map(|kept| kept.states.clone());
        assert_eq!(kept, Some(vec![b"b".to_vec()]));
        assert_eq!(pointers.inner.lock().pointers.len(), MAX_IDS);
    }
}
