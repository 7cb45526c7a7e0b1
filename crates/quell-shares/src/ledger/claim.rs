//! Claim: a request that names a number which the store has not given.

use super::Ledger;
use crate::generation;
use crate::message::Request;
use crate::plan::MemberId;
use crate::store_rollback::Number;

/// A request that names a number which the store has not given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    /// The member.
    pub(crate) member: MemberId,
    /// True if the member has a seat, in its incarnation.
    pub(crate) is_seated: bool,
    /// Number that the claim is about.
    pub(crate) number: Number,
    /// Value that the member says it has seen.
    pub(crate) seen: u64,
    /// Value that this leader has.
    pub(crate) known: u64,
}

impl Claim {
    /// Returns true if the claim counts as a proof, should others say so too: see `leader/witnesses.rs`.
    pub(crate) fn can_prove(&self) -> bool {
        self.is_seated && generation::of(self.seen) <= generation::of(self.known)
    }
}

impl Ledger {
    /// Returns true if the sender has a seat, in its incarnation.
    pub(crate) fn is_seated(&self, request: &Request) -> bool {
        let Request::Report(report) = request else {
            return false;
        };
        let account = self.accounts.get(&report.member);
        account.is_some_and(|account| account.seat.incarnation == report.incarnation)
    }

    /// Claim of a sender that says it knows a higher number than this leader, or this epoch although it was
    /// not told of it. Then there is a later leader, or the store went back, or it lies.
    pub(crate) fn ahead(&self, request: &Request) -> Option<Claim> {
        let is_seated = self.is_seated(request);
        let (member, epoch, version, incarnation) = match request {
            Request::Report(report) => {
                let account = self.accounts.get(&report.member);
                let told = account.is_none_or(|account| account.addressed);
                // An epoch that was given twice counts as one more.
                let again = u64::from(report.epoch == self.epoch && is_seated && !told);
                let epoch = report.epoch.saturating_add(again);
                (report.member, epoch, report.record, 0)
            }
            Request::Join(join) => (join.member, join.epoch, join.record, join.replaces),
            Request::Leave(_) => return None,
        };
        let numbers = [
            (Number::Epoch, epoch, self.epoch),
            (Number::Record, version, self.record.version),
            (Number::Incarnation, incarnation, self.record.incarnations),
        ];
        let higher = numbers.into_iter().find(|(_, seen, ours)| seen > ours);
        higher.map(|(number, seen, known)| Claim {
            member,
            is_seated,
            number,
            seen,
            known,
        })
    }
}
