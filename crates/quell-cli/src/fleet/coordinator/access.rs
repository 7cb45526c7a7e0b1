//! Access: the flags about certificates and credentials.

use std::path::PathBuf;

use clap::Args;
use ipnet::IpNet;
use quell_coordinator::config::AccessConfig;
use quell_host::access::CredentialsSource;
use quell_host::user_header::{HeaderName, proxy_network, user_header};

/// Certificates and credentials.
#[derive(Debug, Args)]
pub(super) struct AccessArgs {
    /// The name of the fleet: in etcd, and in the certificates of nodes
    #[arg(
        long,
        env = "QUELL_FLEET_NAME",
        value_name = "NAME",
        default_value = "default",
        value_parser = fleet_name
    )]
    fleet_name: String,

    /// For TLS: a PEM file with the certificate of this coordinator, and its chain
    #[arg(
        long,
        env = "QUELL_TLS_CERT",
        value_name = "FILE",
        requires = "tls_key"
    )]
    tls_cert: Option<PathBuf>,

    /// A PEM file with the private key of --tls-cert
    #[arg(
        long,
        env = "QUELL_TLS_KEY",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    tls_key: Option<PathBuf>,

    /// A PEM file with the authorities that sign the certificates of nodes. A node is the member that its
    /// certificate names: a URI that ends with /quell/NAME/member/ID, NAME being the fleet's, and perhaps
    /// /weight/N and /group/GROUP after it
    #[arg(
        long,
        env = "QUELL_TLS_CLIENT_CA",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    tls_client_ca: Option<PathBuf>,

    /// A file of credentials, or env:NAME: nodes have the role node, operators read and admin, Prometheus
    /// metrics
    #[arg(
        long,
        env = "QUELL_CREDENTIALS",
        value_name = "FILE",
        value_parser = CredentialsSource::parse
    )]
    credentials: Option<CredentialsSource>,

    /// Accept addresses beyond loopback without TLS or without credentials
    #[arg(
        long,
        env = "QUELL_INSECURE",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        default_value = "false",
        hide_default_value = true
    )]
    insecure: bool,

    /// A host name by which --admin may be asked, besides addresses and localhost; may be repeated
    #[arg(
        long = "allow-host",
        env = "QUELL_ALLOW_HOST",
        value_name = "HOST",
        value_delimiter = ','
    )]
    hosts: Vec<String>,

    /// The header by which a proxy that has authenticated a person names them to the console; it counts beside
    /// a token with the role proxy alone, as X-Quell-Token
    #[arg(long, env = "QUELL_CONSOLE_USER_HEADER", value_name = "NAME", value_parser = user_header)]
    console_user_header: Option<HeaderName>,

    /// An address, or a network such as 10.0.0.0/8, from which alone --console-user-header counts; may be
    /// repeated
    #[arg(
        long,
        env = "QUELL_CONSOLE_PROXY",
        value_name = "NETWORK",
        value_delimiter = ',',
        value_parser = proxy_network
    )]
    console_proxy: Vec<IpNet>,
}

fn fleet_name(text: &str) -> Result<String, String> {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if text.is_empty() || text.len() > 64 || !text.bytes().all(is_of_name) {
        return Err("a fleet has a name of 1 to 64 letters, digits, -, _ and .".to_owned());
    }
    Ok(text.to_owned())
}

impl AccessArgs {
    pub(super) fn config(self) -> AccessConfig {
        AccessConfig {
            fleet: self.fleet_name,
            certificate: self.tls_cert.zip(self.tls_key),
            client_authorities: self.tls_client_ca,
            credentials: self.credentials,
            insecure: self.insecure,
            hosts: self.hosts,
            console_user_header: self.console_user_header,
            console_proxy: self.console_proxy,
        }
    }
}
