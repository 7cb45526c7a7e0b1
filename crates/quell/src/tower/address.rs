//! Remote address: who asks, also behind proxies.

use std::any::type_name;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::Extensions;
use http::request::Parts;
use ipnet::IpNet;

use super::forwarded::{self, Hop};

/// Proxies walked through, from the nearest: real chains have a handful, and a caller can make the
/// field as long as the server lets a head be.
const MAX_HOPS: usize = 32;

/// The address of whoever sent a request.
///
/// Without proxies that is the address at the other end of the connection, and no header is read:
///
/// ```
/// use std::net::SocketAddr;
/// use axum::extract::ConnectInfo;
/// use quell::tower::RemoteAddress;
/// use tonic::transport::server::TcpConnectInfo;
///
/// let in_axum = RemoteAddress::of(|connected: &ConnectInfo<SocketAddr>| Some(connected.0));
/// let in_tonic = RemoteAddress::of(TcpConnectInfo::remote_addr);
/// # drop((in_axum, in_tonic));
/// ```
///
/// Behind proxies ([`RemoteAddress::behind`]) the rule is:
///
/// 1. If the connection does not come from a trusted proxy, its address counts. A field that
///    such a caller sends means nothing.
/// 2. Otherwise the addresses in the one field that the proxies write are read from the right, which
///    is the end that the nearest proxy wrote. While an address is a trusted proxy's, the next one
///    to the left is looked at. The first that is not is the remote address.
/// 3. Where a list ends, or says something that is no address (`unknown`, `_hidden`, nonsense), the
///    address before counts: the trusted proxy that said so. After 32 proxies too.
///
/// So a caller can write what it likes to the left of what the proxies saw, and it is never read.
/// IPv4 addresses that are written as IPv6 count as IPv4; ports are taken off.
#[derive(Clone)]
pub struct RemoteAddress {
    connected: Arc<dyn Fn(&Extensions) -> Connected + Send + Sync>,
    connection: &'static str,
    proxies: Option<TrustedProxies>,
}

/// What the extensions of a request say of its connection.
enum Connected {
    /// Nothing: the server was not told to.
    Unsaid,
    /// It has no address, as a Unix socket has none.
    Nowhere,
    At(IpAddr),
}

/// The server did not put what is known of the connection among a request's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unconnected(pub(super) &'static str);

impl RemoteAddress {
    /// The address that `read` finds in the extension `C`, which the server adds to each request.
    ///
    /// `None` from `read` is a connection without an address: the entry is then missing, and the
    /// rules say what that means. A request *without* the extension is answered 500: the server
    /// was not told to add it, and nobody should find that out from a limit that does nothing.
    #[must_use]
    pub fn of<C: Send + Sync + 'static>(
        read: impl Fn(&C) -> Option<SocketAddr> + Send + Sync + 'static,
    ) -> Self {
        let connected = move |extensions: &Extensions| match extensions.get::<C>().map(&read) {
            None => Connected::Unsaid,
            Some(None) => Connected::Nowhere,
            Some(Some(address)) => Connected::At(address.ip().to_canonical()),
        };
        Self {
            connected: Arc::new(connected),
            connection: type_name::<C>(),
            proxies: None,
        }
    }

    /// Believes these proxies about whom they pass on.
    #[must_use]
    pub fn behind(mut self, proxies: TrustedProxies) -> Self {
        self.proxies = Some(proxies);
        self
    }

    /// The address of whoever sent this request; `None` if its connection has none.
    pub(super) fn read(&self, request: &Parts) -> Result<Option<IpAddr>, Unconnected> {
        let nearest = match (self.connected)(&request.extensions) {
            Connected::Unsaid => return Err(Unconnected(self.connection)),
            Connected::Nowhere => return Ok(None),
            Connected::At(address) => address,
        };
        Ok(Some(match &self.proxies {
            Some(proxies) => proxies.walk(nearest, request),
            None => nearest,
        }))
    }
}

impl fmt::Debug for RemoteAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteAddress")
            .field("connection", &self.connection)
            .field("proxies", &self.proxies)
            .finish_non_exhaustive()
    }
}

/// Proxies that are believed, and the one field that all of them write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedProxies {
    networks: Vec<IpNet>,
    field: ForwardedField,
}

/// The field in which proxies say whom they pass on. Only one is read: a proxy passes on what a
/// caller writes in the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForwardedField {
    /// `X-Forwarded-For: 203.0.113.7, 10.0.0.2`, as nginx, Caddy, Traefik and most load balancers
    /// write it.
    XForwardedFor,
    /// `Forwarded: for=203.0.113.7;proto=https, for="[2001:db8::1]:4711"` (RFC 7239).
    Forwarded,
}

impl TrustedProxies {
    /// Proxies in these networks, each an address (`10.0.0.2`) or a prefix (`10.0.0.0/8`).
    ///
    /// ```
    /// use quell::tower::{ForwardedField, TrustedProxies};
    /// let proxies = TrustedProxies::new(ForwardedField::XForwardedFor, ["10.0.0.0/8", "::1"])?;
    /// # Ok::<(), quell::tower::NetworkError>(())
    /// ```
    ///
    /// # Errors
    /// [`NetworkError`] if one of them is no address and no prefix.
    pub fn new<N: AsRef<str>>(
        field: ForwardedField,
        networks: impl IntoIterator<Item = N>,
    ) -> Result<Self, NetworkError> {
        let networks = networks.into_iter().map(|text| network(text.as_ref()));
        Ok(Self {
            networks: networks.collect::<Result<_, _>>()?,
            field,
        })
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.networks
            .iter()
            .any(|network| network.contains(&address))
    }

    fn walk(&self, nearest: IpAddr, request: &Parts) -> IpAddr {
        let mut address = nearest;
        let mut hops = forwarded::hops(&request.headers, self.field);
        for _ in 0..MAX_HOPS {
            if !self.trusts(address) {
                return address;
            }
            match hops.next() {
                Some(Hop::Address(next)) => address = next.to_canonical(),
                Some(Hop::Unknown) | None => return address,
            }
        }
        address
    }
}

fn network(text: &str) -> Result<IpNet, NetworkError> {
    let network = match text.parse::<IpAddr>() {
        Ok(address) => Some(IpNet::from(address.to_canonical())),
        Err(_) => text.parse().ok(),
    };
    network.ok_or_else(|| NetworkError {
        text: text.to_owned(),
    })
}

/// What is no network.
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

impl std::error::Error for NetworkError {}
