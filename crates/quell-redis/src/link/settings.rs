//! Settings: who logs in where, and how.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{ProtocolVersion, RedisConnectionInfo};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::url::StoreUrl;

/// How long one attempt to connect may take. Calls do not wait for it: they have their own time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The same for every server behind one URL.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) login: RedisConnectionInfo,
    pub(crate) tls: bool,
    pub(crate) connect_timeout: Duration,
    /// How long a call may take: for so long it looks for a server that runs it.
    pub(crate) timeout: Duration,
}

impl Settings {
    pub(crate) fn new(url: &StoreUrl, timeout: Duration) -> Self {
        let mut login = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP2)
            .set_db(i64::from(url.database()))
            .set_lib_name("quell", env!("CARGO_PKG_VERSION"));
        if let Some(user) = url.user() {
            login = login.set_username(user);
        }
        if let Some(password) = url.password() {
            login = login.set_password(password);
        }
        Self {
            login,
            tls: url.is_encrypted(),
            connect_timeout: CONNECT_TIMEOUT,
            timeout,
        }
    }
}

impl Settings {
    /// The same for servers that know no login and no database.
    pub(super) fn without_login(&self) -> Self {
        Self {
            login: RedisConnectionInfo::default()
                .set_protocol(ProtocolVersion::RESP2)
                .set_lib_name("quell", env!("CARGO_PKG_VERSION")),
            ..self.clone()
        }
    }
}

/// Leaves the password out.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("user", &self.login.username())
            .field("database", &self.login.db())
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

/// Trusts whom the system trusts (`SSL_CERT_FILE` names others).
pub(super) fn tls() -> io::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err(io::Error::other(
            "the system trusts no certificates: install ca-certificates, or set SSL_CERT_FILE",
        ));
    }
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
