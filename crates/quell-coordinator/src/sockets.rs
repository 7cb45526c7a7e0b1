//! Sockets: where a coordinator listens, and where others find it.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

use quell_host::config_error::field;
use tokio::net::TcpListener;

use crate::config::SocketConfig;
use crate::error::ServeError;
use crate::name::CoordinatorName;

/// Sockets that are bound, and the name under which others find them.
pub(crate) struct Sockets {
    pub(crate) nodes: TcpListener,
    pub(crate) admin: Option<TcpListener>,
    pub(crate) name: CoordinatorName,
}

impl Sockets {
    /// Binds the sockets.
    ///
    /// # Errors
    /// If others would not find them; or why an address cannot be had.
    pub(crate) async fn bind(config: &SocketConfig, has_tls: bool) -> Result<Self, ServeError> {
        let scheme = if has_tls { "https" } else { "http" };
        let nodes = bind(config.listen).await?;
        let admin = match config.admin {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        let url = found(&nodes, config.url.as_ref(), ("url", "listen"), scheme)?;
        let admin_url = admin.as_ref().map(|admin| {
            let fields = ("admin_url", "admin");
            found(admin, config.admin_url.as_ref(), fields, scheme)
        });
        let name = CoordinatorName {
            url,
            admin: admin_url.transpose()?,
            start: RandomState::new().hash_one(std::process::id()),
        };
        Ok(Self { nodes, admin, name })
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, ServeError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| ServeError::Bind { address, source })
}

/// The URL of a socket.
fn found(
    socket: &TcpListener,
    said: Option<&String>,
    (url, of): (&'static str, &'static str),
    scheme: &str,
) -> Result<String, ServeError> {
    if let Some(said) = said {
        if !said.starts_with(&format!("{scheme}://")) {
            let reason = format!(
                "{said} does not fit to this listener: write one that begins with {scheme}://"
            );
            return Err(field(url, reason).into());
        }
        return Ok(said.clone());
    }
    let address = socket.local_addr().map_err(ServeError::NoAddress)?;
    if address.ip().is_unspecified() {
        let reason = format!(
            "others do not find {address}: write --{} with the URL at which they reach it, such as \
             {scheme}://10.0.0.1:{}",
            url.replace('_', "-"),
            address.port()
        );
        return Err(field(of, reason).into());
    }
    Ok(format!("{scheme}://{address}"))
}
