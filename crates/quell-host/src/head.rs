//! Head: what a request says of its sender and of whom it asks, and the names that a process answers to.

use std::net::{IpAddr, Ipv6Addr};

use axum::http::header::HOST;
use axum::http::{HeaderMap, Request};
use quell::Operation;
use quell_protocol::http::{Problem, ProblemKind, Question};

/// Longest head of a request, in bytes.
pub const MAX_HEAD: usize = 64 * 1_024;

/// The headers of a request, whoever parsed it.
pub trait Fields {
    /// The first header of a name.
    fn field(&self, name: &str) -> Option<&[u8]>;
    /// Returns true if there are several headers of a name.
    fn is_repeated(&self, name: &str) -> bool;
}

/// The head of a request, whoever parsed it.
pub trait Head: Fields {
    /// The path of the request.
    fn path(&self) -> &str;
    /// The host names that it was sent to.
    fn hosts(&self) -> impl Iterator<Item = &[u8]>;
}

impl Fields for HeaderMap {
    fn field(&self, name: &str) -> Option<&[u8]> {
        self.get(name).map(|value| value.as_bytes())
    }

    fn is_repeated(&self, name: &str) -> bool {
        self.get_all(name).iter().nth(1).is_some()
    }
}

impl<B> Fields for Request<B> {
    fn field(&self, name: &str) -> Option<&[u8]> {
        self.headers().field(name)
    }

    fn is_repeated(&self, name: &str) -> bool {
        self.headers().is_repeated(name)
    }
}

impl<B> Head for Request<B> {
    fn path(&self) -> &str {
        self.uri().path()
    }

    fn hosts(&self) -> impl Iterator<Item = &[u8]> {
        let authority = self.uri().authority().map(|name| name.as_str().as_bytes());
        let fields = self.headers().get_all(HOST).iter();
        authority
            .into_iter()
            .chain(fields.map(|value| value.as_bytes()))
    }
}

impl Head for Question<'_> {
    fn path(&self) -> &str {
        match self.operation {
            Operation::Acquire => "/v1/acquire",
            Operation::Peek => "/v1/peek",
        }
    }

    fn hosts(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.host)
    }
}

impl Fields for Question<'_> {
    fn field(&self, name: &str) -> Option<&[u8]> {
        match name {
            "authorization" => self.authorization,
            "x-quell-token" => self.token,
            _ => None,
        }
    }

    /// A request with two of those above is no [`Question`].
    fn is_repeated(&self, _: &str) -> bool {
        false
    }
}

/// Refuses a request for a host name that a stranger can own.
pub fn refuse(host: &[u8]) -> Result<(), Box<Problem>> {
    let name = String::from_utf8_lossy(without_port(host)).into_owned();
    let detail = format!(
        "this server is not asked by the name {name:?}: ask by its address, or start it with \
         --allow-host {name}"
    );
    Err(Box::new(Problem::new(ProblemKind::Forbidden, detail)))
}

/// Returns true if the server answers to this host.
pub fn is_answered(host: &[u8], allowed: &[String]) -> bool {
    let Ok(name) = std::str::from_utf8(without_port(host)) else {
        return false;
    };
    // An address always means the same machine. A client that sends no host is not a browser.
    let literal = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    if name.is_empty() || literal.unwrap_or(name).parse::<IpAddr>().is_ok() {
        return true;
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let is = |other: &str| other == "*" || name.eq_ignore_ascii_case(other.trim_end_matches('.'));
    is("localhost") || is_below_localhost(name) || allowed.iter().any(|allowed| is(allowed))
}

/// Returns true if a name ends in `.localhost`, which browsers do not look up.
pub fn is_below_localhost(name: &str) -> bool {
    let last = name.rsplit_once('.').map(|(_, last)| last);
    last.is_some_and(|last| last.eq_ignore_ascii_case("localhost"))
}

/// Returns true if a host is a name or an address, with a port or without, and nothing that means something
/// to a shell but the brackets of an address.
pub fn is_address(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (host, "80"),
    };
    let literal = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    let is_name = match literal {
        Some(literal) => literal.parse::<Ipv6Addr>().is_ok(),
        None => !name.is_empty() && name.bytes().all(is_of_name),
    };
    is_name && port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok()
}

/// A host without its port.
pub fn without_port(host: &[u8]) -> &[u8] {
    let end = host.iter().rposition(|byte| !byte.is_ascii_digit());
    match end {
        Some(end) if host.get(end) == Some(&b':') => host.get(..end).unwrap_or_default(),
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_name_or_an_ip_with_a_port_or_none() {
        for host in [
            "a",
            "a-b.example:80",
            "127.0.0.1:65535",
            "[::1]",
            "[fe80::1]:8080",
        ] {
            assert!(is_address(host), "{host}");
        }
        let refused = [
            "", ":80", "a:", "a:65536", "a:+80", "a:-1", "a b", "a;b", "$(a)", "a@b",
        ];
        let others = ["[::1", "[::1;]:80", "[a]", "::1", "a/b", "a\n", "\u{e9}"];
        for host in refused.iter().chain(&others) {
            assert!(!is_address(host), "{host}");
        }
    }
}
