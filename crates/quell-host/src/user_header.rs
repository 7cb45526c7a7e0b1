//! User header: by which header proxies name people to a console, and which proxies may.

pub use axum::http::HeaderName;
use ipnet::IpNet;
use quell_core::address;

/// Headers that mean something else.
const TAKEN: [&str; 5] = ["authorization", "cookie", "host", "origin", "x-quell-token"];

/// Reads the name of a header that names a person.
///
/// # Errors
/// A text that says what to write instead.
pub fn user_header(text: &str) -> Result<HeaderName, String> {
    let name = text.to_ascii_lowercase().parse().ok();
    let name = name.filter(|name: &HeaderName| !TAKEN.contains(&name.as_str()));
    name.ok_or_else(|| {
        format!("`{text}` cannot name a person: write the header that the proxy sets, such as X-Forwarded-User")
    })
}

/// Reads the address or the network of a proxy.
///
/// # Errors
/// A text that says what to write instead.
pub fn proxy_network(text: &str) -> Result<IpNet, String> {
    address::network(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_people_and_a_network_proxies() {
        assert_eq!(user_header("X-Forwarded-User").unwrap(), "x-forwarded-user");
        for wrong in ["", "a b", "Authorization", "Cookie", "X-Quell-Token"] {
            assert!(user_header(wrong).is_err(), "{wrong}");
        }
        let within = |network: &str, address: &str| {
            let network = proxy_network(network).unwrap();
            network.contains(&address.parse::<std::net::IpAddr>().unwrap())
        };
        assert!(within("10.0.0.0/8", "10.9.9.9") && within("::ffff:10.0.0.1", "10.0.0.1"));
        assert!(!within("10.0.0.1", "10.0.0.2") && proxy_network("proxy").is_err());
    }
}
