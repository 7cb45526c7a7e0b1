//! Access: who may speak to a coordinator, and what is shown to them.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use axum::http::HeaderName;
use clap::Args;
use ipnet::IpNet;
use quell_coordinator::gate::{Denied, Gate, Shown, Visitor, Wants};
use quell_coordinator::listen::TlsNow;
use quell_host::access::{
    Access, ClientCertificate, CredentialsSource, Denied as NotPermitted, Grant, Role,
};
use quell_host::console::host::Ingress;
use quell_host::console::page::Menu;
use quell_host::console::shell::Shell;
use quell_host::file_watch::Watch;
use quell_host::tls::Tls;
use quell_host::user_header::{check_user_header, proxy_network, user_header};
use quell_shares::plan::MemberId;

use super::sockets::SocketArgs;
use crate::exit::Usage;

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
    pub(super) fn fleet(&self) -> &str {
        &self.fleet_name
    }

    pub(super) fn hosts(&self) -> Vec<String> {
        self.hosts.clone()
    }

    /// Refuses addresses that strangers can reach, unless the operator insists.
    ///
    /// # Errors
    /// [`Usage`].
    pub(super) fn check(&self, sockets: &SocketArgs) -> Result<()> {
        let (header, proxies) = (&self.console_user_header, &self.console_proxy);
        let is_closed = self.credentials.is_some();
        let checked = check_user_header(header.is_some(), !proxies.is_empty(), is_closed);
        checked
            .map_err(|(field, reason)| Usage(format!("--{}: {reason}", field.replace('_', "-"))))?;
        if self.insecure {
            return Ok(());
        }
        let knows_nodes = self.credentials.is_some() || self.tls_client_ca.is_some();
        let nodes = ("listen", Some(sockets.listen), knows_nodes);
        let admin = sockets.admin.address();
        let admin = ("admin", admin, self.credentials.is_some());
        for (flag, address, knows_callers) in [nodes, admin] {
            let Some(address) = address.filter(|at| !at.ip().to_canonical().is_loopback()) else {
                continue;
            };
            let (lacks, write) = match (self.tls_cert.is_some(), knows_callers) {
                (true, true) => continue,
                (false, _) => ("there is no TLS", "--tls-cert and --tls-key"),
                (true, false) if flag == "listen" => (
                    "everybody may be a node",
                    "--credentials or --tls-client-ca",
                ),
                (true, false) => ("everybody may change the fleet", "--credentials"),
            };
            bail!(Usage(format!(
                "--{flag}: {address} can be reached from other machines, and {lacks}: write {write}, or a \
                 loopback address such as 127.0.0.1:{}, or say --insecure if the network keeps strangers out",
                address.port()
            )));
        }
        Ok(())
    }

    /// Reads certificates and credentials.
    ///
    /// # Errors
    /// What is wrong with them, and what to write.
    pub(super) fn open(&self) -> Result<Doors> {
        let files = self.tls_cert.clone().zip(self.tls_key.clone());
        let tls = files.map(|(cert, key)| Tls::of_files(cert, key, self.tls_client_ca.clone()));
        let access = Arc::new(Access::open(self.credentials.as_ref())?);
        let doors = Doors {
            access,
            tls: tls.transpose()?.map(Arc::new),
            fleet: self.fleet_name.clone(),
            knows_certificates: self.tls_client_ca.is_some(),
            user_header: { self.console_user_header.clone() }
                .map(|name| (name, self.console_proxy.clone())),
        };
        if self.insecure && !doors.access.is_closed() {
            tracing::warn!(
                "there are no credentials: everybody who reaches a listener may do everything"
            );
        }
        Ok(doors)
    }
}

/// Who may come in, and the certificate that they are met with.
#[derive(Debug)]
pub(super) struct Doors {
    access: Arc<Access>,
    tls: Option<Arc<Tls>>,
    fleet: String,
    /// Whether the authorities that sign the certificates of nodes are known.
    knows_certificates: bool,
    /// The header by which proxies name people, and the networks of these.
    user_header: Option<(HeaderName, Vec<IpNet>)>,
}

impl Doors {
    pub(super) const fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The frame of the console, and who may log in there.
    pub(super) fn shell(&self, menu: Menu) -> Arc<Shell> {
        let ingress = Ingress {
            is_secure: self.has_tls(),
            user_header: self.user_header.clone(),
        };
        Shell::standalone(Arc::clone(&self.access), ingress, menu)
    }

    pub(super) fn tls_now(&self) -> Option<TlsNow> {
        let tls = Arc::clone(self.tls.as_ref()?);
        Some(Arc::new(move || Some(tls.http_now())))
    }

    /// The files that all this is read from.
    fn paths(&self) -> Vec<PathBuf> {
        let of_tls = self.tls.as_ref().map(|tls| tls.paths());
        let credentials = self.access.path().map(Into::into);
        of_tls.into_iter().flatten().chain(credentials).collect()
    }

    /// Reads them again whenever they change.
    pub(super) async fn follow(self: Arc<Self>) {
        let mut watch = Watch::new(&self.paths());
        // What changed before the watch began is in no event.
        self.reload();
        loop {
            watch.changed(|| self.paths()).await;
            self.reload();
        }
    }

    /// Reads them again; those with a mistake stay as they are.
    pub(super) fn reload(&self) {
        match self.access.reload() {
            Ok(true) => tracing::info!("credentials reloaded"),
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%error, "the credentials cannot be used: those in force stay");
            }
        }
        match self.tls.as_ref().map(|tls| tls.reload()) {
            Some(Ok(true)) => tracing::info!("certificates reloaded"),
            Some(Ok(false)) | None => {}
            Some(Err(error)) => {
                tracing::error!(%error, "the certificates cannot be used: those in force stay");
            }
        }
    }
}

/// The bearer of a token or a certificate that has an entry. A certificate that names a member as well is for no
/// other.
fn visitor(grant: &Grant, named: Option<MemberId>) -> Result<Visitor, Denied> {
    let mut terms = grant.node().clone();
    if let Some(member) = named {
        terms.check_member(member).map_err(Denied::NotAllowed)?;
        terms.members = Some([member.into()].into());
    }
    Ok(Visitor {
        name: grant.name().as_str().into(),
        terms,
        is_known: true,
    })
}

impl Gate for Doors {
    fn admit(&self, shown: Shown<'_>, wants: Wants) -> Result<Visitor, Denied> {
        let certificate = shown.certificate.map(ClientCertificate::read);
        let member = certificate
            .as_ref()
            .and_then(|certificate| certificate.fleet_member(&self.fleet));
        // Where no token is known, showing one is no reason to be let in.
        let shows_token = shown.token.is_some() && self.access.is_closed();
        if wants == Wants::Attend && !shows_token {
            if let Some((member, terms)) = member {
                return Ok(Visitor {
                    name: format!("member {member}").into(),
                    terms,
                    is_known: true,
                });
            }
            if self.knows_certificates && !self.access.is_closed() {
                return Err(Denied::Unknown(format!(
                    "no certificate of a node came with this: show one with a URI that ends with \
                     /quell/{}/member/ID",
                    self.fleet
                )));
            }
        }
        let caller = match shown.token {
            Some(token) => self.access.of_token(None, token),
            None => self.access.of_connection(certificate.as_ref()),
        };
        let role = match wants {
            Wants::Attend => Role::Node,
            Wants::Read => Role::Read,
            Wants::Operate => Role::Admin,
            Wants::Metrics => Role::Metrics,
        };
        let checked = caller.check(role, None);
        let checked = checked.and_then(|()| match wants {
            Wants::Attend => Ok(()),
            _ => caller.check_whole(),
        });
        match checked {
            Ok(()) => match caller.grant() {
                Some(grant) => visitor(grant, member.map(|(member, _)| MemberId(member))),
                None => Ok(Visitor::anyone()),
            },
            Err(error @ NotPermitted::Unauthenticated) => Err(Denied::Unknown(error.to_string())),
            Err(error) => Err(Denied::NotAllowed(error.to_string())),
        }
    }

    fn version(&self) -> u64 {
        self.access.version()
    }
}
