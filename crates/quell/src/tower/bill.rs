//! Bill: the real cost of a call, reported by the service.

use std::sync::Arc;

use parking_lot::Mutex;

/// The real cost of a call, in its request's extensions under a layer with
/// [`LimitLayer::cost_after`](super::LimitLayer::cost_after).
///
/// The service may report it at any time, even while the response's body is being sent; the last
/// reported cost is paid at the end. Without a report, the estimate that was charged when the
/// request came stays.
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
    /// Sets the call's cost to this many units, 0 or more, in place of an earlier report.
    pub fn set(&self, units: u64) {
        *self.0.lock() = Some(units);
    }

    /// Adds this many units to the reported cost, if there is one.
    pub fn add(&self, units: u64) {
        let mut cost = self.0.lock();
        *cost = Some(cost.unwrap_or(0).saturating_add(units));
    }

    /// The reported cost, if there is one.
    #[must_use]
    pub fn cost(&self) -> Option<u64> {
        *self.0.lock()
    }
}
