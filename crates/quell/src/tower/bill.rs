//! Bill: what a call cost in truth, for whoever finds out.

use std::sync::Arc;

use parking_lot::Mutex;

/// What a call cost in truth, among its request's extensions under a layer with
/// [`LimitLayer::cost_after`](super::LimitLayer::cost_after).
///
/// Whoever finds out says so, also while the response's body is being sent; what was said last is
/// paid when that is over. As long as nobody says anything, the estimate that was charged when the
/// request came stands.
///
/// ```
/// use quell::tower::Bill;
///
/// # let mut request = http::Request::new(());
/// # request.extensions_mut().insert(Bill::default());
/// if let Some(bill) = request.extensions().get::<Bill>() {
///     bill.set(1_500);
///     bill.add(20);
///     assert_eq!(bill.cost(), Some(1_520));
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Bill(Arc<Mutex<Option<u64>>>);

impl Bill {
    /// The call cost so many units, 0 or more, in place of what was said before.
    pub fn set(&self, units: u64) {
        *self.0.lock() = Some(units);
    }

    /// The call cost so many units more than was said before, if anything was.
    pub fn add(&self, units: u64) {
        let mut cost = self.0.lock();
        *cost = Some(cost.unwrap_or(0).saturating_add(units));
    }

    /// What was said, if anything was.
    #[must_use]
    pub fn cost(&self) -> Option<u64> {
        *self.0.lock()
    }
}
