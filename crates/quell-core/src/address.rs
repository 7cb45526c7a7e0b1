//! Address: the addresses and networks that callers, proxies and operators write, in one spelling.
//!
//! One caller can write its address in many ways: with a port, in brackets, with a zone, an IPv4 address
//! as IPv6. All of them are one address here, so that a caller has one key.
//!
//! An IPv4 client behind a NAT64 translator arrives as `64:ff9b::c000:201` (RFC 6052), which is read as the
//! IPv4 address in it, 192.0.2.1: as IPv6 addresses they all lie in one /64. In `64:ff9b:1::/48` (RFC 8215)
//! each operator chooses where the IPv4 address stands, so these addresses stay IPv6; but each of them is one
//! IPv4 client, so all of their bits are part of a key ([`is_local_nat64`]).

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::error::Error;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// The first 96 bits of `64:ff9b::/96`, which IPv4 addresses follow.
const NAT64: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];

/// The first 48 bits of `64:ff9b:1::/48`.
const LOCAL_NAT64: [u16; 3] = [0x64, 0xff9b, 1];

/// Bits of an IPv6 address before an IPv4 address in it.
const BEFORE_V4: u8 = 96;

/// `value` as an address, if it is one, in any spelling: in brackets, with a port (`:80`, or hidden as
/// `:_http`), with a zone, IPv4 written as IPv6.
#[must_use]
pub fn parse(value: &[u8]) -> Option<IpAddr> {
    let text = core::str::from_utf8(value).ok()?;
    let address = text.parse().ok().or_else(|| decorated(text))?;
    Some(canonical(address))
}

/// The IPv4 address that is written as this IPv6 address (`::ffff:192.0.2.1`, `64:ff9b::192.0.2.1`); any
/// other address stays the same.
#[must_use]
pub fn canonical(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => inner_v4(v6).map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

fn inner_v4(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    if let Some(v4) = v6.to_ipv4_mapped() {
        return Some(v4);
    }
    let [first @ .., high, low] = v6.segments();
    let bits = u32::from(high) << 16 | u32::from(low);
    (first == NAT64).then(|| Ipv4Addr::from_bits(bits))
}

/// Returns true for an address of `64:ff9b:1::/48`, of which each is one IPv4 client.
#[must_use]
pub fn is_local_nat64(address: Ipv6Addr) -> bool {
    address.segments().starts_with(&LOCAL_NAT64)
}

/// A network of IPv4 addresses written as IPv6 becomes an IPv4 network, because addresses are read that
/// way too.
#[must_use]
pub fn canonical_network(network: IpNet) -> IpNet {
    if let IpNet::V6(v6) = network
        && let Some(address) = inner_v4(v6.network())
        && let Some(length) = v6.prefix_len().checked_sub(BEFORE_V4)
        && let Ok(v4) = IpNet::new(IpAddr::V4(address), length)
    {
        return v4;
    }
    network
}

/// A network: an address (`10.0.0.2`) or a prefix (`10.0.0.0/8`).
///
/// # Errors
/// [`NetworkError`] if it is neither.
pub fn network(text: &str) -> Result<IpNet, NetworkError> {
    let network = match text.parse::<IpAddr>() {
        Ok(address) => Some(IpNet::from(canonical(address))),
        Err(_) => text.parse().ok().map(canonical_network),
    };
    network.ok_or_else(|| NetworkError {
        text: text.to_owned(),
    })
}

/// A text that is neither an address nor a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkError {
    text: String,
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.text;
        write!(
            f,
            "{text:?} is no network: write an address such as 10.0.0.2, or a prefix such as 10.0.0.0/8"
        )
    }
}

impl Error for NetworkError {}

/// `192.0.2.1:80`, `[2001:db8::1]:80`, `[2001:db8::1]` and `fe80::1%eth0`: spellings that add a port
/// or a zone. A caller can use any number of ports, so they are not part of a key.
fn decorated(text: &str) -> Option<IpAddr> {
    if let Some(inside) = text.strip_prefix('[') {
        let (address, rest) = inside.split_once(']')?;
        let is_whole = rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port);
        return without_zone(address).filter(|_| is_whole);
    }
    if let Some((address, port)) = text.split_once(':')
        && let Ok(address) = address.parse()
    {
        return is_port(port).then_some(IpAddr::V4(address));
    }
    without_zone(text)
}

/// Digits, or the name that hides a port (RFC 7239: `_http`).
fn is_port(text: &str) -> bool {
    let of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match text.strip_prefix('_') {
        Some(name) => name.bytes().all(of_name),
        None => text.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

fn without_zone(text: &str) -> Option<IpAddr> {
    let (address, zone) = text.split_once('%').unwrap_or((text, ""));
    let is_zone = zone.bytes().all(|byte| byte.is_ascii_graphic());
    let address = address.parse().ok().filter(|_| is_zone)?;
    Some(IpAddr::V6(address))
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn spellings_of_an_address() {
        for (text, expected) in [
            ("192.0.2.1", Some("192.0.2.1")),
            ("192.0.2.1:80", Some("192.0.2.1")),
            ("192.0.2.1:_http", Some("192.0.2.1")),
            ("192.0.2.1:http", None),
            ("::ffff:192.0.2.1", Some("192.0.2.1")),
            ("[::ffff:192.0.2.1]:80", Some("192.0.2.1")),
            ("64:ff9b::192.0.2.1", Some("192.0.2.1")),
            ("64:ff9b::c000:201", Some("192.0.2.1")),
            ("[0064:FF9B:0:0::c000:201]:80", Some("192.0.2.1")),
            ("64:ff9b:1::c000:201", Some("64:ff9b:1::c000:201")),
            ("64:ff9b:0:1::c000:201", Some("64:ff9b:0:1::c000:201")),
            ("fe80::1%eth0", Some("fe80::1")),
            ("[fe80::1%eth0]", Some("fe80::1")),
            ("[2001:db8::1]:443", Some("2001:db8::1")),
            ("[2001:db8::1]x", None),
            ("[192.0.2.1]", None),
            ("192.0.2.1%eth0", None),
            ("unknown", None),
            ("", None),
        ] {
            let read = parse(text.as_bytes()).map(|address| address.to_string());
            assert_eq!(read.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn networks() {
        for (text, expected) in [
            ("10.0.0.2", "10.0.0.2/32"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("64:ff9b::10.0.0.0/104", "10.0.0.0/8"),
            ("64:ff9b::a00:2", "10.0.0.2/32"),
            ("64:ff9b:1::/48", "64:ff9b:1::/48"),
            ("64:ff9b::/32", "64:ff9b::/32"),
        ] {
            assert_eq!(network(text).unwrap().to_string(), expected, "{text}");
        }
        for text in ["10.0.0.0/33", "localhost", "", "10.0.0"] {
            let error = network(text).unwrap_err().to_string();
            assert!(error.contains("write an address"), "{error}");
        }
    }
}
