//! Configuration: what a coordinator needs to know before it starts.

use std::net::SocketAddr;
use std::path::PathBuf;

use axum::http::HeaderName;
use ipnet::IpNet;
use quell_host::config::{ConfigError, check_reachable, check_user_header};
use quell_host::secret_source::SecretSource;

mod settings;
mod store;
mod terms;

pub use settings::{PublicUrl, RawConfig, Settings};
pub use store::{EtcdAccess, EtcdAccessError, FleetStore};
pub use terms::Terms;

/// Everything that a coordinator needs to know before it starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// Storage of the fleet.
    pub store: FleetStore,
    /// Files and directories with the rules, or one store that has them.
    pub rules: Vec<PathBuf>,
    /// Access to rules in etcd.
    pub rules_access: EtcdAccess,
    /// File of the last changes that people made.
    pub changes: Option<PathBuf>,
    /// Its addresses and its public URLs.
    pub sockets: SocketConfig,
    /// Certificates and credentials.
    pub access: AccessConfig,
    /// The durations and the size of the fleet.
    pub terms: Terms,
    /// Most bytes that messages of nodes take together.
    pub max_buffer_bytes: usize,
    /// Most overrides of single keys that it keeps for its nodes.
    pub max_overrides: usize,
}

/// Sockets of a coordinator.
#[derive(Clone, Debug)]
pub struct SocketConfig {
    /// Address for nodes.
    pub listen: SocketAddr,
    /// Address for operators, consoles and Prometheus; `None`: none.
    pub admin: Option<SocketAddr>,
    /// The URL at which nodes reach it, if that is not the one of the address.
    pub url: Option<String>,
    /// The URL at which operators reach it, if that is not the one of the address.
    pub admin_url: Option<String>,
}

/// Certificates and credentials.
#[derive(Clone, Debug)]
pub struct AccessConfig {
    /// The name of the fleet: in etcd, and in the certificates of nodes.
    pub fleet: String,
    /// For TLS: PEM files with the certificate of this coordinator, and with its private key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// A PEM file with the authorities that sign the certificates of nodes.
    pub client_authorities: Option<PathBuf>,
    /// Source of the credentials.
    pub credentials: Option<SecretSource>,
    /// True if addresses beyond loopback are accepted without TLS or without credentials.
    pub insecure: bool,
    /// Host names by which operators may ask, besides addresses and localhost.
    pub hosts: Vec<String>,
    /// The header by which a proxy names a person to the console.
    pub console_user_header: Option<HeaderName>,
    /// The networks from which alone that header counts.
    pub console_proxy: Vec<IpNet>,
}

impl Config {
    /// A coordinator of the fleet `default` that this machine alone can reach, at ports 7600 and 7601, without
    /// TLS and credentials.
    #[must_use]
    pub fn new(store: FleetStore, rules: Vec<PathBuf>) -> Self {
        Self {
            changes: store.changes(),
            store,
            rules,
            ..Settings::default().config(EtcdAccess::default())
        }
    }

    /// Refuses settings that do not fit together, and addresses that strangers can reach, unless the operator
    /// insists.
    ///
    /// # Errors
    /// Which setting is wrong, and what to write. What it names are flags of `quell fleet coordinator`.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.terms.check()?;
        self.store.check()?;
        self.access.check(&self.sockets)
    }
}

impl AccessConfig {
    fn check(&self, sockets: &SocketConfig) -> Result<(), ConfigError> {
        let (header, proxies) = (&self.console_user_header, &self.console_proxy);
        let is_closed = self.credentials.is_some();
        check_user_header(header.is_some(), !proxies.is_empty(), is_closed)?;
        if self.insecure {
            return Ok(());
        }
        let no_tls = { self.certificate.is_none() }
            .then_some(("there is no TLS", "--tls-cert and --tls-key"));
        let knows_nodes = is_closed || self.client_authorities.is_some();
        let for_nodes = no_tls.or((!knows_nodes).then_some((
            "everybody may be a node",
            "--credentials or --tls-client-ca",
        )));
        check_reachable(
            "listen",
            sockets.listen,
            &sockets.listen.to_string(),
            for_nodes,
        )?;
        let Some(admin) = sockets.admin else {
            return Ok(());
        };
        let for_operators =
            no_tls.or((!is_closed).then_some(("everybody may change the fleet", "--credentials")));
        check_reachable("admin", admin, &admin.to_string(), for_operators)
    }
}
