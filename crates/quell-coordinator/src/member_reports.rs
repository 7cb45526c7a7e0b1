//! Member reports: what members say on their streams, for as long as those last.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use quell_shares::plan::MemberId;

/// Last report of each connected member, with the number of the stream that it came on.
#[derive(Debug)]
pub(crate) struct MemberReports<T>(Mutex<BTreeMap<MemberId, (u64, T)>>);

impl<T> Default for MemberReports<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> MemberReports<T> {
    pub(crate) fn all(&self) -> MutexGuard<'_, BTreeMap<MemberId, (u64, T)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what a member says on a stream. An older stream than the one heard last says nothing new.
    pub(crate) fn note(&self, member: MemberId, stream: u64, report: T) {
        let mut all = self.all();
        if all.get(&member).is_none_or(|(last, _)| *last <= stream) {
            all.insert(member, (stream, report));
        }
    }

    /// A stream has ended. What the member said on a newer one stays.
    pub(crate) fn forget(&self, member: MemberId, stream: u64) {
        let mut all = self.all();
        if all.get(&member).is_some_and(|(last, _)| *last == stream) {
            all.remove(&member);
        }
    }
}
