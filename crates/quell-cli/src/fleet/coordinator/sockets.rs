//! Sockets: the flags about where a coordinator listens, and where others find it.

use std::net::SocketAddr;

use clap::Args;
use quell_coordinator::config::SocketConfig;
use quell_coordinator::name::CoordinatorName;

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
    listen: SocketAddr,

    /// Where operators, consoles and Prometheus connect, over HTTP; or off
    #[arg(
        long,
        env = "QUELL_ADMIN",
        value_name = "ADDR",
        default_value = "127.0.0.1:7601",
        value_parser = address_or_off
    )]
    admin: Admin,

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
enum Admin {
    At(SocketAddr),
    Off,
}

impl SocketArgs {
    pub(super) fn config(self) -> SocketConfig {
        SocketConfig {
            listen: self.listen,
            admin: match self.admin {
                Admin::At(address) => Some(address),
                Admin::Off => None,
            },
            url: self.url,
            admin_url: self.admin_url,
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
