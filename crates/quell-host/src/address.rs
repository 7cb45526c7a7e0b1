//! Address: where a listener is, and the ends of a connection.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use crate::config::check_home;

/// Prefix of the path of a Unix socket.
const UNIX: &str = "unix:";

/// Place of a listener: `127.0.0.1:8080`, or `unix:/run/quell/http.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A port of this machine.
    Tcp(SocketAddr),
    /// A Unix socket, which only this machine reaches.
    Unix(Arc<Path>),
}

impl Address {
    /// The address of the machine; none for a Unix socket.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.tcp().map(|address| address.ip())
    }

    /// Address and port; none for a Unix socket.
    #[must_use]
    pub const fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }

    /// Returns true if other machines cannot reach it.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.ip().is_none_or(|ip| ip.to_canonical().is_loopback())
    }

    /// As `CLIENT LIST` has it: a Unix socket has port 0.
    pub fn in_client_list(&self) -> String {
        match self {
            Self::Tcp(address) => address.to_string(),
            Self::Unix(path) => format!("{}:0", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    /// Reads an address with a port, a host name with a port, or a path after `unix:`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is not an address: write one such as 127.0.0.1:8080 or unix:/run/quell.sock, or \
                off"
            )
        };
        match text.strip_prefix(UNIX) {
            Some("") => Err(wrong()),
            Some(path) => {
                check_home(Path::new(path)).map(|()| Self::Unix(Arc::from(Path::new(path))))
            }
            None => {
                // Names, too: `localhost:8080`.
                let address = text.to_socket_addrs().ok().and_then(|mut all| all.next());
                address.map(Self::Tcp).ok_or_else(wrong)
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stands_where_an_address_does() {
        let parse = str::parse::<Address>;
        for (text, ip, in_list) in [
            ("127.0.0.1:80", true, "127.0.0.1:80"),
            ("[::1]:80", true, "[::1]:80"),
            ("unix:/run/quell.sock", false, "/run/quell.sock:0"),
            ("unix:quell.sock", false, "quell.sock:0"),
        ] {
            let address = parse(text).unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(address.ip().is_some(), ip, "{text}");
            assert_eq!(address.in_client_list(), in_list);
            assert!(address.is_local(), "{text}");
        }
        assert!(!parse("10.0.0.1:80").unwrap().is_local());
        for (text, told) in [
            ("unix:", "write one such as 127.0.0.1:8080 or unix:"),
            ("unix:~/quell.sock", "`~` is not expanded in `~/quell.sock`"),
            ("/run/quell.sock", "unix:/run/quell.sock, or off"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }
}
