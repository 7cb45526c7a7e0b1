//! Shares: one quota divided among the nodes of a fleet, each of which decides alone.
//!
//! The simplest idea is to divide: four nodes, 1000/s, 250/s each. It is safe without a word
//! between them, and it wastes whatever an idle node does not use. So a coordinator moves shares to
//! where the demand is, and then everything that can go wrong is a node that still uses what
//! somebody else was given meanwhile: an answer was late, a clock was slow, a leader was paused, its
//! successor had forgotten.
//!
//! Here a share is a *schedule* ([`schedule`]): a lease for a while, then no more than the node's
//! static share, and after that the static share itself. Expiry is data, so nothing has to happen
//! for a right to end. The coordinator ([`ledger`]) keeps, per member, every schedule it sent since
//! the last one it knows to be in force, and with it an upper bound U(x) of what the member may use
//! at any later instant x. It grants r until E only where, for every x until E,
//!
//! ```text
//! r + sum over the others of U(x) <= R
//! ```
//!
//! and an acknowledgement is the only thing that lets U fall before its time. Who may say so after
//! a coordinator died is the subject of [`leader`]. How much each member should have is a plain
//! function ([`apportion`]); the node's side is [`member`]; [`audit`] is the judge of it all, in the
//! simulator as in production.
//!
//! Everything is integers: rates in micro-units per second, tokens in micro-units, time in
//! nanoseconds of whichever clock belongs to the one who decides. No clock is compared with another;
//! a bound on how fast they may drift apart ([`plan::Drift`]) is enough.
//!
//! Bad at: quotas so small that a share is less than a few calls per report; see
//! [`plan::Plan::check`].
//!
//! Nothing here reads a clock or does I/O: a state machine takes an instant and an event, and
//! returns what to send and what to put in force.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod apportion;
pub mod audit;
mod curve;
pub mod leader;
pub mod ledger;
pub mod member;
pub mod message;
#[cfg(feature = "mutations")]
pub mod mistake;
pub mod plan;
pub mod schedule;
pub mod still;

/// Whether a deliberate mistake is switched on: always false, and gone from the code, unless the
/// simulator's feature is compiled in.
macro_rules! errs {
    ($self:expr, $mistake:ident) => {{
        #[cfg(feature = "mutations")]
        let on = $self.mistake == Some(crate::mistake::Mistake::$mistake);
        #[cfg(not(feature = "mutations"))]
        let on = false;
        on
    }};
}
pub(crate) use errs;
