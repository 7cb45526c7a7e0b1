//! Callers: what one address may take of a listener, in connections and in failed logins.
//!
//! The rule is that of servers (decision 164). A valid token is never refused because of others from the same
//! address, since many callers may come through one gateway.

use std::net::IpAddr;
use std::sync::Arc;

use quell::{KeyedLimiter, Limit};
use quell_protocol::callers::{Network, NoPlace, Place, Places};

use crate::metrics::ListenerNumbers;

/// Failed logins of one address a minute; each further one loses its connection.
const FAILED_LOGINS: u64 = 60;

/// Networks that are told apart; more share what they have. Some 40 bytes each.
const MAX_NETWORKS: usize = 65_536;

/// Networks whose lines in the log are told apart, so that many cannot fill the disk.
const MAX_LOGGED: usize = 1_024;

/// The callers of one listener.
#[derive(Debug)]
pub(crate) struct Callers {
    places: Arc<Places>,
    numbers: Arc<ListenerNumbers>,
    /// `None`: no bound, which happens for no constant above.
    failed: Option<KeyedLimiter<Network>>,
    lines: Option<KeyedLimiter<Network>>,
}

impl Callers {
    /// With room for so many connections, in all and of one address.
    pub(crate) fn new(
        most: usize,
        most_per_address: usize,
        numbers: Arc<ListenerNumbers>,
    ) -> Arc<Self> {
        let limit = |count, networks| {
            let clock = quell::clock::SystemClock::new();
            KeyedLimiter::with(Limit::per_minute(count), networks, clock).ok()
        };
        Arc::new(Self {
            places: Places::new(most, most_per_address),
            numbers,
            failed: limit(FAILED_LOGINS, MAX_NETWORKS),
            lines: limit(1, MAX_LOGGED),
        })
    }

    /// A place for a connection, if there is one.
    pub(crate) fn take(&self, address: IpAddr) -> Option<Place> {
        let full = match self.places.take(Some(address)) {
            Ok(place) => return Some(place),
            Err(full) => full,
        };
        let numbers = &self.numbers;
        match full {
            NoPlace::Listener => numbers.refused.increment(),
            NoPlace::Address => numbers.refused_to_address.increment(),
        }
        let network = Network::from(address);
        if self.may_log(network) {
            tracing::warn!(%network, ?full, "too many connections: this one is closed");
        }
        None
    }

    /// Notes a failed login. Returns whether there were too many from this address.
    pub(crate) fn note_failed_login(&self, address: IpAddr) -> bool {
        let network = Network::from(address);
        self.numbers.failed_logins.increment();
        if self.may_log(network) {
            tracing::warn!(%network, "a caller shows a token that is not among the credentials");
        }
        let failed = self.failed.as_ref();
        failed.is_some_and(|limit| !limit.try_acquire(&network).outcome.is_allow())
    }

    /// Whether the log may have a line about this network now.
    fn may_log(&self, network: Network) -> bool {
        let lines = self.lines.as_ref();
        lines.is_some_and(|limit| limit.try_acquire(&network).outcome.is_allow())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_logins_of_one_address_are_no_matter_to_another() {
        let callers = Callers::new(1, 1, Arc::default());
        let is_too_many = |address: &str| callers.note_failed_login(address.parse().unwrap());
        let too_many = (0..100).filter(|_| is_too_many("10.0.0.1")).count();
        // One comes back each second.
        assert!((30..=40).contains(&too_many), "{too_many}");
        assert!(!is_too_many("10.0.0.2") && !is_too_many("2001:db8::1"));
    }

    /// An attacker of IPv6 has as many networks as it likes.
    #[test]
    fn networks_beyond_those_told_apart_share_what_they_have() {
        let callers = Callers::new(1, 1, Arc::default());
        for network in 0..200_000_u128 {
            callers.note_failed_login(IpAddr::from((network << 64).to_be_bytes()));
        }
        let kept = |limit: &Option<KeyedLimiter<Network>>| limit.as_ref().unwrap().keys();
        assert!(kept(&callers.failed) <= MAX_NETWORKS);
        assert!(kept(&callers.lines) <= MAX_LOGGED);
    }
}
