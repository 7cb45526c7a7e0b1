//! Sockets: where a coordinator listens, and where others find it.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use clap::Args;
use quell_coordinator::name::CoordinatorName;
use tokio::net::TcpListener;

use crate::exit::Usage;

/// Where to listen.
#[derive(Debug, Args)]
pub(super) struct SocketArgs {
    /// Where nodes connect
    #[arg(
        long,
        env = "QUELL_LISTEN",
        value_name = "ADDR",
        default_value = "127.0.0.1:7600",
        value_parser = address
    )]
    pub(super) listen: SocketAddr,

    /// Where operators, consoles and Prometheus connect, over HTTP; or off
    #[arg(
        long,
        env = "QUELL_ADMIN",
        value_name = "ADDR",
        default_value = "127.0.0.1:7601",
        value_parser = address_or_off
    )]
    pub(super) admin: Admin,

    /// The URL at which nodes reach --listen, such as https://a.internal:7600: other coordinators send them
    /// here. Without it, that of the address
    #[arg(long, env = "QUELL_ADVERTISE", value_name = "URL", value_parser = url)]
    url: Option<String>,

    /// The URL at which operators reach --admin; without it, that of the address
    #[arg(long, env = "QUELL_ADVERTISE_ADMIN", value_name = "URL", value_parser = url)]
    admin_url: Option<String>,
}

/// Where operators connect.
#[derive(Clone, Copy, Debug)]
pub(super) enum Admin {
    At(SocketAddr),
    Off,
}

impl Admin {
    pub(super) const fn address(self) -> Option<SocketAddr> {
        match self {
            Self::At(address) => Some(address),
            Self::Off => None,
        }
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is no address: write one such as 127.0.0.1:7600"))
}

fn address_or_off(text: &str) -> Result<Admin, String> {
    match text {
        "off" => Ok(Admin::Off),
        text => address(text).map(Admin::At),
    }
}

fn url(text: &str) -> Result<String, String> {
    let url = text.trim_end_matches('/');
    CoordinatorName::check_url(url).map(|()| url.to_owned())
}

/// Sockets that are bound, and the name under which others find them.
pub(super) struct Sockets {
    pub(super) nodes: TcpListener,
    pub(super) admin: Option<TcpListener>,
    pub(super) name: CoordinatorName,
}

impl Sockets {
    /// Binds the sockets.
    ///
    /// # Errors
    /// [`Usage`] if others would not find them; or why an address cannot be had.
    pub(super) async fn bind(args: &SocketArgs, has_tls: bool) -> Result<Self> {
        let scheme = if has_tls { "https" } else { "http" };
        let nodes = bind(args.listen).await?;
        let admin = match args.admin.address() {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        let url = found(&nodes, args.url.as_ref(), ("url", "listen"), scheme)?;
        let admin_url = admin.as_ref().map(|admin| {
            let flags = ("admin-url", "admin");
            found(admin, args.admin_url.as_ref(), flags, scheme)
        });
        let name = CoordinatorName {
            url,
            admin: admin_url.transpose()?,
            start: RandomState::new().hash_one(std::process::id()),
        };
        Ok(Self { nodes, admin, name })
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.with_context(|| format!("cannot listen on {address}"))
}

/// The URL of a socket.
fn found(
    socket: &TcpListener,
    said: Option<&String>,
    (flag, of): (&str, &str),
    scheme: &str,
) -> Result<String> {
    if let Some(said) = said {
        if !said.starts_with(&format!("{scheme}://")) {
            bail!(Usage(format!(
                "--{flag}: {said} does not fit to this listener: write one that begins with {scheme}://"
            )));
        }
        return Ok(said.clone());
    }
    let address = socket.local_addr().context("a socket has no address")?;
    if address.ip().is_unspecified() {
        bail!(Usage(format!(
            "--{of}: others do not find {address}: write --{flag} with the URL at which they reach it, such \
             as {scheme}://10.0.0.1:{}",
            address.port()
        )));
    }
    Ok(format!("{scheme}://{address}"))
}
