//! Forwarded: the address of a client behind proxies, from the field to which they add.
//!
//! A proxy adds to the right of what it received, in the same line or in a new one. A caller's own text is
//! at the left and may be anything: a quote that is never closed, a comma inside quotes, a megabyte of
//! nothing. So nothing is ever read from the left. From the right, each element ends at a comma outside
//! quotes; quotes are counted from the right too, where a trusted proxy wrote them. An element with a
//! backslash, which no address needs, is unknown, because from the right one cannot tell which of its
//! quotes are escaped.

use alloc::vec::Vec;
use core::iter;
use core::net::IpAddr;

use ipnet::IpNet;

use crate::address;

/// Number of proxies that are followed, from the nearest. Real chains have a handful, but a caller can make
/// the field as long as the server allows.
pub const MAX_HOPS: usize = 32;

/// The field in which proxies write the addresses of their clients. Only one is read, because a proxy
/// passes the other on as the caller wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForwardedField {
    /// `X-Forwarded-For: 203.0.113.7, 10.0.0.2`, as nginx, Caddy, Traefik and most load balancers
    /// write it.
    XForwardedFor,
    /// `Forwarded: for=203.0.113.7;proto=https, for="[2001:db8::1]:4711"` (RFC 7239).
    Forwarded,
}

impl ForwardedField {
    /// The field's name, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
        }
    }

    /// Format of the field of this name, in lower case: `forwarded` has a form of its own, any other is a
    /// list of addresses.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        if name == Self::Forwarded.name() {
            Self::Forwarded
        } else {
            Self::XForwardedFor
        }
    }

    /// The elements of all lines of the field, which come in the order last to first, the last element
    /// first. Empty elements are skipped, as in every list of HTTP.
    pub fn elements<'l>(
        self,
        lines_from_last: impl Iterator<Item = &'l [u8]>,
    ) -> impl Iterator<Item = &'l [u8]> {
        lines_from_last.flat_map(move |line| self.elements_of(line))
    }

    /// The address in an element, if it has one.
    #[must_use]
    pub fn address(self, element: &[u8]) -> Option<IpAddr> {
        match self {
            _ if element.contains(&b'\\') => None,
            Self::XForwardedFor => address::parse(element),
            Self::Forwarded => node(element),
        }
    }

    /// The elements of a line that are not empty, the last first.
    fn elements_of(self, line: &[u8]) -> impl Iterator<Item = &[u8]> {
        let mut rest = Some(line);
        let elements = iter::from_fn(move || {
            let text = rest.take()?;
            let (before, last) = text.split_at_checked(self.start_of_last(text))?;
            rest = before.strip_suffix(b",");
            Some(last.trim_ascii())
        });
        elements.filter(|element| !element.is_empty())
    }

    /// Offset of the last element of `text`: after a comma that is not inside quotes.
    fn start_of_last(self, text: &[u8]) -> usize {
        let mut is_quoted = false;
        for (index, byte) in text.iter().enumerate().rev() {
            match byte {
                b'"' if self == Self::Forwarded => is_quoted = !is_quoted,
                b',' if !is_quoted => return index + 1,
                _ => {}
            }
        }
        0
    }
}

/// The address of `for` in an element of `Forwarded`; `None` if `for` appears twice.
fn node(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    let mut is_quoted = false;
    let pairs = element.split(|byte| {
        is_quoted ^= *byte == b'"';
        *byte == b';' && !is_quoted
    });
    for pair in pairs {
        let Some(equals) = pair.iter().position(|byte| *byte == b'=') else {
            continue;
        };
        let Some((name, value)) = pair.split_at_checked(equals) else {
            continue;
        };
        if !name.trim_ascii().eq_ignore_ascii_case(b"for") {
            continue;
        }
        if found.is_some() {
            return None;
        }
        let value = value.strip_prefix(b"=").unwrap_or_default().trim_ascii();
        let inside = value
            .strip_prefix(b"\"")
            .and_then(|rest| rest.strip_suffix(b"\""));
        found = Some(inside.unwrap_or(value));
    }
    found.and_then(address::parse)
}

/// Proxies that are trusted to write the addresses of their clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyTrust {
    /// Their networks; `None` for any address.
    networks: Option<Vec<IpNet>>,
    /// Greatest number of proxies that are followed.
    hops: usize,
}

impl ProxyTrust {
    /// Trusts the proxies in these networks, at most [`MAX_HOPS`] in a row.
    #[must_use]
    pub const fn networks(networks: Vec<IpNet>) -> Self {
        Self {
            networks: Some(networks),
            hops: MAX_HOPS,
        }
    }

    /// Trusts the `hops` nearest proxies, whatever their addresses are, and at most [`MAX_HOPS`].
    #[must_use]
    pub fn nearest(hops: usize) -> Self {
        Self {
            networks: None,
            hops: hops.min(MAX_HOPS),
        }
    }

    /// Trusts the same proxies, but at most `hops` in a row.
    #[must_use]
    pub fn at_most(mut self, hops: usize) -> Self {
        self.hops = self.hops.min(hops);
        self
    }

    /// Returns true if no proxy is trusted, as by default.
    #[must_use]
    pub const fn is_nobody(&self) -> bool {
        self.hops == 0
    }

    /// The client's address. `nearest` is known for sure; `before` has the addresses that proxies wrote,
    /// the last first, with `None` for an element that is not an address.
    ///
    /// A trusted proxy's client is the next address. Where the list ends or has no address, the proxy
    /// itself counts as the client, as it does after the last hop.
    #[must_use]
    pub fn client(
        &self,
        nearest: IpAddr,
        mut before: impl Iterator<Item = Option<IpAddr>>,
    ) -> IpAddr {
        let mut address = address::canonical(nearest);
        for _ in 0..self.hops {
            if !self.trusts(address) {
                return address;
            }
            match before.next().flatten() {
                Some(next) => address = next,
                None => return address,
            }
        }
        address
    }

    fn trusts(&self, address: IpAddr) -> bool {
        let networks = self.networks.as_deref();
        networks.is_none_or(|networks| networks.iter().any(|network| network.contains(&address)))
    }
}
