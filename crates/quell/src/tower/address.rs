//! Remote address: the client's address, also behind proxies.

use std::any::type_name;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use derive_where::derive_where;
use http::request::Parts;
use http::{Extensions, HeaderValue};
use quell_core::address::{canonical, network};
use quell_core::forwarded::ProxyTrust;

pub use quell_core::address::NetworkError;
pub use quell_core::forwarded::ForwardedField;

use super::gate::Failure;

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
/// let in_axum = RemoteAddress::new(|connected: &ConnectInfo<SocketAddr>| Some(connected.0));
/// let in_tonic = RemoteAddress::new(TcpConnectInfo::remote_addr);
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
/// written as IPv6, as NAT64 does (`64:ff9b::192.0.2.1`), count as IPv4; ports and zones are removed.
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
    pub fn new<C: Send + Sync + 'static>(
        read: impl Fn(&C) -> Option<SocketAddr> + Send + Sync + 'static,
    ) -> Self {
        let extension = type_name::<C>();
        let connected = move |extensions: &Extensions| {
            let connected = extensions.get();
            let connected = connected.ok_or(Failure::Unconnected { extension })?;
            Ok(read(connected).map(|address| canonical(address.ip())))
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
            Some(proxies) => proxies.client(nearest, request),
            None => nearest,
        }))
    }
}

/// Trusted proxies, and the one header field that all of them write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedProxies {
    trust: ProxyTrust,
    field: ForwardedField,
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
        let trust = ProxyTrust::networks(networks.collect::<Result<_, _>>()?);
        Ok(Self { trust, field })
    }

    /// The `hops` nearest proxies, whatever their addresses are: for a content delivery network whose
    /// addresses change.
    ///
    /// Callers must not reach the server past them: who connects with fewer proxies in between chooses its
    /// own address.
    #[must_use]
    pub fn nearest(field: ForwardedField, hops: usize) -> Self {
        let trust = ProxyTrust::nearest(hops);
        Self { trust, field }
    }

    fn client(&self, nearest: IpAddr, request: &Parts) -> IpAddr {
        let lines = request.headers.get_all(self.field.name()).iter().rev();
        let elements = self.field.elements(lines.map(HeaderValue::as_bytes));
        let before = elements.map(|element| self.field.address(element));
        self.trust.client(nearest, before)
    }
}
