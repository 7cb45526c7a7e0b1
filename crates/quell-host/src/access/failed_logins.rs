//! Failed logins: tokens and passwords that nobody has, counted by where they come from.
//!
//! Nobody finds a token by trying, so this protects no token. It bounds what callers with a wrong one
//! cost: an address that shows too many loses a connection with each, and the log has a line about it
//! at most once a minute. A valid token is never refused because of this: many callers may come from one
//! address, through a gateway for example, and finding a token takes less than a microsecond.
//!
//! A password can be guessed, and costs a slow hash. So an address that has shown too many of either is
//! barred from showing another until a minute has passed.

use std::net::IpAddr;
use std::sync::Arc;

use quell::clock::Clock;
use quell::{Cost, KeyedLimiter, Limit};

use crate::numbers::ListenerMetrics;
use quell_protocol::callers::Network;

/// Networks that are told apart; more share what they have. Some 40 bytes each.
const MAX_NETWORKS: usize = 65_536;

/// Networks whose lines in the log are told apart, so that many cannot fill the disk.
const MAX_LOGGED: usize = 1_024;

/// Message to an address that had too many.
pub const TOO_MANY_FAILED_LOGINS: &str = "this token is not known, and more such came from your \
    address than failed_logins_per_minute allows: the connection is closed; write a token from \
    `quell token new` that is among the credentials";

/// Message to somebody whose password is not looked at.
pub const BARRED: &str = "too many logins from your address failed, so no \
    password from there is checked: wait a minute; tokens are answered as ever";

/// `None` is for callers of this machine that have no address.
type ByNetwork = KeyedLimiter<Option<Network>, Arc<dyn Clock>>;

/// Counts failed logins.
#[derive(Debug)]
pub struct FailedLogins {
    /// `None`: any number is fine.
    limit: Option<ByNetwork>,
    lines: Option<ByNetwork>,
}

impl FailedLogins {
    /// For so many a minute from one address; 0 for any number.
    pub fn new(per_minute: usize, clock: &Arc<dyn Clock>) -> Self {
        // A number that no limit can have is no bound either.
        let limit = |count, most| {
            let limit = Limit::per_minute(u64::try_from(count).unwrap_or(u64::MAX));
            ByNetwork::with(limit, most, Arc::clone(clock)).ok()
        };
        Self {
            limit: limit(per_minute, MAX_NETWORKS),
            lines: limit(1, MAX_LOGGED),
        }
    }

    /// Returns true if there were so many from this address that no password from there is checked.
    pub fn bar(&self, remote: Option<IpAddr>) -> bool {
        let network = remote.map(Network::from);
        let limit = self.limit.as_ref();
        limit.is_some_and(|limit| !limit.peek(&network, Cost::ONE).outcome.is_allow())
    }

    /// Notes one. Returns whether there are too many from this address.
    pub fn note(&self, remote: Option<IpAddr>, numbers: &ListenerMetrics) -> bool {
        let network = remote.map(Network::from);
        let fits = |limiter: &ByNetwork| limiter.try_acquire(&network).outcome.is_allow();
        numbers.failed_logins.add(1);
        if self.lines.as_ref().is_some_and(fits) {
            tracing::warn!(
                address = network.map_or("none".to_owned(), |network| network.to_string()),
                "failed login: a caller shows a token or a password that is not among the credentials"
            );
        }
        self.limit.as_ref().is_some_and(|limit| !fits(limit))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quell::clock::ManualClock;
    use quell_core::time::Now;

    use super::*;

    fn logins(per_minute: usize) -> (Arc<ManualClock>, FailedLogins) {
        let clock = Arc::new(ManualClock::new(Now::from_nanos(1)));
        let shared: Arc<dyn Clock> = Arc::clone(&clock) as Arc<dyn Clock>;
        (clock, FailedLogins::new(per_minute, &shared))
    }

    #[test]
    fn too_many_from_one_address_are_no_matter_to_another_and_pass_with_time() {
        let (clock, logins) = logins(3);
        let numbers = ListenerMetrics::default();
        let is_too_many = |address: &str| logins.note(address.parse().ok(), &numbers);
        assert_eq!(
            [(); 4].map(|()| is_too_many("10.0.0.1")),
            [false, false, false, true]
        );
        assert!(!is_too_many("10.0.0.2"));
        assert!(!is_too_many("2001:db8::1") && !is_too_many("2001:db8::2"));
        assert!(!is_too_many("2001:db8::3") && is_too_many("2001:db8::4"));
        clock.advance(Duration::from_secs(20));
        assert!(!is_too_many("10.0.0.1") && is_too_many("10.0.0.1"));
        assert_eq!(numbers.failed_logins.get(), 11);
    }

    #[test]
    fn an_address_is_barred_from_passwords_until_time_has_passed() {
        let (clock, logins) = logins(3);
        let numbers = ListenerMetrics::default();
        let (here, there) = ("10.0.0.1".parse().ok(), "10.0.0.2".parse().ok());
        for _ in 0..3 {
            assert!(!logins.bar(here));
            logins.note(here, &numbers);
        }
        assert!(logins.bar(here) && !logins.bar(there));
        clock.advance(Duration::from_secs(20));
        assert!(!logins.bar(here));
    }

    #[test]
    fn none_is_too_many_without_a_bound() {
        let (_clock, logins) = logins(0);
        let numbers = ListenerMetrics::default();
        assert!((0..1_000).all(|_| !logins.note("::1".parse().ok(), &numbers)));
    }

    /// An attacker of IPv6 has as many networks as it likes.
    #[test]
    fn networks_beyond_those_told_apart_share_what_they_have() {
        let (_clock, logins) = logins(1);
        let numbers = ListenerMetrics::default();
        for network in 0..200_000_u128 {
            let address = IpAddr::from((network << 64).to_be_bytes());
            logins.note(Some(address), &numbers);
        }
        let kept = |limiter: &Option<ByNetwork>| limiter.as_ref().unwrap().keys();
        assert!(
            kept(&logins.limit) <= MAX_NETWORKS,
            "{}",
            kept(&logins.limit)
        );
        assert!(kept(&logins.lines) <= MAX_LOGGED, "{}", kept(&logins.lines));
    }
}
