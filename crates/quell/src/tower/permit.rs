//! Permit: what a call holds until its response has been sent.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use derive_where::derive_where;
use quell_core::end_hold::Ending;
use quell_core::hold::HoldId;
use quell_core::time::Monotonic;

use super::bill::Bill;
use crate::clock::Alarm;
use crate::limiter::Limiter;
use crate::store::HoldStore;

/// Ends, when it is dropped, what a call holds: permits come back, and what the call cost is paid.
#[derive_where(Debug)]
pub(super) struct Permit {
    #[derive_where(skip)]
    holder: Box<dyn Holder>,
    bill: Option<Bill>,
    course: CallPhase,
    /// The interval of renewals: half of the time that a hold lasts.
    every: Duration,
    due: Monotonic,
    #[derive_where(skip)]
    alarm: Option<(Alarm, Waker)>,
}

/// Phase that a call has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallPhase {
    /// The service is handling it.
    UnderWay,
    /// The service answered.
    Served,
    /// The service had no room or no time for it.
    Failed,
}

/// The holder of a permit, on any store.
trait Holder: Send + Sync {
    fn now(&self) -> Monotonic;

    fn end(&self, ending: Ending);

    fn alarm(&self, instant: Monotonic, waker: &Waker) -> Alarm;
}

struct PermitHolder<S> {
    limiter: Limiter<S>,
    id: HoldId,
}

impl<S: HoldStore> Holder for PermitHolder<S> {
    fn now(&self) -> Monotonic {
        self.limiter.now().monotonic
    }

    fn end(&self, ending: Ending) {
        self.limiter.abandon(&self.id, ending);
    }

    fn alarm(&self, instant: Monotonic, waker: &Waker) -> Alarm {
        self.limiter.parts.clock.alarm(instant, waker)
    }
}

impl Permit {
    /// The hold `id`, which lasts for `keep` without being renewed.
    pub(super) fn new<S: HoldStore>(
        limiter: &Limiter<S>,
        id: HoldId,
        keep: Duration,
        bill: Option<Bill>,
    ) -> Self {
        let limiter = limiter.clone();
        let every = keep / 2;
        Self {
            due: limiter.now().monotonic.saturating_add(every),
            holder: Box::new(PermitHolder { limiter, id }),
            bill,
            course: CallPhase::UnderWay,
            every,
            alarm: None,
        }
    }

    /// Bill to which the call's real cost is reported, if it is paid afterwards.
    pub(super) const fn bill(&self) -> Option<&Bill> {
        self.bill.as_ref()
    }

    /// Records how the service answered.
    pub(super) const fn note_response(&mut self, course: CallPhase) {
        self.course = course;
    }

    /// Renews the hold if it is time to, and has the task of `context` woken for the next time.
    pub(super) fn keep(&mut self, context: &Context<'_>) {
        let now = self.holder.now();
        if now >= self.due {
            self.holder.end(Ending::Renew);
            self.due = now.saturating_add(self.every);
            self.alarm = None;
        }
        let is_set = |(_, waker): &(Alarm, Waker)| waker.will_wake(context.waker());
        if !self.alarm.as_ref().is_some_and(is_set) {
            let alarm = self.holder.alarm(self.due, context.waker());
            self.alarm = Some((alarm, context.waker().clone()));
        }
    }
}

/// Awaits `work`, and keeps the hold meanwhile.
pub(super) async fn keep<F: Future>(permit: &mut Option<Permit>, work: F) -> F::Output {
    let mut work = pin!(work);
    poll_fn(|context| {
        if let Some(permit) = permit {
            permit.keep(context);
        }
        work.as_mut().poll(context)
    })
    .await
}

impl Drop for Permit {
    fn drop(&mut self) {
        let cost = self.bill.as_ref().and_then(Bill::cost);
        self.holder.end(match (cost, self.course) {
            // Its cost has to be paid, whatever happened to it.
            (Some(units), _) => Ending::Settle(units.into()),
            (None, CallPhase::Failed) => Ending::Fail,
            // How long its caller stayed says nothing about the service. An estimate stays charged.
            (None, CallPhase::UnderWay) if self.bill.is_none() => Ending::Cancel,
            (None, _) => Ending::Release,
        });
    }
}
