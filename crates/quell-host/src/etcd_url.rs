//! The URL of rules in etcd.

use std::fmt;
use std::str::FromStr;

/// The port of etcd.
const PORT: &str = "2379";

/// The longest name of rules.
const LONGEST: usize = 64;

/// Place of rules in etcd: `etcd://HOST:2379,HOST:2379/NAME`, and `etcds` for TLS. It has no password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdUrl {
    /// Each with its port.
    hosts: Vec<String>,
    name: String,
    is_tls: bool,
}

/// Reason why text is not a URL of rules in etcd. The text says what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdUrlError {
    /// The scheme is another one.
    #[error("write etcd://HOST:2379,HOST:2379/NAME, with etcds in place of etcd for TLS")]
    Scheme,
    /// No host, or an invalid one.
    #[error(
        "{0:?} is not a host: write a name or an address, and perhaps a port, such as etcd.internal:2379 or \
        [::1]:2379"
    )]
    Host(String),
    /// There is a login.
    #[error(
        "a login is not written into this URL: set QUELL_ETCD_USER, and QUELL_ETCD_PASSWORD_FILE to a file \
         with the password"
    )]
    Login,
    /// No name, or an invalid one.
    #[error(
        "{0:?} is not a name of rules: write one of 1 to {LONGEST} letters, digits, -, _ and . behind the \
        hosts, such as etcd://localhost:2379/shop"
    )]
    Name(String),
}

impl EtcdUrl {
    /// Returns true if `text` begins as one.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        text.starts_with("etcd://") || text.starts_with("etcds://")
    }

    /// The URLs of etcd.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        let scheme = if self.is_tls { "https" } else { "http" };
        let url = |host: &String| format!("{scheme}://{host}");
        self.hosts.iter().map(url).collect()
    }

    /// The name of the rules: one etcd may have those of many.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if connections are by TLS.
    #[must_use]
    pub const fn is_tls(&self) -> bool {
        self.is_tls
    }
}

impl FromStr for EtcdUrl {
    type Err = EtcdUrlError;

    fn from_str(text: &str) -> Result<Self, EtcdUrlError> {
        let (is_tls, rest) = match text.split_once("://") {
            Some(("etcd", rest)) => (false, rest),
            Some(("etcds", rest)) => (true, rest),
            _ => return Err(EtcdUrlError::Scheme),
        };
        let (hosts, name) = rest.split_once('/').unwrap_or((rest, ""));
        if hosts.contains('@') {
            return Err(EtcdUrlError::Login);
        }
        let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !name.chars().all(is_fine) || name.is_empty() || name.len() > LONGEST {
            return Err(EtcdUrlError::Name(name.to_owned()));
        }
        let host = |text| host(text).ok_or_else(|| EtcdUrlError::Host(str::to_owned(text)));
        Ok(Self {
            hosts: hosts.split(',').map(host).collect::<Result<_, _>>()?,
            name: name.to_owned(),
            is_tls,
        })
    }
}

/// A host with its port.
fn host(text: &str) -> Option<String> {
    let is_six = text.starts_with('[');
    let split = text
        .rsplit_once(':')
        .filter(|_| !is_six || !text.ends_with(']'));
    let (name, port) = split.unwrap_or((text, PORT));
    let inner = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let is_address = inner.is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok());
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let is_name = !name.is_empty() && name.chars().all(is_plain);
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    ((is_address || is_name) && is_port).then(|| format!("{name}:{port}"))
}

impl fmt::Display for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}/{}", self.hosts.join(","), self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, shown, endpoints) in [
            ("etcd://h/shop", "etcd://h:2379/shop", "http://h:2379"),
            (
                "etcds://a.b:1,[::1],[::2]:3/a_b-c.d",
                "etcds://a.b:1,[::1]:2379,[::2]:3/a_b-c.d",
                "https://a.b:1 https://[::1]:2379 https://[::2]:3",
            ),
        ] {
            let url: EtcdUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(shown.parse(), Ok(url.clone()));
            assert_eq!(url.endpoints().join(" "), endpoints);
        }
    }

    #[test]
    fn mistakes_say_what_to_write() {
        for (text, expected) in [
            ("http://h/shop", "write etcd://HOST:2379"),
            ("etcd:h/shop", "write etcd://HOST:2379"),
            (
                "etcd://h",
                "\"\" is not a name of rules: write one of 1 to 64",
            ),
            ("etcd://h/", "is not a name of rules"),
            ("etcd://h/a/b", "\"a/b\" is not a name of rules"),
            ("etcd://h/a?x=1", "is not a name of rules"),
            ("etcd:///shop", "\"\" is not a host"),
            ("etcd://a,,b/shop", "\"\" is not a host"),
            ("etcd://h:0/shop", "\"h:0\" is not a host"),
            ("etcd://h:x/shop", "\"h:x\" is not a host"),
            ("etcd://::1/shop", "\"::1\" is not a host"),
            ("etcd://[h]:1/shop", "\"[h]:1\" is not a host"),
            ("etcd://me:secret@h/shop", "set QUELL_ETCD_USER"),
        ] {
            let error = text.parse::<EtcdUrl>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
