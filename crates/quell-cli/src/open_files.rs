//! Open files: how many the system lets this process have, of which each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files beside connections: those of the store, the rules, the logs and the runtime.
const OTHERS: u64 = 256;

/// Raises the soft limit of the system to what `listeners` need if each has its `connections`: shells and
/// supervisors often set it to 1,024.
///
/// Warns if the hard limit is too low for the connections of one. A limit between that and all of them is
/// no news at a start: few servers ever have so many, and one that runs out of files says so then. `or` is
/// what else may be done about it.
pub(crate) fn raise_limit(listeners: usize, connections: usize, or: &str) {
    let [listeners, connections] =
        [listeners, connections].map(|number| u64::try_from(number).unwrap_or(u64::MAX));
    let wanted = connections.saturating_mul(listeners).saturating_add(OTHERS);
    let needed = connections.saturating_add(OTHERS);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let most = maximum.map_or(wanted, |maximum| maximum.min(wanted));
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
            allowed,
            "the system allows too few open files for {connections} connections, and more have to wait: \
             raise its hard limit (ulimit -n {needed} as root, LimitNOFILE={needed} in a unit){or}"
        );
    }
}
