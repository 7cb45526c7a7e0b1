//! Connector: the way to a coordinator, below TLS and HTTP/2.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::transport::Uri;
use tower_service::Service;

/// Time until a connection stands, and again until the stream does.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A connection to a coordinator.
pub(super) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

type Connected = TokioIo<Box<dyn Connection>>;
type Connecting = Pin<Box<dyn Future<Output = Result<Connected, Error>> + Send>>;

/// Way from a node to a coordinator: TCP, or a test's replacement, such as a stream in memory.
#[derive(Clone)]
pub struct Connector(Arc<dyn Fn(Uri) -> Connecting + Send + Sync>);

impl Connector {
    /// By TCP, to the host and the port of its URL.
    #[must_use]
    pub fn tcp() -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        Self(Arc::new(move |uri| {
            let connecting = tcp.clone().call(uri);
            Box::pin(async move { Ok(boxed(connecting.await?.into_inner())) })
        }))
    }

    /// By what `connect` makes for the authority of its URL, `host:port`.
    #[must_use]
    pub fn new<C, F, S>(connect: C) -> Self
    where
        C: Fn(String) -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Self(Arc::new(move |uri| {
            let authority = uri.authority().map(ToString::to_string);
            let connecting = connect(authority.unwrap_or_default());
            Box::pin(async move { Ok(boxed(connecting.await?)) })
        }))
    }
}

fn boxed(connection: impl Connection + 'static) -> Connected {
    TokioIo::new(Box::new(connection))
}

impl Default for Connector {
    fn default() -> Self {
        Self::tcp()
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector(..)")
    }
}

/// The connector as the HTTP client calls it.
#[derive(Debug)]
pub(super) struct ConnectorService(pub(super) Connector);

impl Service<Uri> for ConnectorService {
    type Response = Connected;
    type Error = Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Connecting {
        (self.0.0)(uri)
    }
}
