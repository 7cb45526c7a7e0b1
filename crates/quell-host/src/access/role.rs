//! Role: what a caller may do.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Role of a caller. A token lists all that it has: of all roles `admin` alone may what another one is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Role {
    /// Ask limits and charge them: acquire, peek, authorize, `CL.THROTTLE`, reserve, and what ends a hold.
    Ask,
    /// Read rules, bans and what the server says of itself.
    Read,
    /// Change states by hand: set and lift bans, forgive keys; and what `policy` may.
    Admin,
    /// Change and read overrides of single keys, and nothing else.
    Policy,
    /// Read `/metrics`, which are those of all domains.
    Metrics,
    /// Be a member of a fleet. On the listeners of a server it opens nothing: a coordinator asks
    /// for it.
    Node,
    /// Name people to the console, by the header of `--console-user-header`. It opens nothing by itself.
    Proxy,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 7] = [
        Self::Ask,
        Self::Read,
        Self::Admin,
        Self::Policy,
        Self::Metrics,
        Self::Node,
        Self::Proxy,
    ];

    /// Its name in a file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Read => "read",
            Self::Admin => "admin",
            Self::Policy => "policy",
            Self::Metrics => "metrics",
            Self::Node => "node",
            Self::Proxy => "proxy",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let role = Self::ALL.into_iter().find(|role| role.name() == text);
        role.ok_or_else(|| {
            format!(
                "`{text}` is not a role: write ask, read, admin, policy, metrics, node or proxy"
            )
        })
    }
}
