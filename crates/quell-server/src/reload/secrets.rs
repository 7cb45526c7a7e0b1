//! Secrets: reads credentials, certificates and the secrets of reservations again when their files change, or an operator asks for it.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use crate::health::Attempts;
use crate::shared::Shared;
use quell_host::file_watch::Watch;
use quell_host::task;

/// Files with secrets that a server follows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Secrets {
    Credentials,
    Certificates,
    Reservations,
}

impl Secrets {
    const ALL: [Self; 3] = [Self::Credentials, Self::Certificates, Self::Reservations];

    const fn name(self) -> &'static str {
        match self {
            Self::Credentials => "credentials",
            Self::Certificates => "certificates",
            Self::Reservations => "secrets of reservations (envoy_secret)",
        }
    }

    fn paths(self, shared: &Shared) -> Vec<PathBuf> {
        match (self, &shared.tls) {
            (Self::Credentials, _) => shared.access.path().into_iter().map(Into::into).collect(),
            (Self::Certificates, Some(tls)) => tls.paths(),
            (Self::Certificates, None) => Vec::new(),
            (Self::Reservations, _) => { shared.reservations.path() }
                .into_iter()
                .map(Into::into)
                .collect(),
        }
    }

    fn attempts(self, shared: &Shared) -> &Attempts {
        match self {
            Self::Credentials => &shared.health.credentials,
            Self::Certificates => &shared.health.certificates,
            Self::Reservations => &shared.health.envoy_secret,
        }
    }

    /// Returns whether they changed.
    fn read(self, shared: &Shared) -> Result<bool, Box<dyn Error>> {
        Ok(match (self, &shared.tls) {
            (Self::Credentials, _) => shared.access.reload()?,
            (Self::Certificates, Some(tls)) => tls.reload()?,
            (Self::Certificates, None) => false,
            (Self::Reservations, _) => shared.reservations.reload()?,
        })
    }

    /// Reads them again and, if they have no mistake, brings them into force; otherwise the old ones stay.
    /// Returns whether they had none.
    async fn reload(self, shared: &Arc<Shared>) -> bool {
        let shared = Arc::clone(shared);
        // On a thread that may wait for the disk.
        let work = task::run_blocking(move || self.reload_now(&shared));
        work.await.unwrap_or(false)
    }

    fn reload_now(self, shared: &Shared) -> bool {
        let (name, attempts) = (self.name(), self.attempts(shared));
        match self.read(shared) {
            Ok(is_changed) => {
                if attempts.succeeded() || is_changed {
                    tracing::info!("{name} reloaded");
                }
                if is_changed {
                    shared.warn_of_useless_certificates();
                }
                true
            }
            Err(error) => {
                shared.metrics.reload_failures.add(1);
                let source = error.source().map(|source| format!(" ({source})"));
                let reason = format!("{error}{}", source.unwrap_or_default());
                tracing::error!(
                    "cannot use the changed {name}; the earlier ones stay in force: {reason}"
                );
                attempts.failed(vec![reason]);
                false
            }
        }
    }
}

/// Reads all of them again. Returns whether none has a mistake.
pub(crate) async fn secrets(shared: &Arc<Shared>) -> bool {
    let mut are_sound = true;
    for secrets in Secrets::ALL {
        are_sound &= secrets.reload(shared).await;
    }
    are_sound
}

/// Reads them again whenever one of their files changes.
pub(crate) async fn follow_secrets(shared: Arc<Shared>) {
    let follow = Secrets::ALL.map(|secrets| follow_one(&shared, secrets));
    futures_util::future::join_all(follow).await;
}

async fn follow_one(shared: &Arc<Shared>, secrets: Secrets) {
    let paths = secrets.paths(shared);
    if paths.is_empty() {
        return;
    }
    let mut watch = Watch::new(&paths);
    // What changed before the watch began is in no event.
    secrets.reload(shared).await;
    loop {
        watch.changed(|| paths.clone()).await;
        secrets.reload(shared).await;
    }
}
