//! Network: what the limits on callers take for one caller.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use quell_core::address::{canonical, is_local_nat64};

/// An IPv4 address, or the /64 of an IPv6 address: a single host usually has a whole /64, and could come
/// from another address each time. Addresses behind NAT64 are those of their IPv4 clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network(IpAddr);

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        Self(match canonical(address) {
            // Each of them is one client of IPv4.
            IpAddr::V6(address) if is_local_nat64(address) => address.into(),
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
            IpAddr::V6(address) if is_local_nat64(address) => address.fmt(f),
            IpAddr::V6(address) => write!(f, "{address}/64"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_of_ipv6_is_one_caller_whichever_address_it_uses() {
        for (address, shown) in [
            ("10.0.0.1", "10.0.0.1"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            ("2001:db8:1:2::", "2001:db8:1:2::/64"),
            ("2001:db8:1:3::6", "2001:db8:1:3::/64"),
            ("::1", "::/64"),
            ("64:ff9b::10.0.0.1", "10.0.0.1"),
            ("64:ff9b:1::10.0.0.1", "64:ff9b:1::a00:1"),
        ] {
            let network = Network::from(address.parse::<IpAddr>().unwrap());
            assert_eq!(network.to_string(), shown);
        }
    }
}
