//! Auth: who may speak to a coordinator, and the certificate that it shows.

use std::path::PathBuf;
use std::sync::Arc;

use axum::http::HeaderName;
use ipnet::IpNet;
use quell_host::access::{Access, Denied as NotPermitted, Grant, Role};
use quell_host::console::host::Ingress;
use quell_host::console::page::Menu;
use quell_host::console::shell::Shell;
use quell_host::file_watch::Watch;
use quell_host::reply;
use quell_host::tls::{Acceptor, Tls};
use quell_shares::plan::MemberId;

use crate::config::AccessConfig;
use crate::error::ServeError;
use crate::gate::{Denied, Gate, Identity, Permission, PresentedCredentials};

/// Callers to let in, and the certificate shown to them.
#[derive(Debug)]
pub(crate) struct CoordinatorAuth {
    access: Arc<Access>,
    tls: Option<Arc<Tls>>,
    fleet: String,
    /// True if the authorities that sign the certificates of nodes are known.
    knows_certificates: bool,
    /// The header by which proxies name people, and the networks of these.
    user_header: Option<(HeaderName, Vec<IpNet>)>,
}

impl CoordinatorAuth {
    /// Reads certificates and credentials.
    ///
    /// # Errors
    /// A text that says what is wrong with them, and what to write instead.
    pub(crate) fn open(config: &AccessConfig) -> Result<Self, ServeError> {
        let files = config.certificate.clone();
        let tls =
            files.map(|(cert, key)| Tls::from_files(cert, key, config.client_authorities.clone()));
        let access = Arc::new(Access::open(config.credentials.as_ref())?);
        let auth = Self {
            access,
            tls: tls.transpose()?.map(Arc::new),
            fleet: config.fleet.clone(),
            knows_certificates: config.client_authorities.is_some(),
            user_header: { config.console_user_header.clone() }
                .map(|name| (name, config.console_proxy.clone())),
        };
        if config.insecure && !auth.access.is_closed() {
            tracing::warn!(
                "no credentials are configured: anyone who reaches a listener may do everything; write \
                --credentials"
            );
        }
        Ok(auth)
    }

    pub(crate) const fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The frame of the console, and who may log in there.
    pub(crate) fn shell(&self, menu: Menu) -> Arc<Shell> {
        let ingress = Ingress {
            is_secure: self.has_tls(),
            user_header: self.user_header.clone(),
        };
        Shell::standalone(Arc::clone(&self.access), ingress, menu)
    }

    /// TLS for listeners, and their answer to clients without it.
    pub(crate) fn tls(&self) -> Option<(Acceptor, Arc<[u8]>)> {
        let tls = self.tls.as_ref()?;
        Some((tls.http(), reply::no_tls()))
    }

    /// The files that all this is read from.
    fn paths(&self) -> Vec<PathBuf> {
        let of_tls = self.tls.as_ref().map(|tls| tls.paths());
        let credentials = self.access.path().map(Into::into);
        of_tls.into_iter().flatten().chain(credentials).collect()
    }

    /// Reads them again whenever they change.
    pub(crate) async fn follow(self: Arc<Self>) {
        let mut watch = Watch::new(&self.paths());
        // Changes before the watch began are in no event.
        self.reload();
        loop {
            watch.changed(|| self.paths()).await;
            self.reload();
        }
    }

    /// Reads them again; those with a mistake stay as they are.
    pub(crate) fn reload(&self) {
        match self.access.reload() {
            Ok(true) => tracing::info!("credentials reloaded"),
            Ok(false) => {}
            Err(error) => {
                tracing::error!(
                    %error,
                    "cannot use the changed credentials; the earlier ones stay in force"
                );
            }
        }
        match self.tls.as_ref().map(|tls| tls.reload()) {
            Some(Ok(true)) => tracing::info!("certificates reloaded"),
            Some(Ok(false)) | None => {}
            Some(Err(error)) => {
                tracing::error!(
                    %error,
                    "cannot use the changed certificates; the earlier ones stay in force"
                );
            }
        }
    }
}

/// The bearer of a token or a certificate that has an entry. A certificate that names a member as well is for no
/// other.
fn visitor(grant: &Grant, named: Option<MemberId>) -> Result<Identity, Denied> {
    let mut terms = grant.node().clone();
    if let Some(member) = named {
        terms.check_member(member).map_err(Denied::NotAllowed)?;
        terms.members = Some([member.into()].into());
    }
    Ok(Identity {
        name: grant.name().as_str().into(),
        terms,
        is_known: true,
    })
}

impl Gate for CoordinatorAuth {
    fn admit(
        &self,
        shown: PresentedCredentials<'_>,
        wants: Permission,
    ) -> Result<Identity, Denied> {
        let certificate = shown.certificate;
        let member = certificate.and_then(|shown| shown.fleet_member(&self.fleet));
        // Showing a token is no reason to be let in where none is known.
        let shows_token = shown.token.is_some() && self.access.is_closed();
        if wants == Permission::FleetService && !shows_token {
            if let Some((member, terms)) = member {
                return Ok(Identity {
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
            None => self.access.of_connection(certificate),
        };
        let role = match wants {
            Permission::FleetService => Role::Node,
            Permission::ChangeOverrides => Role::Policy,
            Permission::Read => Role::Read,
            Permission::Operate => Role::Admin,
            Permission::Metrics => Role::Metrics,
        };
        let checked = caller.check(role, None);
        let checked = checked.and_then(|()| match wants {
            Permission::FleetService => Ok(()),
            _ => caller.check_whole(),
        });
        match checked {
            Ok(()) => match caller.grant() {
                Some(grant) => visitor(grant, member.map(|(member, _)| MemberId(member))),
                None => Ok(Identity::anyone()),
            },
            Err(error @ NotPermitted::Unauthenticated) => Err(Denied::Unknown(error.to_string())),
            Err(error) => Err(Denied::NotAllowed(error.to_string())),
        }
    }

    fn version(&self) -> u64 {
        self.access.version()
    }
}
