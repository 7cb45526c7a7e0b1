//! etcd: the access to it that the environment has.

use quell_coordinator::config::EtcdAccess;

use crate::exit::Usage;

/// Access to etcd, from the variables of `quell fleet coordinator`.
///
/// # Errors
/// [`Usage`] if one of a pair is missing.
pub(crate) fn access() -> Result<EtcdAccess, Usage> {
    EtcdAccess::from_variables(|name| std::env::var_os(name)).map_err(Usage)
}
