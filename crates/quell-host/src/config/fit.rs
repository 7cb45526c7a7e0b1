//! Fit: settings that are of no use without each other, and addresses that strangers can reach.

use std::net::SocketAddr;

use super::{ConfigError, field};

/// A setting that is of no use without another one.
#[derive(Clone, Copy, Debug)]
pub struct Half {
    /// Its key.
    pub key: &'static str,
    /// Its noun, such as `certificate`.
    pub noun: &'static str,
    /// True if it is set.
    pub is_set: bool,
}

/// Refuses one of a pair.
///
/// # Errors
/// Which is missing.
pub fn check_pair(one: Half, other: Half) -> Result<(), ConfigError> {
    let (set, missing) = match (one.is_set, other.is_set) {
        (true, false) => (one, other),
        (false, true) => (other, one),
        _ => return Ok(()),
    };
    let reason = format!(
        "a {} is of no use without its {}: write {} as well",
        set.noun, missing.noun, missing.key
    );
    Err(field(set.key, reason))
}

/// Refuses TLS that is not complete: whether `tls_cert`, `tls_key` and `tls_client_ca` are set.
///
/// # Errors
/// Which is missing.
pub fn check_tls(cert: bool, key: bool, client_ca: bool) -> Result<(), ConfigError> {
    let cert = Half {
        key: "tls_cert",
        noun: "certificate",
        is_set: cert,
    };
    let key = Half {
        key: "tls_key",
        noun: "private key",
        is_set: key,
    };
    check_pair(cert, key)?;
    match client_ca && !cert.is_set {
        true => {
            let reason =
                "clients show certificates over TLS only: write tls_cert and tls_key as well";
            Err(field("tls_client_ca", reason))
        }
        false => Ok(()),
    }
}

/// Refuses an address that other machines can reach while something is lacking: what, and what to write for it. `said`
/// is how the address was written.
///
/// # Errors
/// Names the lack, and what to write.
pub fn check_reachable(
    key: &'static str,
    address: SocketAddr,
    said: &str,
    lacks: Option<(&str, &str)>,
) -> Result<(), ConfigError> {
    let is_local = address.ip().to_canonical().is_loopback();
    let Some((lacks, write)) = lacks.filter(|_| !is_local) else {
        return Ok(());
    };
    let reason = format!(
        "`{said}` can be reached from other machines, and {lacks}: write {write}, or a loopback address such as \
         127.0.0.1:{}, or say --insecure if the network keeps strangers out",
        address.port()
    );
    Err(field(key, reason))
}

/// Refuses `console_user_header` without `credentials`, and `console_proxy` without it.
///
/// # Errors
/// Names the lack, and what to write.
pub fn check_user_header(
    has_header: bool,
    has_proxies: bool,
    has_credentials: bool,
) -> Result<(), ConfigError> {
    match (has_header, has_proxies, has_credentials) {
        (false, true, _) => Err(field(
            "console_user_header",
            "console_proxy has no effect without it: write the header that these proxies set",
        )),
        (true, _, false) => Err(field(
            "credentials",
            "the token of the proxy and the roles of people whom it names are entries there: write the file with them",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_names(checked: Result<(), ConfigError>, expected: Option<&str>) {
        let key = checked.err().map(|error| match error {
            ConfigError::Field { field, .. } => field,
            other => panic!("{other}"),
        });
        assert_eq!(key, expected);
    }

    #[test]
    fn a_header_and_its_proxies_belong_together() {
        assert_names(check_user_header(true, false, true), None);
        assert_names(check_user_header(true, false, false), Some("credentials"));
        let without = check_user_header(false, true, true);
        assert_names(without, Some("console_user_header"));
        assert_names(check_user_header(true, true, false), Some("credentials"));
        assert_names(check_user_header(true, true, true), None);
    }

    #[test]
    fn tls_is_complete_or_off() {
        for (cert, key, client_ca, named) in [
            (false, false, false, None),
            (true, true, true, None),
            (true, false, false, Some("tls_cert")),
            (false, true, true, Some("tls_key")),
            (false, false, true, Some("tls_client_ca")),
        ] {
            assert_names(check_tls(cert, key, client_ca), named);
        }
    }

    #[test]
    fn what_lacks_something_stays_on_this_machine() {
        let check = |address: &str, lacks| {
            check_reachable("listen", address.parse().unwrap(), address, lacks)
        };
        let lacks = Some(("there is no TLS", "tls_cert and tls_key"));
        assert_names(check("127.9.9.9:1", lacks), None);
        assert_names(check("[::ffff:127.0.0.1]:1", lacks), None);
        assert_names(check("0.0.0.0:1", None), None);
        assert_names(check("0.0.0.0:1", lacks), Some("listen"));
        let said = check("[::]:7", lacks).unwrap_err().to_string();
        assert_eq!(
            said,
            "listen: `[::]:7` can be reached from other machines, and there is no TLS: write tls_cert and \
             tls_key, or a loopback address such as 127.0.0.1:7, or say --insecure if the network keeps strangers out"
        );
    }
}
