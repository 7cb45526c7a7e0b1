//! Places: how many connections a listener has room for, in all and of one caller.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Network;

/// The places of a listener. Only accepting and closing take its lock.
#[derive(Debug)]
pub struct Places {
    most: usize,
    /// 0: as many as there are.
    most_per_address: usize,
    taken: Mutex<PlaceCounts>,
}

#[derive(Debug, Default)]
struct PlaceCounts {
    all: usize,
    /// Only networks that have a connection.
    by_network: HashMap<Network, usize>,
}

/// Reason why there is no place for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// All are taken.
    Listener,
    /// The places of one network are taken.
    Address,
}

/// The place of one connection; given back on drop.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    network: Option<Network>,
}

impl Places {
    /// Room for `most` connections, of which one network has `most_per_address` at most; 0: any number.
    #[must_use]
    pub fn new(most: usize, most_per_address: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            most_per_address,
            taken: Mutex::default(),
        })
    }

    /// Locks the counts; no holder of the lock panics.
    fn lock(&self) -> MutexGuard<'_, PlaceCounts> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection from `address`, or why there is none.
    ///
    /// A connection without an address comes from this machine, and only counts among all.
    ///
    /// # Errors
    /// Tells whether all places are taken, or those that one network may have.
    pub fn take(self: &Arc<Self>, address: Option<IpAddr>) -> Result<Place, NoPlace> {
        let network = address.map(Network::from);
        let mut taken = self.lock();
        if taken.all >= self.most {
            return Err(NoPlace::Listener);
        }
        if let Some(network) = network {
            let own = taken.by_network.get(&network).copied().unwrap_or_default();
            if self.most_per_address > 0 && own >= self.most_per_address {
                return Err(NoPlace::Address);
            }
            taken.by_network.insert(network, own + 1);
        }
        taken.all += 1;
        Ok(Place {
            places: Arc::clone(self),
            network,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.all -= 1;
        if let Some(network) = self.network
            && let Entry::Occupied(mut own) = taken.by_network.entry(network)
        {
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

    fn take(places: &Arc<Places>, address: &str) -> Result<Place, NoPlace> {
        places.take(Some(address.parse().unwrap()))
    }

    #[test]
    fn one_address_leaves_places_to_others_and_gives_them_back() {
        let places = Places::new(4, 2);
        let first = take(&places, "10.0.0.1").unwrap();
        let _second = take(&places, "10.0.0.1").unwrap();
        let refused = |address| take(&places, address).unwrap_err();
        assert_eq!(refused("10.0.0.1"), NoPlace::Address);
        assert_eq!(refused("::ffff:10.0.0.1"), NoPlace::Address);
        let third = take(&places, "2001:db8::1").unwrap();
        let fourth = take(&places, "2001:db8::2").unwrap();
        assert_eq!(refused("10.0.0.2"), NoPlace::Listener);
        drop(first);
        assert_eq!(refused("2001:db8::3"), NoPlace::Address);
        let again = take(&places, "10.0.0.1").unwrap();
        drop((third, fourth, again));
        assert_eq!(places.lock().all, 1);
        assert_eq!(places.lock().by_network.len(), 1, "no entry stays");
        let _local = [(); 3].map(|()| places.take(None).unwrap());
        assert_eq!(places.take(None).unwrap_err(), NoPlace::Listener);
    }

    #[test]
    fn without_a_bound_an_address_may_have_all() {
        let places = Places::new(3, 0);
        let all: Vec<_> = (0..3).map(|_| take(&places, "::1").unwrap()).collect();
        assert_eq!(take(&places, "::1").unwrap_err(), NoPlace::Listener);
        drop(all);
        assert!(places.lock().by_network.is_empty());
    }
}
