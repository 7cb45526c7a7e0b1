//! Gate: who may speak to a coordinator. The process that runs it decides ([`Gate`]); here is only what
//! is asked, and how the answer is told.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use quell_fleet::terms::NodeTerms;
use quell_host::access::ClientCertificate;
use quell_host::address::Address;
use quell_host::caller::token;
use quell_host::http_connection::InUse;
use tonic::Status;

/// A purpose to be let in for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// To be a member.
    FleetService,
    /// To change stored overrides.
    ChangeOverrides,
    /// To see the fleet.
    Read,
    /// To change it.
    Operate,
    /// To read the metrics.
    Metrics,
}

/// Shown credentials.
#[derive(Clone, Copy, Debug, Default)]
pub struct PresentedCredentials<'a> {
    /// The token in the head of the request.
    pub token: Option<&'a [u8]>,
    /// The certificate of the connection; an authority that the listener trusts signed it.
    pub certificate: Option<&'a ClientCertificate>,
}

/// Somebody who was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its name, for the log.
    pub name: Arc<str>,
    /// Its terms, as a member.
    pub terms: NodeTerms,
    /// True if it showed a token or a certificate that is known: then joins are counted for it, by its
    /// name.
    pub is_known: bool,
}

impl Identity {
    /// Whoever comes where there are no credentials.
    #[must_use]
    pub fn anyone() -> Self {
        Self {
            name: "anyone".into(),
            terms: NodeTerms::ANY,
            is_known: false,
        }
    }
}

/// Reason why a caller is not let in. The text says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Denied {
    /// It has shown nothing that is known.
    #[error("{0}")]
    Unknown(String),
    /// It is known, and may not do this.
    #[error("{0}")]
    NotAllowed(String),
}

/// Lets callers in, or does not.
pub trait Gate: fmt::Debug + Send + Sync + 'static {
    /// Checks whether a caller with these credentials has the permission.
    ///
    /// # Errors
    /// [`Denied`].
    fn admit(&self, shown: PresentedCredentials<'_>, wants: Permission)
    -> Result<Identity, Denied>;

    /// Changes whenever an answer of [`Gate::admit`] may have changed.
    fn version(&self) -> u64;
}

/// Lets everybody in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open;

impl Gate for Open {
    fn admit(&self, _: PresentedCredentials<'_>, _: Permission) -> Result<Identity, Denied> {
        Ok(Identity::anyone())
    }

    fn version(&self) -> u64 {
        0
    }
}

/// Details of the connection that a request came on.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The other end.
    pub remote: Address,
    /// The certificate that it showed.
    pub certificate: Option<Arc<ClientCertificate>>,
    /// Held by the connection, and by each request on it for as long as it lasts.
    pub(crate) _in_use: InUse,
}

impl Peer {
    /// The address of the other end.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.remote.ip()
    }
}

/// Credentials of a caller, kept to be shown again when the gate changes.
#[derive(Clone, Default)]
pub(crate) struct Credentials {
    token: Option<Box<[u8]>>,
    certificate: Option<Arc<ClientCertificate>>,
}

impl Credentials {
    /// Credentials of a request's head and connection.
    pub(crate) fn new(headers: &http::HeaderMap, peer: Option<&Peer>) -> Self {
        Self {
            token: token(headers).map(Into::into),
            certificate: peer.and_then(|peer| peer.certificate.clone()),
        }
    }

    pub(crate) fn shown(&self) -> PresentedCredentials<'_> {
        PresentedCredentials {
            token: self.token.as_deref(),
            certificate: self.certificate.as_deref(),
        }
    }
}

/// Shows nothing of the token.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

impl From<Denied> for Status {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Unknown(text) => Self::unauthenticated(text),
            Denied::NotAllowed(text) => Self::permission_denied(text),
        }
    }
}
