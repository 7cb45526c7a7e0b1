//! Remote address: the client's address, also behind proxies.

use std::any::type_name;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use derive_where::derive_where;
use http::Extensions;
use http::request::Parts;
use ipnet::IpNet;

use super::forwarded;
use super::gate::Failure;

/// How many proxies are followed, from the nearest. Real chains have a handful, but a caller can make
/// the field as long as the server allows.
const MAX_HOPS: usize = 32;

/// Finds the address of the client that sent a request.
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
/// 2. Otherwise the addresses in the one field that the proxies write are read from the right, which is
///    the end that the nearest proxy wrote. The first address that is not a trusted proxy's is the remote
///    address.
/// 3. If the list ends, or has an element that is not an address (`unknown`, `_hidden`, nonsense), the
///    address before it counts, which is that of the trusted proxy that wrote it. The same applies after
///    32 proxies.
///
/// So what a caller wrote, to the left of what the proxies saw, is never read. IPv4 addresses that are
/// written as IPv6 count as IPv4; ports are removed.
#[derive(Clone)]
#[derive_where(Debug)]
pub struct RemoteAddress {
    #[derive_where(skip(Debug))]
    connected: Arc<ReadConnection>,
    proxies: Option<TrustedProxies>,
}

/// Reads the address of a request's connection; a Unix socket has none.
type ReadConnection = dyn Fn(&Extensions) -> Result<Option<IpAddr>, Failure> + Send + Sync;

impl RemoteAddress {
    /// The address that `read` finds in the extension `C`, which the server adds to each request.
    ///
    /// If `read` returns `None`, the connection has no address: the entry is missing, and the rules
    /// decide. A request *without* the extension is answered 500, because the server was not set up to
    /// add it, and the limit would silently do nothing.
    #[must_use]
    pub fn of<C: Send + Sync + 'static>(
        read: impl Fn(&C) -> Option<SocketAddr> + Send + Sync + 'static,
    ) -> Self {
        let extension = type_name::<C>();
        let connected = move |extensions: &Extensions| {
            let connected = extensions.get();
            let connected = connected.ok_or(Failure::Unconnected { extension })?;
            Ok(read(connected).map(|address| address.ip().to_canonical()))
        };
        Self {
            connected: Arc::new(connected),
            proxies: None,
        }
    }

    /// Trusts these proxies to write the addresses of their clients.
    #[must_use]
    pub fn behind(mut self, proxies: TrustedProxies) -> Self {
        self.proxies = Some(proxies);
        self
    }

    /// The address of the client that sent this request; `None` if its connection has none.
    pub(super) fn read(&self, request: &Parts) -> Result<Option<IpAddr>, Failure> {
        let nearest = (self.connected)(&request.extensions)?;
        Ok(nearest.map(|nearest| match &self.proxies {
            Some(proxies) => proxies.walk(nearest, request),
            None => nearest,
        }))
    }
}

/// Trusted proxies, and the one header field that all of them write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedProxies {
    networks: Vec<IpNet>,
    field: ForwardedField,
}

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
    /// [`NetworkError`] if one of them is neither an address nor a prefix.
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
            match hops.next().flatten() {
                Some(next) => address = next.to_canonical(),
                None => return address,
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

/// A text that is neither an address nor a prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no network: write an address such as 10.0.0.2, or a prefix such as 10.0.0.0/8"
)]
pub struct NetworkError {
    text: String,
}
