//! Callers: what one address may take of a listener, in connections and in failed logins.
//!
//! The rule is that of servers (decision 164). A caller is an IPv4 address, or the /64 of an IPv6 address: a
//! single host usually has a whole /64, and could come from another address each time. A valid token is
//! never refused because of others from the same address, since many callers may come through one gateway.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use quell::{KeyedLimiter, Limit};

/// Failed logins of one address a minute; each further one loses its connection.
const FAILED_LOGINS: u64 = 60;

/// Networks that are told apart; more share what they have. Some 40 bytes each.
const MAX_NETWORKS: usize = 65_536;

/// Networks whose lines in the log are told apart, so that many cannot fill the disk.
const MAX_LOGGED: usize = 1_024;

/// What counts as one caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Network(IpAddr);

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            address @ IpAddr::V4(_) => address,
        })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(address) => write!(f, "{address}/64"),
        }
    }
}

/// The callers of one listener.
#[derive(Debug)]
pub(crate) struct Callers {
    most: usize,
    most_per_address: usize,
    taken: Mutex<Taken>,
    /// `None`: no bound, which happens for no constant above.
    failed: Option<KeyedLimiter<Network>>,
    lines: Option<KeyedLimiter<Network>>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Only networks that have a connection.
    by_network: HashMap<Network, usize>,
}

/// The place of one connection; given back on drop.
#[derive(Debug)]
pub(crate) struct Place {
    callers: Arc<Callers>,
    network: Network,
}

impl Callers {
    /// With room for so many connections, in all and of one address.
    pub(crate) fn new(most: usize, most_per_address: usize) -> Arc<Self> {
        let limit = |count, networks| {
            let clock = quell::clock::SystemClock::new();
            KeyedLimiter::with(Limit::per_minute(count), networks, clock).ok()
        };
        Arc::new(Self {
            most,
            most_per_address,
            taken: Mutex::default(),
            failed: limit(FAILED_LOGINS, MAX_NETWORKS),
            lines: limit(1, MAX_LOGGED),
        })
    }

    /// A place for a connection, if there is one.
    pub(crate) fn take(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let network = Network::from(address);
        let mut taken = self.taken.lock();
        let all = taken.all;
        let own = taken.by_network.get(&network).copied().unwrap_or_default();
        if all >= self.most || own >= self.most_per_address {
            drop(taken);
            if self.may_log(network) {
                tracing::warn!(%network, all, own, "too many connections: this one is closed");
            }
            return None;
        }
        taken.all += 1;
        taken.by_network.insert(network, own + 1);
        Some(Place {
            callers: Arc::clone(self),
            network,
        })
    }

    /// Notes a failed login. Returns whether there were too many from this address.
    pub(crate) fn note_failed_login(&self, address: IpAddr) -> bool {
        let network = Network::from(address);
        if self.may_log(network) {
            tracing::warn!(%network, "a caller shows a token that is not among the credentials");
        }
        let fits = |limit: &KeyedLimiter<Network>| limit.try_acquire(&network).outcome.is_allow();
        self.failed.as_ref().is_some_and(|limit| !fits(limit))
    }

    /// Whether the log may have a line about this network now.
    fn may_log(&self, network: Network) -> bool {
        let fits = |limit: &KeyedLimiter<Network>| limit.try_acquire(&network).outcome.is_allow();
        self.lines.as_ref().is_some_and(fits)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.callers.taken.lock();
        taken.all -= 1;
        if let Entry::Occupied(mut own) = taken.by_network.entry(self.network) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_leaves_places_to_others_and_gives_them_back() {
        let callers = Callers::new(4, 2);
        let take = |address: &str| callers.take(address.parse().unwrap());
        let first = take("10.0.0.1").unwrap();
        let second = take("10.0.0.1").unwrap();
        assert!(take("10.0.0.1").is_none() && take("::ffff:10.0.0.1").is_none());
        let third = take("2001:db8::1").unwrap();
        let fourth = take("2001:db8::2").unwrap();
        assert!(take("10.0.0.2").is_none(), "there are four in all");
        drop(first);
        assert!(take("2001:db8::3").is_none(), "that /64 has two");
        let other = take("2001:db8:0:1::3").unwrap();
        drop((second, third, fourth, other));
        let taken = callers.taken.lock();
        assert_eq!((taken.all, taken.by_network.len()), (0, 0));
    }

    #[test]
    fn failed_logins_of_one_address_are_no_matter_to_another() {
        let callers = Callers::new(1, 1);
        let is_too_many = |address: &str| callers.note_failed_login(address.parse().unwrap());
        let too_many = (0..100).filter(|_| is_too_many("10.0.0.1")).count();
        // One comes back each second.
        assert!((30..=40).contains(&too_many), "{too_many}");
        assert!(!is_too_many("10.0.0.2") && !is_too_many("2001:db8::1"));
    }

    /// An attacker of IPv6 has as many networks as it likes.
    #[test]
    fn networks_beyond_those_told_apart_share_what_they_have() {
        let callers = Callers::new(1, 1);
        for network in 0..200_000_u128 {
            callers.note_failed_login(IpAddr::from((network << 64).to_be_bytes()));
        }
        let kept = |limit: &Option<KeyedLimiter<Network>>| limit.as_ref().unwrap().keys();
        assert!(kept(&callers.failed) <= MAX_NETWORKS);
        assert!(kept(&callers.lines) <= MAX_LOGGED);
    }
}
