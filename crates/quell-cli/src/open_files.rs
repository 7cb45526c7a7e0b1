//! Open files: how many the system lets this process have, of which each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files beside connections: those of the store, the rules, the logs and the runtime.
const OTHERS: u64 = 256;

/// Raises the soft limit of the system to what `connections` need, all listeners together: shells and
/// supervisors often set it to 1,024. Says so if the hard limit is lower.
pub(crate) fn raise_limit(connections: usize) {
    let connections = u64::try_from(connections).unwrap_or(u64::MAX);
    let needed = connections.saturating_add(OTHERS);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let most = maximum.map_or(needed, |maximum| maximum.min(needed));
    let mut allowed = current.unwrap_or(u64::MAX);
    let raised = Rlimit {
        current: Some(most),
        maximum,
    };
    if allowed < most && setrlimit(Resource::Nofile, raised).is_ok() {
        allowed = most;
    }
    if allowed < needed {
        tracing::warn!(
            needed,
            allowed,
            "the system allows fewer open files than the listeners have connections: raise its limit \
             (ulimit -n, LimitNOFILE), or lower max_connections"
        );
    }
}
