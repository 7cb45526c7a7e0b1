//! Connection settings: login, TLS, database and timeouts.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::resp::{Cmd, cmd};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::endpoint::QUIET;
use crate::url::StoreUrl;

/// Longest time of one attempt to connect. Calls do not wait for it: they have their own time.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time that a server may take to say which server has the keys, before it counts as silent.
pub(super) const ASK_TIME: Duration = Duration::from_millis(500);

/// Settings of all servers behind one URL. Debug shows no password.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(super) url: StoreUrl,
    /// Time that a command may take.
    pub(crate) timeout: Duration,
    /// For how long a server may lack states after a start.
    pub(crate) quiet: Duration,
}

impl Settings {
    pub(crate) fn new(url: &StoreUrl, timeout: Duration) -> Self {
        Self {
            url: url.clone(),
            timeout,
            quiet: QUIET,
        }
    }

    /// The same for servers without login and database.
    pub(super) fn without_login(&self) -> Self {
        let url = StoreUrl {
            user: None,
            password: None,
            database: 0,
            ..self.url.clone()
        };
        Self::new(&url, ASK_TIME)
    }

    /// The first commands on a connection, and whether each has to succeed.
    pub(super) fn greeting(&self) -> Vec<(Cmd, bool)> {
        let mut greeting = Vec::new();
        if let Some(password) = &self.url.password {
            let mut login = cmd("AUTH");
            login.arg(self.url.user.as_deref()).arg(password.as_str());
            greeting.push((login, true));
        }
        if self.url.database != 0 {
            let mut select = cmd("SELECT");
            select.arg(self.url.database);
            greeting.push((select, true));
        }
        // Servers before Redis 7.2 do not know this command.
        for (name, value) in [
            ("LIB-NAME", "quell"),
            ("LIB-VER", env!("CARGO_PKG_VERSION")),
        ] {
            let mut about = cmd("CLIENT");
            about.arg("SETINFO").arg(name).arg(value);
            greeting.push((about, false));
        }
        greeting
    }
}

/// Trusts the system's certificates, or those that `SSL_CERT_FILE` names.
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
