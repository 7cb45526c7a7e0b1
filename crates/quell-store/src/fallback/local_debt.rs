//! Local debt: what this node let pass of one key while the store was gone, and owes to it.
//!
//! ```text
//! admit ---> debt ---begin---> payment ---answered---> nothing owed
//!              ^                  |-----no answer----> nothing owed: charged once, or not at all
//!              '---------------unpaid
//! ```
//!
//! Units whose payment has no answer are never certain: they are not owed, and count against the share
//! whenever the store fails again. So a store that keeps losing calls has at most one share admitted
//! beside what it charges itself.

use std::sync::Arc;
use std::time::Duration;

use quell_core::algorithm::{At, Edges};
use quell_core::charge::Charge;
use quell_core::cost::Cost;
use quell_core::debt::Debt;
use quell_core::limit::Limit;
use quell_core::on_failure::OnFailure;
use quell_core::time::{Monotonic, Now};
use tokio::sync::watch;

use super::shared_limit::SharedLimit;
use crate::remote::RemoteFailure;

/// Units of one key that this node admitted without the store.
#[derive(Clone, Debug)]
pub(super) struct LocalDebt {
    /// Units that the store knows nothing of.
    debt: Debt,
    /// Units that the store may have charged.
    pub(super) uncertain: Option<Box<Debt>>,
    payment: Option<Box<Payment>>,
    /// The largest version of the limit since something is owed. More units than the present version
    /// holds are charged under this.
    largest: Arc<SharedLimit>,
    /// True if a ban began here that the store does not know.
    pub(super) has_banned: bool,
    /// True if there is a debt for which no payment is under way.
    pub(super) is_due: bool,
}

/// Part of a debt on its way to the store.
#[derive(Clone, Debug)]
struct Payment {
    number: u64,
    debt: Debt,
    has_banned: bool,
    done: PaymentWatch,
}

/// Reports the outcome of a payment.
pub(super) type PaymentWatch = watch::Receiver<Option<Result<(), RemoteFailure>>>;

/// A debt to charge to the store.
#[derive(Debug)]
pub(super) struct PaymentOrder {
    pub(super) key: Arc<[u8]>,
    pub(super) scope: usize,
    pub(super) limits: Arc<SharedLimit>,
    pub(super) edges: Option<Edges>,
    pub(super) units: u64,
    /// For how much longer the key is banned, if a ban began here.
    pub(super) ban: Option<Duration>,
    pub(super) done: watch::Sender<Option<Result<(), RemoteFailure>>>,
    number: u64,
}

/// The outcome of a payment.
#[derive(Clone, Debug)]
pub(super) enum PaymentOutcome {
    /// Charged, as far as it fits. If known, when the store's state will be at rest.
    Made(Option<Monotonic>),
    /// The payment was sent and not answered. It is not sent again, because it may have been charged.
    Unknown,
    /// The store charged nothing.
    Unpaid,
}

/// The result of starting to repay a key.
#[derive(Debug)]
pub(super) enum PaymentStart {
    /// No debt.
    Nothing,
    /// Another caller is already repaying it.
    Joined(PaymentWatch),
    /// The caller must make the payment.
    Started(Box<PaymentOrder>, PaymentWatch),
}

impl LocalDebt {
    /// No debt on a key whose state on the store is at rest at `rests`.
    pub(super) fn new(limits: &Arc<SharedLimit>, rests: Monotonic) -> Self {
        Self {
            debt: Debt::new(rests),
            uncertain: None,
            payment: None,
            largest: Arc::clone(limits),
            has_banned: false,
            is_due: false,
        }
    }

    /// Adds units that the store knows nothing of.
    pub(super) fn add(&mut self, limits: &SharedLimit, units: u64, at: &At) {
        self.debt.add(&limits.counted, units, at);
    }

    /// Adds units that the store may have charged.
    pub(super) fn add_uncertain(&mut self, limits: &SharedLimit, units: u64, at: &At) {
        let debt = &self.debt;
        let uncertain = self.uncertain.get_or_insert_with(|| debt.emptied().into());
        uncertain.add(&limits.counted, units, at);
    }

    /// Takes the units that the store may have charged, and counts them.
    pub(super) fn take_uncertain(
        &mut self,
        limits: &SharedLimit,
        at: &At,
    ) -> (Option<Box<Debt>>, u64) {
        let mut uncertain = self.uncertain.take();
        let units = uncertain.as_mut();
        let units = units.map_or(0, |debt| debt.units(&limits.counted, at));
        (uncertain, units)
    }

    /// Takes over another version of the limit.
    pub(super) fn carry(&mut self, from: &SharedLimit, to: &Arc<SharedLimit>, at: &At) {
        let payment = self.payment.as_mut().map(|payment| &mut payment.debt);
        let all = [Some(&mut self.debt), payment, self.uncertain.as_deref_mut()];
        let mut is_owed = false;
        for debt in all.into_iter().flatten() {
            debt.carry(&from.counted, &to.counted, at);
            is_owed |= debt.units(&to.counted, at) > 0;
        }
        if !is_owed || to.whole.limit.max() >= self.largest.whole.limit.max() {
            self.largest = Arc::clone(to);
        }
    }

    pub(super) fn owes(&self) -> bool {
        self.is_due || self.payment.is_some()
    }

    /// Returns true if it is known of all units whether the store charged them.
    pub(super) fn is_certain(&self) -> bool {
        self.uncertain.is_none()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let payment = self.payment.as_ref().map_or(0, |payment| {
            size_of::<Payment>() + payment.debt.heap_bytes()
        });
        let uncertain = self.uncertain.as_ref();
        let uncertain = uncertain.map_or(0, |debt| size_of::<Debt>() + debt.heap_bytes());
        self.debt.heap_bytes() + uncertain + payment
    }

    /// Begins to pay what is owed, or joins the payment that is on its way. `ban` is for how much longer
    /// the key is banned here; without a `scope` nothing is ever paid.
    pub(super) fn begin(
        &mut self,
        number: u64,
        key: &Arc<[u8]>,
        scope: Option<u32>,
        limits: &Arc<SharedLimit>,
        ban: Option<Duration>,
        at: impl Fn(&Limit) -> At,
    ) -> PaymentStart {
        if let Some(payment) = &self.payment {
            return PaymentStart::Joined(payment.done.clone());
        }
        self.is_due = false;
        let units = self.debt.units(&limits.counted, &at(&limits.whole.limit));
        let limits = match units > limits.whole.limit.max() {
            true => &self.largest,
            false => limits,
        };
        let ban = ban.filter(|_| self.has_banned);
        let Some(scope) = scope.filter(|_| units > 0 || ban.is_some()) else {
            return PaymentStart::Nothing;
        };
        let (sender, done) = watch::channel(None);
        let order = PaymentOrder {
            key: Arc::clone(key),
            scope: scope as usize,
            limits: Arc::clone(limits),
            edges: at(&limits.whole.limit).edges,
            units,
            ban,
            done: sender,
            number,
        };
        self.payment = Some(Box::new(Payment {
            number,
            debt: self.debt.take(),
            has_banned: std::mem::take(&mut self.has_banned),
            done: done.clone(),
        }));
        PaymentStart::Started(Box::new(order), done)
    }

    /// Notes what became of a payment; false if another has taken its place.
    pub(super) fn finish(
        &mut self,
        limits: &SharedLimit,
        order: &PaymentOrder,
        outcome: &PaymentOutcome,
        now: Now,
    ) -> bool {
        let is_same = |payment: &mut Box<Payment>| payment.number == order.number;
        let Some(payment) = self.payment.take_if(is_same) else {
            return false;
        };
        let at = At {
            edges: order.edges,
            ..At::plain(now)
        };
        match outcome {
            PaymentOutcome::Made(Some(rests)) => {
                self.debt.drain_from(&limits.counted, *rests, &at);
            }
            PaymentOutcome::Made(None) => {}
            PaymentOutcome::Unknown => self.add_uncertain(limits, order.units, &at),
            PaymentOutcome::Unpaid => {
                let since = self.debt.units(&limits.counted, &at);
                self.debt = payment.debt;
                self.debt.add(&limits.counted, since, &at);
                self.has_banned |= payment.has_banned;
                self.is_due = true;
            }
        }
        true
    }
}

impl PaymentOrder {
    /// The charge that the store is asked for.
    pub(super) fn charge(&self) -> Charge<'_> {
        let mut charge = Charge::alone(&self.limits.whole, Cost::ONE);
        charge.edges = self.edges;
        charge.policy.on_failure = Some(OnFailure::Share {
            nodes: self.limits.nodes,
        });
        charge
    }
}
