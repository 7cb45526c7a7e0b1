//! Sockets: where a coordinator listens, and where others find it.

use std::hash::{BuildHasher, RandomState};

use quell_host::address::Address;
use quell_host::config::field;
use quell_host::listen::Listener;

use crate::auth::CoordinatorAuth;
use crate::config::SocketConfig;
use crate::error::ServeError;
use crate::name::CoordinatorName;

/// Sockets that are bound, and the name under which others find them.
pub(crate) struct Sockets {
    pub(crate) nodes: Listener,
    pub(crate) admin: Option<Listener>,
    pub(crate) name: CoordinatorName,
}

impl Sockets {
    /// Binds the sockets.
    ///
    /// # Errors
    /// If others would not find them; or why an address cannot be had.
    pub(crate) fn bind(config: &SocketConfig, auth: &CoordinatorAuth) -> Result<Self, ServeError> {
        let scheme = if auth.has_tls() { "https" } else { "http" };
        let bind = |name, at| Listener::bind(name, &Address::Tcp(at), 0, auth.tls());
        let nodes = bind("listen", config.listen)?;
        let admin = { config.admin.map(|at| bind("admin", at)) }.transpose()?;
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

/// The URL of a socket.
fn found(
    socket: &Listener,
    said: Option<&String>,
    (url, of): (&'static str, &'static str),
    scheme: &str,
) -> Result<String, ServeError> {
    if let Some(said) = said {
        if !said.starts_with(&format!("{scheme}://")) {
            let reason = format!(
                "{said} does not fit this listener: write one that begins with {scheme}://"
            );
            return Err(field(url, reason).into());
        }
        return Ok(said.clone());
    }
    let address = &socket.address;
    let tcp = address.tcp().filter(|at| at.ip().is_unspecified());
    if let Some(tcp) = tcp {
        let reason = format!(
            "other machines do not find {address}: write --{} with the URL at which they reach it, such as \
            {scheme}://10.0.0.1:{}",
            url.replace('_', "-"),
            tcp.port()
        );
        return Err(field(of, reason).into());
    }
    Ok(format!("{scheme}://{address}"))
}
