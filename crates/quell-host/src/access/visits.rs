//! Visits: how often one person, or strangers of one address, may ask a console for something.
//!
//! A page costs more than a question: some list every key that was refused, and a form may have megabytes of
//! rules. A person who reads, with pages that are kept up to date and checked while they are written, stays far
//! below.

use std::net::IpAddr;

use quell::{KeyedLimiter, Limit};
use quell_protocol::callers::Network;
use quell_protocol::http::{Problem, ProblemKind};

use super::Caller;

/// Requests a second of one visitor, in the long run.
const VISITS_PER_SECOND: u64 = 50;

/// Requests of one visitor at once.
const MAX_VISITS: u64 = 500;

/// Visitors that are told apart; more share what they have. Some 40 bytes each.
const MAX_VISITORS: usize = 65_536;

/// Visitor: a person by name, or a stranger's network.
pub(super) type Visitor = (Option<String>, Option<Network>);

/// The visitor from this address.
pub(super) fn visitor(caller: &Caller, address: Option<IpAddr>) -> Visitor {
    match caller.grant() {
        Some(grant) => (Some(grant.name().to_string()), None),
        None => (None, address.map(Network::from)),
    }
}

/// Counts the requests to a console.
#[derive(Debug)]
pub struct Visits(Option<KeyedLimiter<Visitor>>);

impl Default for Visits {
    /// No visits yet.
    fn default() -> Self {
        let limit = Limit::per_second(VISITS_PER_SECOND).burst(MAX_VISITS);
        Self(KeyedLimiter::with(limit, MAX_VISITORS, quell::clock::SystemClock::new()).ok())
    }
}

impl Visits {
    /// Admits a request, or says why not.
    ///
    /// # Errors
    /// Its visitor has asked for too much. A second later it may ask again.
    pub fn admit(&self, caller: &Caller, address: Option<IpAddr>) -> Result<(), Box<Problem>> {
        let visitor = visitor(caller, address);
        match &self.0 {
            Some(limiter) if !limiter.try_acquire(&visitor).outcome.is_allow() => {
                let detail = format!(
                    "you ask the console for more than {VISITS_PER_SECOND} pages a second: wait a second; \
                     programs ask the routes under /v1"
                );
                Err(Problem::new(ProblemKind::QuotaExceeded, detail).into())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_visitor_who_asks_for_too_much_is_no_matter_to_another() {
        let visits = Visits::default();
        let ask = |address: &str| visits.admit(&Caller::Stranger, address.parse().ok());
        let refused = (0..10 * MAX_VISITS).find_map(|_| ask("10.0.0.1").err());
        let refused = refused.unwrap();
        assert_eq!(refused.status, 429);
        assert!(refused.detail.unwrap().contains("wait a second"));
        ask("10.0.0.2").unwrap();
    }
}
