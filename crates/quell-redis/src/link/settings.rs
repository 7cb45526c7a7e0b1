//! Connection settings: login, TLS, database and timeouts.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::url::StoreUrl;

/// How long one attempt to connect may take. Calls do not wait for it: they have their own time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long one server may take to say who has the keys, before it counts as silent.
pub(super) const ASK_TIME: Duration = Duration::from_millis(500);

/// The same for every server behind one URL.
#[derive(Clone)]
pub(crate) struct Settings {
    user: Option<String>,
    password: Option<String>,
    database: u32,
    pub(crate) tls: bool,
    pub(crate) connect_timeout: Duration,
    /// How long a command may take.
    pub(crate) timeout: Duration,
}

impl Settings {
    pub(crate) fn new(url: &StoreUrl, timeout: Duration) -> Self {
        Self {
            user: url.user().map(str::to_owned),
            password: url.password().map(str::to_owned),
            database: url.database(),
            tls: url.is_encrypted(),
            connect_timeout: CONNECT_TIMEOUT,
            timeout,
        }
    }

    /// The same for servers that know no login and no database.
    pub(super) fn without_login(&self) -> Self {
        Self {
            user: None,
            password: None,
            database: 0,
            timeout: ASK_TIME,
            ..self.clone()
        }
    }

    /// What is said first on a connection, and whether that has to be understood.
    pub(super) fn greeting(&self) -> Vec<(Cmd, bool)> {
        let mut greeting = Vec::new();
        if let Some(password) = &self.password {
            let mut login = redis::cmd("AUTH");
            login.arg(self.user.as_deref()).arg(password.as_str());
            greeting.push((login, true));
        }
        if self.database != 0 {
            let mut select = redis::cmd("SELECT");
            select.arg(self.database);
            greeting.push((select, true));
        }
        // Servers before Redis 7.2 do not know it.
        for (name, value) in [
            ("LIB-NAME", "quell"),
            ("LIB-VER", env!("CARGO_PKG_VERSION")),
        ] {
            let mut about = redis::cmd("CLIENT");
            about.arg("SETINFO").arg(name).arg(value);
            greeting.push((about, false));
        }
        greeting
    }
}

/// Leaves the password out.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("user", &self.user)
            .field("database", &self.database)
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
