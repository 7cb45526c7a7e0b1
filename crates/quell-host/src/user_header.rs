//! User header: by which header proxies name people to a console, and which proxies may.

pub use axum::http::HeaderName;
use ipnet::IpNet;
use quell_core::address;

/// Headers that mean something else.
const TAKEN: [&str; 5] = ["authorization", "cookie", "host", "origin", "x-quell-token"];

/// Reads the name of a header that names a person.
///
/// # Errors
/// What to write.
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
/// What to write.
pub fn proxy_network(text: &str) -> Result<IpNet, String> {
    address::network(text).map_err(|error| error.to_string())
}

/// What a header of `--console-user-header` needs.
///
/// # Errors
/// What is missing, and what to write.
pub fn check_user_header(
    has_header: bool,
    has_proxies: bool,
    has_credentials: bool,
) -> Result<(), (&'static str, String)> {
    match (has_header, has_proxies, has_credentials) {
        (false, true, _) => Err((
            "console_user_header",
            "without it the proxies of console_proxy name nobody: write the header that they set".to_owned(),
        )),
        (true, _, false) => Err((
            "credentials",
            "the token of the proxy and the roles of people whom it names are entries there: write the file with them"
                .to_owned(),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_and_its_proxies_belong_together() {
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
        let missing = |header, proxies, credentials| {
            check_user_header(header, proxies, credentials)
                .err()
                .map(|(key, _)| key)
        };
        assert_eq!(missing(true, false, true), None);
        assert_eq!(missing(true, false, false), Some("credentials"));
        assert_eq!(missing(false, true, true), Some("console_user_header"));
        assert_eq!(missing(true, true, false), Some("credentials"));
        assert_eq!(missing(true, true, true), None);
    }
}
