//! Host: what a console needs of the process that serves it, a server or a coordinator.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderName;
use ipnet::IpNet;
use quell::clock::{Clock, SystemClock};

use crate::access::{Access, FailedLogins};
use crate::body::BodyBounds;
use crate::budget::Budget;
use crate::caller::Purpose;
use crate::numbers::ListenerMetrics;

/// A process that serves a console.
pub trait Host: fmt::Debug + Send + Sync {
    /// Access control.
    fn access(&self) -> &Access;
    /// Failed logins so far.
    fn failed_logins(&self) -> &FailedLogins;
    /// The numbers of the listener that has this purpose.
    fn numbers(&self, purpose: Purpose) -> &ListenerMetrics;
    /// Buffers for forms.
    fn buffers(&self) -> &Arc<Budget>;
    /// Longest time for a form to arrive.
    fn body_timeout(&self) -> Duration {
        Duration::from_secs(10)
    }
    /// Bounds of a body of at most so many bytes.
    fn bodies(&self, most: usize) -> BodyBounds<'_> {
        BodyBounds {
            buffers: self.buffers(),
            timeout: self.body_timeout(),
            most,
        }
    }
    /// Returns true if the process is on its way down; where it is not asked, its listener ends all
    /// connections.
    fn is_stopping(&self) -> bool {
        false
    }
}

/// Memory for forms of a process that is no server, in bytes.
const BUFFERS: usize = 32 * 1_024 * 1_024;

/// Failed logins there a minute from one address, as the default of `failed_logins_per_minute`.
pub const FAILED_LOGINS: usize = 60;

/// Ingress of requests to a console.
#[derive(Debug, Default)]
pub struct Ingress {
    /// True if the console is served over TLS alone, and so cookies are.
    pub is_secure: bool,
    /// The header by which proxies name people, and the networks of these; none: they may be anywhere.
    pub user_header: Option<(HeaderName, Vec<IpNet>)>,
}

/// A process that is no server. Its listener is for administration.
#[derive(Debug)]
pub struct Standalone {
    access: Arc<Access>,
    failed_logins: FailedLogins,
    numbers: ListenerMetrics,
    buffers: Arc<Budget>,
}

impl Standalone {
    /// A process with these credentials.
    pub fn new(access: Arc<Access>) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        Self {
            access,
            failed_logins: FailedLogins::new(FAILED_LOGINS, &clock),
            numbers: ListenerMetrics::default(),
            buffers: Budget::new(BUFFERS),
        }
    }
}

impl Host for Standalone {
    fn access(&self) -> &Access {
        &self.access
    }

    fn failed_logins(&self) -> &FailedLogins {
        &self.failed_logins
    }

    fn numbers(&self, _: Purpose) -> &ListenerMetrics {
        &self.numbers
    }

    fn buffers(&self) -> &Arc<Budget> {
        &self.buffers
    }
}
